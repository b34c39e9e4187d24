"""Figures of reconstructions, labelled series, learning curves and timings.

Every function draws into `ax`, or into a figure of its own that pyplot never hears of, and returns
the axes; `save_figure` takes either. matplotlib is imported on the first call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.records import AnyPath, atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.text import Text

Curve: TypeAlias = tuple[ArrayLike, ArrayLike]
Drawn: TypeAlias = Any  # axes, an array of axes, or a figure

# Paul Tol's "bright": seven colours told apart by colour-blind readers, and in print.
CLASS_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
_MAIN, _SECOND = CLASS_COLOURS[0], CLASS_COLOURS[1]
_INK, _SOFT, _FAINT = "#222222", "#666666", "#D0D0D0"
_SMALL, _TEXT = 8.5, 9.5  # points


def plot_reconstruction(
    times: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike | None = None,
    *,
    observed: Curve | None = None,
    truth: Curve | None = None,
    channel_name: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Draws one channel: the mean with a band of 2 std, the points observed, the truth dashed.

    Args:
        times: (T,), in any order.
        mean: (T,), the reconstruction there.
        std: (T,), its standard deviation.
        observed: Times and values seen by the model, each (S,); NaN is left out.
        truth: Times and values, each (R,).
        channel_name: Label of the vertical axis.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: Lengths disagree.
    """
    if ax is None:
        ax = _figure(6.4, 3.0).subplots()
    _draw_reconstruction(ax, times, mean, std, observed=observed, truth=truth)
    ax.set_xlabel("time", fontsize=_TEXT)
    ax.set_ylabel(channel_name, fontsize=_TEXT)
    handles, names = _reconstruction_legend([ax])
    ax.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, **_legend_style())
    return ax


