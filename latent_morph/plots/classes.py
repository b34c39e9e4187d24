"""Plots of classes: probabilities over time, labelled series, confusion matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.arguments import (
    as_channel_names,
    as_class_names,
    as_codes,
    as_floats,
    as_times,
    get_limits,
)
from latent_morph.plots.figures import (
    DARK,
    LEGEND_STYLE,
    LIGHT,
    PRIMARY,
    SMALL_SIZE,
    TEXT_SIZE,
    get_class_colours,
    make_figure,
    make_patch,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_point_probabilities(
    times: ArrayLike,
    probabilities: ArrayLike,
    class_names: Sequence[Any],
    *,
    labels: ArrayLike | None = None,
    observed_times: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws class probabilities over time as stacked areas, above a strip of the true classes.

    Args:
        times: (T,), in any order.
        probabilities: (T, K), each row summing to 1.
        class_names: K names.
        labels: True classes, (S,) at `observed_times` if that has the same shape, otherwise (T,)
            at `times`. Names, or positions in `class_names` if those are strings; None, NaN and
            negative positions leave a gap.
        observed_times: (S,), the times of the observations, drawn as ticks below.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: Shapes disagree, or a label is not a class.
    """
    times, order = as_times("times", times)
    names = as_class_names(class_names)
    areas = as_floats("probabilities", probabilities, shape=(len(times), len(names)))
    colours = get_class_colours(len(names))
    strip = None
    if labels is not None:
        label_times, rows = times, order
        if observed_times is not None and np.shape(labels) == np.shape(observed_times):
            label_times, rows = as_times("observed_times", observed_times)
        codes = as_codes("labels", labels, class_names, shape=label_times.shape)
        strip = (label_times, codes[rows])
    if ax is None:
        ax = make_figure(7.2, 3.0).subplots()
    ax.stackplot(
        times,
        *areas[order].T,
        labels=names,
        colors=colours,
        alpha=0.85,
        edgecolor="white",
        linewidth=0.6,
    )
    style_axes(ax)
    ax.grid(False)
    ticks = {0.0: "0", 0.25: "", 0.5: "0.5", 0.75: "", 1.0: "1"}
    floor = 0.0
    if observed_times is not None:
        at, _ = as_times("observed_times", observed_times)
        middle = floor - 0.075
        ax.plot(at, np.full(len(at), middle), "|", color=DARK, markersize=6, markeredgewidth=0.8)
        ticks[middle] = "observed"
        floor -= 0.12
    if strip is not None:
        middle = floor - 0.095
        draw_strip(ax, *strip, colours, bottom=middle - 0.04, top=middle + 0.04)
        ticks[middle] = "true class"
        floor -= 0.15
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(floor, 1)
    ax.set_xlim(*get_limits(times))
    ax.spines["left"].set_bounds(0, 1)
    for tick, position in zip(ax.yaxis.get_major_ticks(), ticks, strict=True):
        if position < 0:
            tick.tick1line.set_visible(False)
    ax.set_xlabel("time", fontsize=TEXT_SIZE)
    ax.set_ylabel("probability", fontsize=TEXT_SIZE, y=(0.5 - floor) / (1 - floor))
    # Beside the areas, with the first class at the bottom as in the stack.
    handles, entries = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1], entries[::-1], loc="upper left", bbox_to_anchor=(1.01, 1), **LEGEND_STYLE
    )
    return ax


def plot_labelled_series(
    times: ArrayLike,
    values: ArrayLike,
    labels: ArrayLike,
    predicted: ArrayLike,
    class_names: Sequence[Any],
    channel_names: Sequence[str] | None = None,
) -> np.ndarray:
    """Draws a series channel by channel, above strips of its true and predicted classes.

    Args:
        times: (T,), in any order.
        values: (T, C), NaN if not observed.
        labels: (T,), the true classes, as in `plot_point_probabilities`.
        predicted: (T,), the predicted classes, in the same form.
        class_names: K names.
        channel_names: C names.

    Returns:
        The axes, shape (C + 1,): the channels, then the strips.

    Raises:
        ValueError: Shapes disagree, or a label is not a class.
    """
    times, order = as_times("times", times)
    table = as_floats("values", values)
    if table.ndim != 2 or len(table) != len(times) or not table.shape[1]:
        raise ValueError(f"values must have shape ({len(times)}, C), got {table.shape}")
    n_channels = table.shape[1]
    titles = [""] * n_channels
    if channel_names is not None:
        titles = as_channel_names(channel_names, n_channels)
    names = as_class_names(class_names)
    codes = [
        as_codes("labels", labels, class_names, shape=times.shape)[order],
        as_codes("predicted", predicted, class_names, shape=times.shape)[order],
    ]
    table = table[order]
    colours = get_class_colours(len(names))
    height = min(1.2, max(0.42, 5.0 / n_channels))
    figure = make_figure(8.4, height * n_channels + 1.0, hspace=0.06, h_pad=0.0)
    axes = figure.subplots(
        n_channels + 1, 1, sharex=True, height_ratios=[height] * n_channels + [0.42]
    )
    for ax, column, title in zip(axes, table.T, titles, strict=False):
        observed = np.isfinite(column)
        size = float(np.clip(400 / max(observed.sum(), 1), 1.2, 3.5))
        ax.plot(times[observed], column[observed], color=PRIMARY, linewidth=0.7, alpha=0.55)
        ax.plot(times[observed], column[observed], ".", color=PRIMARY, markersize=size)
        style_axes(ax)
        ax.locator_params(axis="y", nbins=3 if height > 0.7 else 2)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0, labelbottom=False)
        ax.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=SMALL_SIZE)
        ax.margins(y=0.15)
        if not observed.any():
            ax.set_yticks([])  # the default limits of empty axes have no meaning
    figure.align_ylabels(axes[:-1])
    strips = axes[-1]
    for row, classes in enumerate(codes):
        draw_strip(strips, times, classes, colours, bottom=-row - 0.4, top=-row + 0.4)
    style_axes(strips)
    strips.grid(False)
    strips.spines["left"].set_visible(False)
    strips.set_yticks([0, -1], ["true", "predicted"])
    strips.tick_params(axis="y", length=0)
    strips.set_ylim(-1.5, 0.5)
    low, high = get_limits(times)
    strips.set_xlim(low - 0.008 * (high - low), high + 0.008 * (high - low))  # clips no dot
    strips.set_xlabel("time", fontsize=TEXT_SIZE)
    occurring = np.unique(np.concatenate(codes))
    patches = [make_patch(colours[code], names[code]) for code in occurring if code >= 0]
    figure.legend(handles=patches, loc="outside right upper", **LEGEND_STYLE)
    return axes


