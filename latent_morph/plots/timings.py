"""Plots of the integration times and scores of several ODEs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latent_morph.plots.arguments import get_column
from latent_morph.plots.figures import (
    DARK,
    GREY,
    LIGHT,
    PRIMARY,
    SMALL_SIZE,
    TEXT_SIZE,
    make_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_ode_table(
    rows: Sequence[Mapping[str, Any]], *, score_name: str, ax: Axes | None = None
) -> Axes:
    """Draws the integration time of each ODE, fastest at the top, beside its score.

    Times are points on a logarithmic axis, where bars would have an arbitrary length. Scores are
    numbers, as they often differ too little to be drawn.

    Args:
        rows: One per ODE, with `ode` and `integration_ms_mean`; `integration_ms_std`, `score` and
            `ratio_to_morph` are optional.
        score_name: Heading of the scores.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: There are no rows, or one lacks `ode` or a positive time.
    """
    if not len(rows):
        raise ValueError("rows must have one row per ODE, got none")
    for i, row in enumerate(rows):
        if "ode" not in row:
            raise ValueError(f"rows[{i}] must have the key 'ode', got {list(row)}")
    means = get_column(rows, "integration_ms_mean")
    if not ((means > 0) & np.isfinite(means)).all():
        raise ValueError(f"integration_ms_mean must be positive, got {means.tolist()}")
    order = np.argsort(means, kind="stable")
    means = means[order]
    rows = [rows[i] for i in order]
    stds = np.nan_to_num(get_column(rows, "integration_ms_std"))
    scores, ratios = get_column(rows, "score"), get_column(rows, "ratio_to_morph")
    if ax is None:
        ax = make_figure(7.6, 0.32 * len(rows) + 1.2).subplots()
    low, high = means.min() / 1.8, (means + stds).max() * 1.5
    heights = np.arange(len(rows))
    for y, row, mean, std in zip(heights, rows, means, stds, strict=True):
        colour = PRIMARY if str(row["ode"]).startswith("morph") else GREY
        ax.plot([low, mean], [y, y], color=LIGHT, linewidth=0.8, zorder=1)
        # The bar ends at the axis limit: below the mean it could reach zero.
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
    style_axes(ax)
    ax.grid(False)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    _set_log_ticks(ax, low, high)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(heights, [str(row["ode"]) for row in rows])
    ax.tick_params(axis="y", length=0, labelsize=TEXT_SIZE, labelcolor=DARK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("integration time (ms, logarithmic)", fontsize=TEXT_SIZE)
    smallest = np.abs(scores[np.isfinite(scores) & (scores != 0)]).min(initial=1.0)
    decimals = min(max(2 - math.floor(math.log10(smallest)), 1), 6)  # three digits of the smallest
    right = 6.0
    for heading, column, format_value in (
        (score_name, scores, f"{{:.{decimals}f}}".format),
        ("time / morph", ratios, lambda x: f"× {x:,.0f}" if x >= 100 else f"× {x:.3g}"),
    ):
        if not np.isfinite(column).any():
            continue
        cells = [format_value(value) if np.isfinite(value) else "–" for value in column]
        right += 14 + 5.2 * max(map(len, [heading, *cells]))  # points
        for y, text in zip([-0.9, *heights], [heading, *cells], strict=True):
            ax.annotate(
                text,
                (1.0, float(y)),
                xycoords=ax.get_yaxis_transform(),
                xytext=(right, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=SMALL_SIZE if y < 0 else TEXT_SIZE,
                color=GREY if y < 0 else DARK,
                annotation_clip=False,
            )
    return ax


def _set_log_ticks(ax: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Over a short range, powers of ten alone would give too few ticks.
    decades = math.log10(high / low)
    subs = (1, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", color=LIGHT)
