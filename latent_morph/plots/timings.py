"""ODEs side by side: what each costs, and what it scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latent_morph.plots.arguments import numbers_of
from latent_morph.plots.figures import FAINT, INK, MAIN, SMALL, SOFT, TEXT, new_figure, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    means = numbers_of(rows, "integration_ms_mean")
    if not ((means > 0) & np.isfinite(means)).all():
        raise ValueError(f"integration_ms_mean is {means.tolist()}; wanted positive numbers")
    order = np.argsort(means, kind="stable")
    means = means[order]
    rows = [rows[i] for i in order]
    spread = np.nan_to_num(numbers_of(rows, "integration_ms_std"))
    scores, ratios = numbers_of(rows, "score"), numbers_of(rows, "ratio_to_morph")
    if ax is None:
        ax = new_figure(7.6, 0.32 * len(rows) + 1.2).subplots()
    low, high = means.min() / 1.8, (means + spread).max() * 1.5
    places = np.arange(len(rows))
    for y, row, mean, std in zip(places, rows, means, spread, strict=True):
        colour = MAIN if str(row["ode"]).startswith("morph") else SOFT
        ax.plot([low, mean], [y, y], color=FAINT, linewidth=0.8, zorder=1)
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
    style_axes(ax)
    ax.grid(False)
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    _plain_log_ticks(ax, low, high)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(places, [str(row["ode"]) for row in rows])
    ax.tick_params(axis="y", length=0, labelsize=TEXT, labelcolor=INK)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel("integration time (ms, logarithmic)", fontsize=TEXT)
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
                fontsize=SMALL if y < 0 else TEXT,
                color=SOFT if y < 0 else INK,
                annotation_clip=False,
            )
    return ax


def _plain_log_ticks(ax: Axes, low: float, high: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    # Over a short range the powers of ten alone would leave the axis all but unmarked.
    decades = math.log10(high / low)
    subs = (1, 2, 3, 4, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1,)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="x", which="minor", color=FAINT)