def plot_confusion(
    true: ArrayLike, predicted: ArrayLike, class_names: Sequence[Any], *, ax: Axes | None = None
) -> Axes:
    """Draws the confusion matrix as fractions of each true class, with its counts at the left.

    Args:
        true: True classes, of any shape: names, or positions in `class_names` if those are
            strings. Elements without a class (None, NaN, a negative position) in either argument
            are left out.
        predicted: Predicted classes, of the same shape.
        class_names: K names.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: Shapes disagree, or a label is not a class.
    """
    names = as_class_names(class_names)
    y_true = as_codes("true", true, class_names)
    y_pred = as_codes("predicted", predicted, class_names, shape=y_true.shape)
    is_labelled = (y_true >= 0) & (y_pred >= 0)
    if not is_labelled.any():
        raise ValueError("true and predicted must have a labelled element in common, got none")
    size = 0.62 * len(names) + 0.07 * max(map(len, names)) + 1.4
    if ax is None:
        ax = make_figure(size + 0.5, size).subplots()
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    counts = confusion_matrix(y_true[is_labelled], y_pred[is_labelled], labels=range(len(names)))
    totals = counts.sum(axis=1)
    fractions = counts / np.maximum(totals, 1)[:, None]
    display = ConfusionMatrixDisplay(
        fractions,
        display_labels=[f"{name}  ({n:,})" for name, n in zip(names, totals, strict=True)],
    )
    display.plot(
        ax=ax,
        cmap="Blues",
        colorbar=False,
        values_format=".0%",
        im_kw={"vmin": 0, "vmax": 1},
        text_kw={"fontsize": TEXT_SIZE},
    )
    for (row, column), text in np.ndenumerate(display.text_):
        fraction = fractions[row, column]
        # sklearn switches at half of the largest entry, but this colour scale is fixed to [0, 1].
        text.set_color("white" if fraction > 0.55 else DARK)
        if fraction == 0:
            text.set_text("")  # many zeros would hide the errors
        elif fraction < 0.005:
            text.set_text("<1%")
    rotation: dict[str, Any] = {"rotation": 0}
    if max(map(len, names)) > 6:
        rotation = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **rotation)
    ax.set_xlabel("predicted", fontsize=TEXT_SIZE)
    ax.set_ylabel("true (count)", fontsize=TEXT_SIZE)
    ax.tick_params(length=0, labelsize=SMALL_SIZE, labelcolor=DARK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    edges = np.arange(len(names) + 1) - 0.5
    ax.hlines(edges, -0.5, len(names) - 0.5, color="white", linewidth=1.5)
    ax.hlines(edges, -0.5, len(names) - 0.5, color=LIGHT, linewidth=0.6)
    return ax


def draw_strip(
    ax: Axes,
    times: np.ndarray,
    codes: np.ndarray,
    colours: Sequence[str],
    *,
    bottom: float,
    top: float,
) -> None:
    """Draws a strip coloured by the class of the nearest time."""
    from matplotlib.colors import ListedColormap

    low, high = get_limits(times)
    edges = np.concatenate([[low], (times[1:] + times[:-1]) / 2, [high]])
    ax.pcolormesh(
        edges,
        [bottom, top],
        np.ma.masked_less(codes, 0)[None],
        cmap=ListedColormap(list(colours)),
        vmin=-0.5,
        vmax=len(colours) - 0.5,
        rasterized=True,
    )
