"""Series decoded at any time, with what was seen of them and how sure the model is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.arguments import as_floats, as_times
from latent_morph.plots.figures import (
    INK,
    MAIN,
    SECOND,
    TEXT,
    legend_style,
    new_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve: TypeAlias = tuple[ArrayLike, ArrayLike]

_RECONSTRUCTION_PARTS = ("observed", "reconstruction", "± 2 std", "truth")


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
        ax = new_figure(6.4, 3.0).subplots()
    draw_reconstruction(ax, times, mean, std, observed=observed, truth=truth)
    ax.set_xlabel("time", fontsize=TEXT)
    ax.set_ylabel(channel_name, fontsize=TEXT)
    handles, names = reconstruction_legend([ax])
    ax.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, **legend_style())
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
    figure = new_figure(max(3.1 * columns, 4.2), 1.9 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(cases) :]:
        unused.remove()
    axes = axes[: len(cases)]
    for i, (ax, case) in enumerate(zip(axes, cases, strict=True)):
        arguments = dict(case)
        title = arguments.pop("channel_name", "")
        draw_reconstruction(ax, **arguments)
        ax.set_title(title, fontsize=TEXT, color=INK, loc="left")
        if i + columns >= len(cases):  # no panel beneath it
            ax.set_xlabel("time", fontsize=TEXT)
    handles, names = reconstruction_legend(axes)
    figure.legend(handles, names, loc="outside upper left", ncols=len(names), **legend_style())
    return axes


def draw_reconstruction(
    ax: Axes,
    times: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike | None = None,
    *,
    observed: Curve | None = None,
    truth: Curve | None = None,
) -> None:
    """The curve, its band, and what is known, in one panel."""
    times, order = as_times("times", times)
    middle = as_floats("mean", mean, shape=times.shape)[order]
    seen_name, mean_name, band_name, truth_name = _RECONSTRUCTION_PARTS
    heights = [middle]
    if observed is not None:
        seen, rows = as_times("observed times", observed[0])
        points = as_floats("observed values", observed[1], shape=seen.shape)[rows]
        heights.append(points)
        ax.plot(seen, points, "o", color=INK, markersize=3.6, label=seen_name, zorder=4)
    ax.plot(times, middle, color=MAIN, linewidth=1.6, label=mean_name, zorder=3)
    if truth is not None:
        exact, rows = as_times("truth times", truth[0])
        line = as_floats("truth values", truth[1], shape=exact.shape)[rows]
        heights.append(line)
        ax.plot(exact, line, "--", color=SECOND, linewidth=1.3, label=truth_name, zorder=3.5)
    finite = np.concatenate(heights)
    finite = finite[np.isfinite(finite)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    span = float(high - low) or 1.0
    if std is not None:
        half = 2 * as_floats("std", std, shape=times.shape)[order]
        ax.fill_between(
            times,
            middle - half,
            middle + half,
            color=MAIN,
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
    style_axes(ax)
    ax.margins(x=0.02)


def reconstruction_legend(axes: Iterable[Axes]) -> tuple[list[Any], list[str]]:
    """The parts drawn in any of the axes, once each and in their usual order."""
    found: dict[str, Any] = {}
    for ax in axes:
        handles, names = ax.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    order = [name for name in _RECONSTRUCTION_PARTS if name in found]
    return [found[name] for name in order], order