def plot_reconstructions(cases: Sequence[Mapping[str, Any]], *, columns: int = 3) -> np.ndarray:
    """Draws small multiples of `plot_reconstruction` below one legend.

    Args:
        cases: The arguments of `plot_reconstruction` by name, for each panel; `channel_name`
            is its title.
        columns: Panels in a row, at most.

    Returns:
        The axes, one for each case, shape (len(cases),).

    Raises:
        TypeError: A case has an argument unknown to `plot_reconstruction`, or lacks one.
        ValueError: There are no cases, or `columns` is below 1.
    """
    if not len(cases):
        raise ValueError("cases is empty; wanted at least one")
    if columns < 1:
        raise ValueError(f"columns is {columns}; wanted at least 1")
    columns = min(columns, len(cases))
    rows = math.ceil(len(cases) / columns)
    figure = _figure(max(3.1 * columns, 4.2), 1.9 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(cases) :]:
        unused.remove()
    axes = axes[: len(cases)]
    for i, (ax, case) in enumerate(zip(axes, cases, strict=True)):
        arguments = dict(case)
        title = arguments.pop("channel_name", "")
        _draw_reconstruction(ax, **arguments)
        ax.set_title(title, fontsize=_TEXT, color=_INK, loc="left")
        if i + columns >= len(cases):  # no panel beneath it
            ax.set_xlabel("time", fontsize=_TEXT)
    handles, names = _reconstruction_legend(axes)
    figure.legend(handles, names, loc="outside upper left", ncols=len(names), **_legend_style())
    return axes


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
        labels: True classes: (T,), or (S,) where `observed_times` are (S,) and S differs from T.
            Names, or positions in `class_names` if those are text; None, NaN and negative
            positions leave a gap.
        observed_times: (S,), when the series was observed, shown as ticks below.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: Shapes disagree, or a label is no class.
    """
    times, order = _as_times("times", times)
    share = _as_floats("probabilities", probabilities)
    names = _as_names(class_names)
    if share.shape != (len(times), len(names)):
        raise ValueError(
            f"probabilities has shape {share.shape}; wanted {(len(times), len(names))} "
            "for these times and class_names"
        )
    colours = _class_colours(len(names))
    strip = None
    if labels is not None:
        at: np.ndarray = times
        rows = order
        if observed_times is not None and np.shape(labels) != (len(times),):
            at, rows = _as_times("observed_times", observed_times)
        strip = (at, _as_codes("labels", labels, class_names, shape=(len(at),))[rows])
    if ax is None:
        ax = _figure(7.2, 3.0).subplots()
    ax.stackplot(
        times,
        *share[order].T,
        labels=names,
        colors=colours,
        alpha=0.85,
        edgecolor="white",
        linewidth=0.6,
    )
    _style(ax)
    ax.grid(False)
    ticks = {0.0: "0", 0.25: "", 0.5: "0.5", 0.75: "", 1.0: "1"}
    floor = 0.0
    if observed_times is not None:
        seen, _ = _as_times("observed_times", observed_times)
        middle = floor - 0.075
        ax.plot(
            seen, np.full(len(seen), middle), "|", color=_INK, markersize=6, markeredgewidth=0.8
        )
        ticks[middle] = "observed"
        floor -= 0.12
    if strip is not None:
        middle = floor - 0.095
        _draw_strip(ax, *strip, colours, bottom=middle - 0.04, top=middle + 0.04)
        ticks[middle] = "true class"
        floor -= 0.15
    ax.set_yticks(list(ticks), list(ticks.values()))
    ax.set_ylim(floor, 1)
    ax.set_xlim(*_span(times))
    ax.spines["left"].set_bounds(0, 1)
    for tick, place in zip(ax.yaxis.get_major_ticks(), ticks, strict=True):
        if place < 0:
            tick.tick1line.set_visible(False)
    ax.set_xlabel("time", fontsize=_TEXT)
    ax.set_ylabel("probability", fontsize=_TEXT, y=(0.5 - floor) / (1 - floor))
    # Beside the areas, first class at the bottom as in the stack.
    handles, shown = ax.get_legend_handles_labels()
    ax.legend(
        handles[::-1], shown[::-1], loc="upper left", bbox_to_anchor=(1.01, 1), **_legend_style()
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
    times, order = _as_times("times", times)
    table = _as_floats("values", values)
    if table.ndim != 2 or len(table) != len(times) or not table.shape[1]:
        raise ValueError(f"values has shape {table.shape}; wanted ({len(times)}, C) as times")
    n_channels = table.shape[1]
    titles = [""] * n_channels if channel_names is None else [str(name) for name in channel_names]
    if len(titles) != n_channels:
        raise ValueError(f"channel_names has {len(titles)} names; wanted {n_channels}")
    names = _as_names(class_names)
    shape = (len(times),)
    codes = [
        _as_codes("labels", labels, class_names, shape=shape)[order],
        _as_codes("predicted", predicted, class_names, shape=shape)[order],
    ]
    table = table[order]
    colours = _class_colours(len(names))
    height = min(1.2, max(0.42, 5.0 / n_channels))
    figure = _figure(8.4, height * n_channels + 1.0, hspace=0.06, h_pad=0.0)
    axes = figure.subplots(
        n_channels + 1, 1, sharex=True, height_ratios=[height] * n_channels + [0.42]
    )
    for ax, column, title in zip(axes, table.T, titles, strict=False):
        seen = np.isfinite(column)
        dots = float(np.clip(400 / max(seen.sum(), 1), 1.2, 3.5))
        ax.plot(times[seen], column[seen], color=_MAIN, linewidth=0.7, alpha=0.55)
        ax.plot(times[seen], column[seen], ".", color=_MAIN, markersize=dots)
        _style(ax)
        ax.locator_params(axis="y", nbins=3 if height > 0.7 else 2)
        ax.spines["bottom"].set_visible(False)
        ax.tick_params(axis="x", length=0, labelbottom=False)
        ax.set_ylabel(title, rotation=0, ha="right", va="center", fontsize=_SMALL)
        ax.margins(y=0.15)
        if not seen.any():
            ax.set_yticks([])  # an empty axis would be marked from -0.05 to 0.05
    figure.align_ylabels(axes[:-1])
    strips = axes[-1]
    for row, classes in enumerate(codes):
        _draw_strip(strips, times, classes, colours, bottom=-row - 0.4, top=-row + 0.4)
    _style(strips)
    strips.grid(False)
    strips.spines["left"].set_visible(False)
    strips.set_yticks([0, -1], ["true", "predicted"])
    strips.tick_params(axis="y", length=0)
    strips.set_ylim(-1.5, 0.5)
    low, high = _span(times)
    strips.set_xlim(low - 0.008 * (high - low), high + 0.008 * (high - low))  # whole dots
    strips.set_xlabel("time", fontsize=_TEXT)
    occurring = np.unique(np.concatenate(codes))
    patches = [_patch(colours[code], names[code]) for code in occurring if code >= 0]
    figure.legend(handles=patches, loc="outside right upper", **_legend_style())
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
    names = _as_names(class_names)
    actual = _as_codes("true", true, class_names)
    guessed = _as_codes("predicted", predicted, class_names, shape=actual.shape)
    known = (actual >= 0) & (guessed >= 0)
    if not known.any():
        raise ValueError("true and predicted have no labelled element in common; wanted one")
    size = 0.62 * len(names) + 0.07 * max(map(len, names)) + 1.4
    if ax is None:
        ax = _figure(size + 0.5, size).subplots()
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
        text_kw={"fontsize": _TEXT},
    )
    for (row, column), text in np.ndenumerate(display.text_):
        share = counts[row, column] / max(totals[row], 1)
        # sklearn switches at half of the largest share; the scale here is that of all shares.
        text.set_color("white" if share > 0.55 else _INK)
        if counts[row, column] == 0:
            text.set_text("")  # a field of zeros hides the errors there are
        elif share < 0.005:
            text.set_text("<1%")
    long = max(map(len, names)) > 6
    tilt: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
    ax.set_xticks(range(len(names)), names, **tilt if long else {"rotation": 0})
    ax.set_xlabel("predicted", fontsize=_TEXT)
    ax.set_ylabel("true (count)", fontsize=_TEXT)
    ax.tick_params(length=0, labelsize=_SMALL, labelcolor=_INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    edges = np.arange(len(names) + 1) - 0.5
    ax.hlines(edges, -0.5, len(names) - 0.5, color="white", linewidth=1.5)
    ax.hlines(edges, -0.5, len(names) - 0.5, color=_FAINT, linewidth=0.6)
    return ax


def plot_history(
    history: Sequence[Mapping[str, Any]],
    *,
    best_epoch: int | None = None,
    score_name: str = "score",
) -> np.ndarray:
    """Draws learning curves: losses at the left, the validation score, if any, at the right.

    Args:
        history: A row for each epoch, with `epoch` and any of `train_loss`, `validation_loss` and
            `validation_score`. None and NaN are left out.
        best_epoch: The epoch whose weights were kept, to be marked.
        score_name: Label of the right panel.

    Returns:
        The axes, shape (2,), or (1,) if one of the two has nothing to show.

    Raises:
        ValueError: There are no rows, one lacks `epoch`, or none holds a loss or a score.
    """
    if not len(history):
        raise ValueError("history is empty; wanted a row for each epoch")
    for i, row in enumerate(history):
        if "epoch" not in row:
            raise ValueError(f"history[{i}] has no 'epoch'; it has {list(row)}")
    epochs = np.array([row["epoch"] for row in history], dtype=float)
    panels = []
    for title, keys in (
        ("loss", {"train_loss": ("training", _MAIN), "validation_loss": ("validation", _SECOND)}),
        (score_name, {"validation_score": ("validation", _SECOND)}),
    ):
        curves = [(_column(history, key), *look) for key, look in keys.items()]
        curves = [curve for curve in curves if np.isfinite(curve[0]).any()]
        if curves:
            panels.append((title, curves))
    if not panels:
        raise ValueError(
            "history holds no number under 'train_loss', 'validation_loss' or 'validation_score'"
        )
    axes = _figure(4.4 * len(panels), 2.9).subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels, strict=True):
        for curve, _, colour in curves:
            shown = np.isfinite(curve)
            lone = {"marker": "."} if shown.sum() == 1 else {}
            ax.plot(epochs[shown], curve[shown], color=colour, linewidth=1.4, **lone)
        _style(ax)
        _history_ticks(ax)
        ax.set_xlabel("epoch", fontsize=_TEXT)
        ax.set_title(title, fontsize=_TEXT, color=_INK, loc="left")
        ax.margins(x=0.02)
        _leave_out_the_start(ax, [curve for curve, _, _ in curves])
        if best_epoch is not None:
            _mark_best(ax, epochs, curves[-1][0], best_epoch, title if title != "loss" else "")
        _label_ends(ax, [(name, curve[np.isfinite(curve)][-1], c) for curve, name, c in curves])
    return axes


def plot_ode_table(
    rows: Sequence[Mapping[str, Any]], *, score_name: str, ax: Axes | None = None
) -> Axes:
    """Draws the time each ODE takes to integrate, fastest at the top, beside its score.

    Times are points on a logarithmic axis, where bars would have no honest foot. Scores stand as
    numbers: among ODEs they often differ too little for a second axis to show.

    Args:
        rows: For each ODE, `ode` and `integration_ms_mean`; `integration_ms_std`, `score` and
            `ratio_to_morph` where known.
        score_name: Heading of the scores.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: There are no rows, or one lacks its ODE or a positive time.
    """
    if not len(rows):
        raise ValueError("rows is empty; wanted one for each ODE")
    for i, row in enumerate(rows):
        if "ode" not in row:
            raise ValueError(f"rows[{i}] has no 'ode'; it has {list(row)}")
    means = _column(rows, "integration_ms_mean")
    if not ((means > 0) & np.isfinite(means)).all():
        raise ValueError(f"integration_ms_mean is {means.tolist()}; wanted positive numbers")
    order = np.argsort(means, kind="stable")
    means = means[order]
    rows = [rows[i] for i in order]
    spread = np.nan_to_num(_column(rows, "integration_ms_std"))
    scores, ratios = _column(rows, "score"), _column(rows, "ratio_to_morph")
    if ax is None:
        ax = _figure(7.6, 0.32 * len(rows) + 1.2).subplots()
    low, high = means.min() / 1.8, (means + spread).max() * 1.5
    places = np.arange(len(rows))
    for y, row, mean, std in zip(places, rows, means, spread, strict=True):
        colour = _MAIN if str(row["ode"]).startswith("morph") else _SOFT
        ax.plot([low, mean], [y, y], color=_FAINT, linewidth=0.8, zorder=1)
        # A std as large as the mean would reach zero, which a logarithm has not.
        ax.errorbar(
            mean,
            y,
            xerr=[[min(std, mean - low)], [std]],
            fmt="o",
            color=colour,
            markersize=6,
            elinewidth=1.4,
            capsize=2.5,
        )
    _style(ax)
    ax.grid(False)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    _plain_log_ticks(ax, low, high)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(places, [str(row["ode"]) for row in rows])
    ax.tick_params(axis="y", length=0, labelsize=_TEXT, labelcolor=_INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("integration time (ms, logarithmic)", fontsize=_TEXT)
    smallest = np.abs(scores[np.isfinite(scores) & (scores != 0)]).min(initial=1.0)
    decimals = min(max(2 - math.floor(math.log10(smallest)), 1), 6)  # three digits of the least
    right = 6.0
    for heading, column, form in (
        (score_name, scores, f"{{:.{decimals}f}}".format),
        ("time / morph", ratios, lambda x: f"× {x:,.0f}" if x >= 100 else f"× {x:.3g}"),
    ):
        if not np.isfinite(column).any():
            continue
        cells = [form(value) if np.isfinite(value) else "–" for value in column]
        right += 14 + 5.2 * max(map(len, [heading, *cells]))  # points
        for y, text in zip([-0.9, *places], [heading, *cells], strict=True):
            ax.annotate(
                text,
                (1.0, float(y)),
                xycoords=ax.get_yaxis_transform(),
                xytext=(right, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=_SMALL if y < 0 else _TEXT,
                color=_SOFT if y < 0 else _INK,
                annotation_clip=False,
            )
    return ax


def annotate_source(axes_or_figure: Drawn, text: str) -> Text:
    """Puts a small note, such as "synthetic stand-in", at the lower right of the figure.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        text: The note.

    Returns:
        The note's artist.
    """
    figure = _figure_of(axes_or_figure)
    style: dict[str, Any] = {"ha": "right", "fontsize": 7.5, "color": _SOFT, "style": "italic"}
    if figure.get_layout_engine() is not None and not figure.get_supxlabel():
        return figure.supxlabel(text, x=0.995, **style)  # the layout makes room for it
    return figure.text(0.995, 0.005, text, va="bottom", **style)


def save_figure(axes_or_figure: Drawn, path: AnyPath) -> Path:
    """Writes a PNG, whole or not at all, and leaves the figure open.

    Args:
        axes_or_figure: Axes, an array of axes, or a figure.
        path: The file, ending in `.png`. Its folder must exist.

    Returns:
        The path written.

    Raises:
        TypeError: `axes_or_figure` is none of these.
        ValueError: `path` ends otherwise.
        OSError: The folder is absent or not writable.
    """
    target = Path(path)
    if target.suffix.lower() != ".png":
        raise ValueError(f"path is {str(path)!r}; wanted a name ending in .png")
    figure = _figure_of(axes_or_figure)
    with atomic_path(target) as temporary:
        figure.savefig(temporary, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    return target


# Parts of pictures

_RECONSTRUCTION_PARTS = ("observed", "reconstruction", "± 2 std", "truth")


def _draw_reconstruction(
    ax: Axes,
    times: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike | None = None,
    *,
    observed: Curve | None = None,
    truth: Curve | None = None,
) -> None:
    times, order = _as_times("times", times)
    middle = _as_floats("mean", mean, shape=times.shape)[order]
    seen_name, mean_name, band_name, truth_name = _RECONSTRUCTION_PARTS
    heights = [middle]
    if observed is not None:
        seen, rows = _as_times("observed times", observed[0])
        points = _as_floats("observed values", observed[1], shape=seen.shape)[rows]
        heights.append(points)
        ax.plot(seen, points, "o", color=_INK, markersize=3.6, label=seen_name, zorder=4)
    ax.plot(times, middle, color=_MAIN, linewidth=1.6, label=mean_name, zorder=3)
    if truth is not None:
        exact, rows = _as_times("truth times", truth[0])
        line = _as_floats("truth values", truth[1], shape=exact.shape)[rows]
        heights.append(line)
        ax.plot(exact, line, "--", color=_SECOND, linewidth=1.3, label=truth_name, zorder=3.5)
    finite = np.concatenate(heights)
    finite = finite[np.isfinite(finite)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    span = float(high - low) or 1.0
    if std is not None:
        half = 2 * _as_floats("std", std, shape=times.shape)[order]
        ax.fill_between(
            times,
            middle - half,
            middle + half,
            color=_MAIN,
            alpha=0.18,
            linewidth=0,
            label=band_name,
            zorder=1,
        )
        band = np.concatenate([middle - half, middle + half])
        band = band[np.isfinite(band)]
        # A band that opens wide between observations must not flatten the curve within it.
        low = max(low - 0.6 * span, band.min(initial=low))
        high = min(high + 0.6 * span, band.max(initial=high))
    pad = 0.06 * (float(high - low) or 1.0)
    ax.set_ylim(low - pad, high + pad)
    _style(ax)
    ax.margins(x=0.02)


def _reconstruction_legend(axes: Iterable[Axes]) -> tuple[list[Any], list[str]]:
    """The parts drawn in any of the axes, once each and in their usual order."""
    found: dict[str, Any] = {}
    for ax in axes:
        handles, names = ax.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    order = [name for name in _RECONSTRUCTION_PARTS if name in found]
    return [found[name] for name in order], order


def _draw_strip(
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

    low, high = _span(times)
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


def _mark_best(ax: Axes, epochs: np.ndarray, curve: np.ndarray, best: int, score: str) -> None:
    ax.axvline(best, color=_SOFT, linewidth=0.9, linestyle=":", zorder=1)
    at = np.flatnonzero((epochs == best) & np.isfinite(curve))
    label = f"best: epoch {best}"
    if len(at):
        ax.plot(best, curve[at[0]], "o", color=_SECOND, markersize=5.5, zorder=4)
        label += f", {curve[at[0]]:.4g}" if score else ""
    # In the title's line, where no curve passes.
    ax.set_title(label, loc="right", fontsize=_SMALL, color=_SOFT)


def _leave_out_the_start(ax: Axes, curves: Sequence[np.ndarray]) -> None:
    """Narrows the axis, should the first epochs dwarf all that is learned afterwards."""
    early = max(1, len(curves[0]) // 20)
    later = np.concatenate([curve[early:] for curve in curves])
    later = later[np.isfinite(later)]
    if len(later) < 8:
        return
    low, high = float(later.min()), float(later.max())
    span = high - low
    bottom, top = ax.get_ylim()
    if span > 0 and (top > high + 2 * span or bottom < low - 2 * span):
        ax.set_ylim(low - 0.1 * span, high + 0.1 * span)


def _label_ends(ax: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Names each curve at its right end, apart from the others."""
    low, high = ax.get_ylim()
    places = [min(max((y - low) / (high - low), 0.0), 1.0) for _, y, _ in ends]
    order = np.argsort(places)
    for below, above in zip(order, order[1:], strict=False):
        short = 0.09 - (places[above] - places[below])
        if short > 0:
            places[below] -= short / 2
            places[above] += short / 2
    for (name, _, colour), y in zip(ends, places, strict=True):
        ax.text(1.015, y, name, color=colour, fontsize=_SMALL, va="center", transform=ax.transAxes)


