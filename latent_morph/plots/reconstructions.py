"""Plots of reconstructions with their uncertainty and the observations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.arguments import as_floats, as_times
from latent_morph.plots.figures import (
    DARK,
    LEGEND_STYLE,
    PRIMARY,
    SECONDARY,
    TEXT_SIZE,
    make_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve: TypeAlias = tuple[ArrayLike, ArrayLike]

_LEGEND_ORDER = ("observed", "reconstruction", "± 2 std", "truth")


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
    """Draws one channel: the mean with a band of 2 std, the observations, and the truth dashed.

    Args:
        times: (T,), in any order.
        mean: (T,), the reconstruction at `times`.
        std: (T,), its standard deviation.
        observed: Times and values of the observations, each (S,); NaN is left out.
        truth: Times and values of the truth, each (R,).
        channel_name: Label of the vertical axis.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: Lengths disagree.
    """
    if ax is None:
        ax = make_figure(6.4, 3.0).subplots()
    draw_reconstruction(ax, times, mean, std, observed=observed, truth=truth)
    ax.set_xlabel("time", fontsize=TEXT_SIZE)
    ax.set_ylabel(channel_name, fontsize=TEXT_SIZE)
    handles, names = get_legend_entries([ax])
    ax.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, **LEGEND_STYLE)
    return ax


def plot_reconstructions(cases: Sequence[Mapping[str, Any]], *, columns: int = 3) -> np.ndarray:
    """Draws small multiples of `plot_reconstruction` below one legend.

    Args:
        cases: Keyword arguments of `plot_reconstruction` for each panel; `channel_name` is its
            title.
        columns: Largest number of panels per row.

    Returns:
        The axes, one per case, shape (len(cases),).

    Raises:
        TypeError: A case has an argument unknown to `plot_reconstruction`, or lacks one.
        ValueError: There are no cases, or `columns` is below 1.
    """
    if not len(cases):
        raise ValueError("cases must have at least one case, got none")
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    columns = min(columns, len(cases))
    rows = math.ceil(len(cases) / columns)
    figure = make_figure(max(3.1 * columns, 4.2), 1.9 * rows + 0.6)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[len(cases) :]:
        unused.remove()
    axes = axes[: len(cases)]
    for i, (ax, case) in enumerate(zip(axes, cases, strict=True)):
        arguments = dict(case)
        title = arguments.pop("channel_name", "")
        draw_reconstruction(ax, **arguments)
        ax.set_title(title, fontsize=TEXT_SIZE, color=DARK, loc="left")
        if i + columns >= len(cases):  # no panel below
            ax.set_xlabel("time", fontsize=TEXT_SIZE)
    handles, names = get_legend_entries(axes)
    figure.legend(handles, names, loc="outside upper left", ncols=len(names), **LEGEND_STYLE)
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
    """Draws the mean, its band, the observations and the truth into one panel."""
    times, order = as_times("times", times)
    mean = as_floats("mean", mean, shape=times.shape)[order]
    observed_label, mean_label, band_label, truth_label = _LEGEND_ORDER
    drawn = [mean]
    if observed is not None:
        at, rows = as_times("observed times", observed[0])
        values = as_floats("observed values", observed[1], shape=at.shape)[rows]
        drawn.append(values)
        ax.plot(at, values, "o", color=DARK, markersize=3.6, label=observed_label, zorder=4)
    ax.plot(times, mean, color=PRIMARY, linewidth=1.6, label=mean_label, zorder=3)
    if truth is not None:
        at, rows = as_times("truth times", truth[0])
        values = as_floats("truth values", truth[1], shape=at.shape)[rows]
        drawn.append(values)
        ax.plot(at, values, "--", color=SECONDARY, linewidth=1.3, label=truth_label, zorder=3.5)
    finite = np.concatenate(drawn)
    finite = finite[np.isfinite(finite)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    span = float(high - low) or 1.0
    if std is not None:
        half_width = 2 * as_floats("std", std, shape=times.shape)[order]
        lower, upper = mean - half_width, mean + half_width
        ax.fill_between(
            times,
            lower,
            upper,
            color=PRIMARY,
            alpha=0.18,
            linewidth=0,
            label=band_label,
            zorder=1,
        )
        band = np.concatenate([lower, upper])
        band = band[np.isfinite(band)]
        # Limited, so that a wide band between observations does not flatten the curve.
        low = max(low - 0.6 * span, band.min(initial=low))
        high = min(high + 0.6 * span, band.max(initial=high))
    pad = 0.06 * (float(high - low) or 1.0)
    ax.set_ylim(low - pad, high + pad)
    style_axes(ax)
    ax.margins(x=0.02)


def get_legend_entries(axes: Iterable[Axes]) -> tuple[list[Any], list[str]]:
    """Returns handles and labels of the parts drawn in any of the axes, in a fixed order."""
    handles_by_name: dict[str, Any] = {}
    for ax in axes:
        handles, names = ax.get_legend_handles_labels()
        handles_by_name |= dict(zip(names, handles, strict=True))
    order = [name for name in _LEGEND_ORDER if name in handles_by_name]
    return [handles_by_name[name] for name in order], order
