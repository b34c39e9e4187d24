"""Classes: probabilities over time, series with their labels, confusions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.arguments import as_codes, as_floats, as_names, as_times, span
from latent_morph.plots.figures import (
    FAINT,
    INK,
    MAIN,
    SMALL,
    TEXT,
    class_colours,
    legend_style,
    new_figure,
    patch,
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
        times: (T,), in any order; the finer, the smoother.
        probabilities: (T, K), each row summing to 1.
        class_names: K names.
        labels: True classes: (S,) at `observed_times` where those are given and as many,
            otherwise (T,). Names, or positions in `class_names` if those are text; None, NaN and
            negative positions leave a gap.
        observed_times: (S,), when the series was observed, shown as ticks below.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: Shapes disagree, or a label is no class.
    """
    times, order = as_times("times", times)
    share = as_floats("probabilities", probabilities)
    names = as_names(class_names)
    if share.shape != (len(times), len(names)):
        raise ValueError(
            f"probabilities has shape {share.shape}; wanted {(len(times), len(names))} "
            "for these times and class_names"
        )
    colours = class_colours(len(names))
    strip = None
    if labels is not None:
        at: np.ndarray = times
        rows = order
        if observed_times is not None and np.shape(labels) == np.shape(observed_times):
            at, rows = as_times("observed_times", observed_times)
        strip = (at, as_codes("labels", labels, class_names, shape=(len(at),))[rows])
    if ax is None:
        ax = new_figure(7.2, 3.0).subplots()
    ax.stackplot(
        times,
        *share[order].T,
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
        seen, _ = as_times("observed_times", observed_times)
        middle = floor - 0.075
        ax.plot(
            seen, np.full(len(seen), middle), "|", color=INK, markersize=6, markeredgewidth=0.8
        )
        ticks[middle] = "observed"
        floor -= 0.12
    if strip is not None:
        middle = floor - 0.095
        draw_strip(ax, *strip, colours, bottom=middle - 0.04, top=middle + 0.04)
        ticks[middle] = "true class"
        floor -= 0.15
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(floor, 1)
    ax.set_xlim(*span(times))
    ax.spines["left"].set_bounds(0, 1)
    for tick, place in zip(ax.yaxis.get_major_ticks(), ticks, strict=True):
        if place < 0:
            tick.tick1line.set_visible(False)
    ax.set_xlabel("time", fontsize=TEXT)
    ax.set_ylabel("probability", fontsize=TEXT, y=(0.5 - floor) / (1 - floor))
    # Beside the areas, first class at the bottom as in the stack.
    handles, shown = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1], shown[::-1], loc="upper left", bbox_to_anchor=(1.01, 1), **legend_style()
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
        values: (T, C), NaN where nothing was observed.
        labels: (T,), the true classes, as in `plot_point_probabilities`.
        predicted: (T,), the predicted classes, likewise.
        class_names: K names.
        channel_names: C names.

    Returns:
        The axes, shape (C + 1,): the channels, then the strips.

    Raises:
        ValueError: Shapes disagree, or a label is no class.
    """
    times, order = as_times("times", times)
    table = as_floats("values", values)
    if table.ndim != 2 or len(table) != len(times) or not table.shape[1]:
        raise ValueError(f"values has shape {table.shape}; wanted ({len(times)}, C) as times")
    n_channels = table.shape[1]
    titles = [""] * n_channels if channel_names is None else [str(name) for name in channel_names]
    if len(titles) != n_channels:
        raise ValueError(f"channel_names has {len(titles)} names; wanted {n_channels}")
    names = as_names(class_names)
    shape = (len(times),)
    codes = [
        as_codes("labels", labels, class_names, shape=shape)[order],
        as_codes("predicted", predicted, class_names, shape=shape)[order],
    ]
    table = table[order]
    colours = class_colours(len(names))
    height = min(1.2, max(0.42, 5.0 / n_channels))
    figure = new_figure(8.4, height * n_channels + 1.0, hspace=0.06, h_pad=0.0)
    axes = figure.subplots(
        n_channels + 1, 1, sharex=True, height_ratios=[height] * n_channels + [0.42]
    )
    for ax, column, title in zip(axes, table.T, titles, strict=False):
        seen = np.isfinite(column)
        dots = float(np.clip(400 / max(seen.sum(), 1), 1.2, 3.5))
        ax.plot(times[seen], column[seen], color=MAIN, linewidth=0.7, alpha=0.55)
        ax.plot(times[seen], column[seen], ".", color=MAIN, markersize=dots)
        style_axes(ax)
        ax.locator_params(axis="y", nbins=3 if height > 0.7 else 2)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0, labelbottom=False)
        ax.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=SMALL)
        ax.margins(y=0.15)
        if not seen.any():
            ax.set_yticks([])  # an empty axis would be marked from -0.05 to 0.05
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
    low, high = span(times)
    strips.set_xlim(low - 0.008 * (high - low), high + 0.008 * (high - low))  # whole dots
    strips.set_xlabel("time", fontsize=TEXT)
    occurring = np.unique(np.concatenate(codes))
    patches = [patch(colours[code], names[code]) for code in occurring if code >= 0]
    figure.legend(handles=patches, loc="outside right upper", **legend_style())
    return axes


def plot_confusion(
    true: ArrayLike, predicted: ArrayLike, class_names: Sequence[Any], *, ax: Axes | None = None
) -> Axes:
    """Draws the confusion matrix in shares of each true class, whose counts stand at the left.

    Args:
        true: True classes, of any shape: names, or positions in `class_names` if those are text.
            What has no class (None, NaN, a negative position) in either is left out.
        predicted: Predicted classes, of the same shape.
        class_names: K names.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: Shapes disagree, or a label is no class.
    """
    names = as_names(class_names)
    actual = as_codes("true", true, class_names)
    guessed = as_codes("predicted", predicted, class_names, shape=actual.shape)
    known = (actual >= 0) & (guessed >= 0)
    if not known.any():
        raise ValueError("true and predicted have no labelled element in common; wanted one")
    size = 0.62 * len(names) + 0.07 * max(map(len, names)) + 1.4
    if ax is None:
        ax = new_figure(size + 0.5, size).subplots()
    from sklearn.metrics import ConfusionMatrixDisplay, confusion_matrix

    counts = confusion_matrix(actual[known], guessed[known], labels=range(len(names)))
    totals = counts.sum(axis=1)
    display = ConfusionMatrixDisplay(
        counts / np.maximum(totals, 1)[:, None],
        display_labels=[f"{name}  ({n:,})" for name, n in zip(names, totals, strict=True)],
    )
    display.plot(
        ax=ax,
        cmap="Blues",
        colorbar=False,
        values_format=".0%",
        im_kw={"vmin": 0, "vmax": 1},
        text_kw={"fontsize": TEXT},
    )
    for (row, column), text in np.ndenumerate(display.text_):
        share = counts[row, column] / max(totals[row], 1)
        # sklearn switches at half of the largest share; the scale here is that of all shares.
        text.set_color("white" if share > 0.55 else INK)
        if counts[row, column] == 0:
            text.set_text("")  # a field of zeros hides the errors there are
        elif share < 0.005:
            text.set_text("<1%")
    long = max(map(len, names)) > 6
    tilt: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **tilt if long else {"rotation": 0})
    ax.set_xlabel("predicted", fontsize=TEXT)
    ax.set_ylabel("true (count)", fontsize=TEXT)
    ax.tick_params(length=0, labelsize=SMALL, labelcolor=INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    edges = np.arange(len(names) + 1) - 0.5
    ax.hlines(edges, -0.5, len(names) - 0.5, color="white", linewidth=1.5)
    ax.hlines(edges, -0.5, len(names) - 0.5, color=FAINT, linewidth=0.6)
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
    """Colours the stretch nearest to each time by its class."""
    from matplotlib.colors import ListedColormap

    low, high = span(times)
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