def _plain_log_ticks(ax: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Over a short range the powers of ten alone would leave the axis all but unmarked.
    decades = math.log10(high / low)
    subs = (1, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", color=_FAINT)


def _history_ticks(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(
        MaxNLocator(integer=True, nbins=6, min_n_ticks=1, steps=[1, 2, 5, 10])
    )
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))


def _patch(colour: str, label: str) -> Any:  # noqa: ANN401
    from matplotlib.patches import Patch

    return Patch(facecolor=colour, label=label)


def _style(ax: Axes) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(_FAINT)
    ax.tick_params(color=_FAINT, labelcolor=_INK, labelsize=_SMALL, length=3)
    ax.grid(axis="y", color=_FAINT, linewidth=0.5, alpha=0.6)
    ax.set_axisbelow(True)


def _legend_style() -> dict[str, Any]:
    return {
        "frameon": False,
        "fontsize": _SMALL,
        "labelcolor": _INK,
        "handlelength": 1.6,
        "columnspacing": 1.4,
        "borderaxespad": 0.2,
    }


def _class_colours(n: int) -> list[str]:
    if n <= len(CLASS_COLOURS):
        return list(CLASS_COLOURS[:n])
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # No set so large is safe for all eyes; this one is at least ordered like the classes.
    return [to_hex(colormaps["turbo"](x)) for x in np.linspace(0.05, 0.95, n)]


# Figures and arguments


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "latent_morph[plot]"') from error


def _figure(width: float, height: float, **gaps: Any) -> Figure:  # noqa: ANN401
    """A figure that pyplot does not keep, so that nobody need close it."""
    _require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**gaps))
    FigureCanvasAgg(figure)
    return figure


def _figure_of(drawn: Drawn) -> Figure:
    _require_matplotlib()
    from matplotlib.figure import Figure

    first = drawn
    if isinstance(drawn, (np.ndarray, list, tuple)) and np.size(drawn):
        first = np.ravel(np.asarray(drawn, dtype=object))[0]
    figure: FigureBase | None = first if isinstance(first, Figure) else None
    if figure is None:
        figure = getattr(first, "figure", None)
    if figure is not None and not isinstance(figure, Figure):
        figure = figure.figure  # a subfigure's
    if not isinstance(figure, Figure):
        raise TypeError(
            f"axes_or_figure is {type(drawn).__name__}; wanted matplotlib axes or a figure"
        )
    return figure


def _as_floats(name: str, data: ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    array = np.asarray(data, dtype=float)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}")
    return array


def _as_times(name: str, times: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Sorted times, and the order that sorts what goes with them."""
    array = _as_floats(name, times)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} has shape {array.shape}; wanted (T,) with T >= 1")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
    order = np.argsort(array, kind="stable")
    return array[order], order


def _as_names(class_names: Sequence[Any]) -> list[str]:
    names = [str(name) for name in class_names]
    if not names:
        raise ValueError("class_names is empty; wanted at least one")
    return names


def _as_codes(
    name: str,
    labels: ArrayLike,
    class_names: Sequence[Any],
    *,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Positions in `class_names`, -1 for what has no class."""
    array = np.asarray(labels)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}")
    if array.dtype.kind in "iu" and all(isinstance(known, str) for known in class_names):
        if array.size and array.max() >= len(class_names):
            raise ValueError(f"{name} has class {array.max()}; wanted 0 .. {len(class_names) - 1}")
        return np.maximum(array.astype(int), -1)
    places = {known: i for i, known in enumerate(class_names)}
    codes = np.full(array.shape, -1)
    for where, label in np.ndenumerate(array):
        if label is None or label != label:  # NaN alone differs from itself
            continue
        if label not in places:
            raise ValueError(f"{name} has {label!r}; wanted one of {list(class_names)}")
        codes[where] = places[label]
    return codes


def _column(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """(len(rows),), NaN where a row has no number."""
    numbers = (row.get(key) for row in rows)
    return np.array([math.nan if number is None else number for number in numbers], dtype=float)


def _span(times: np.ndarray) -> tuple[float, float]:
    low, high = float(times[0]), float(times[-1])
    return (low, high) if high > low else (low - 0.5, high + 0.5)
