"""Plots of learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latent_morph.plots.arguments import get_column
from latent_morph.plots.figures import (
    DARK,
    GREY,
    PRIMARY,
    SECONDARY,
    SMALL_SIZE,
    TEXT_SIZE,
    make_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_history(
    history: Sequence[Mapping[str, Any]],
    *,
    best_epoch: int | None = None,
    score_name: str = "score",
) -> np.ndarray:
    """Draws learning curves: losses at the left, the validation score, if any, at the right.

    Args:
        history: One row per epoch, with `epoch` and any of `train_loss`, `validation_loss` and
            `validation_score`. None and NaN are left out.
        best_epoch: The epoch to mark, whose weights were kept.
        score_name: Label of the right panel.

    Returns:
        The axes, shape (2,), or (1,) without losses or without scores.

    Raises:
        ValueError: There are no rows, one lacks `epoch`, or none has a loss or a score.
    """
    if not len(history):
        raise ValueError("history must have one row per epoch, got none")
    for i, row in enumerate(history):
        if "epoch" not in row:
            raise ValueError(f"history[{i}] must have the key 'epoch', got {list(row)}")
    epochs = np.array([row["epoch"] for row in history], dtype=float)
    panels = []
    for title, keys in (
        (
            "loss",
            {"train_loss": ("training", PRIMARY), "validation_loss": ("validation", SECONDARY)},
        ),
        (score_name, {"validation_score": ("validation", SECONDARY)}),
    ):
        curves = [(get_column(history, key), *style) for key, style in keys.items()]
        curves = [curve for curve in curves if np.isfinite(curve[0]).any()]
        if curves:
            panels.append((title, curves))
    if not panels:
        raise ValueError(
            "history must have a number under 'train_loss', 'validation_loss' or "
            "'validation_score', got none"
        )
    axes = make_figure(4.4 * len(panels), 2.9).subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels, strict=True):
        for curve, _, colour in curves:
            finite = np.isfinite(curve)
            marker = "." if finite.sum() == 1 else None  # a line of one point is invisible
            ax.plot(epochs[finite], curve[finite], color=colour, linewidth=1.4, marker=marker)
        style_axes(ax)
        _set_ticks(ax)
        ax.set_xlabel("epoch", fontsize=TEXT_SIZE)
        ax.set_title(title, fontsize=TEXT_SIZE, color=DARK, loc="left")
        ax.margins(x=0.02)
        _clip_early_epochs(ax, [curve for curve, _, _ in curves])
        if best_epoch is not None:
            _mark_best(ax, epochs, curves[-1][0], best_epoch, title if title != "loss" else "")
        _label_ends(ax, [(name, curve[np.isfinite(curve)][-1], c) for curve, name, c in curves])
    return axes


def _mark_best(ax: Axes, epochs: np.ndarray, curve: np.ndarray, best: int, score: str) -> None:
    ax.axvline(best, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
    at = np.flatnonzero((epochs == best) & np.isfinite(curve))
    label = f"best: epoch {best}"
    if len(at):
        ax.plot(best, curve[at[0]], "o", color=SECONDARY, markersize=5.5, zorder=4)
        label += f", {curve[at[0]]:.4g}" if score else ""
    # Beside the title, where no curve is.
    ax.set_title(label, loc="right", fontsize=SMALL_SIZE, color=GREY)


def _clip_early_epochs(ax: Axes, curves: Sequence[np.ndarray]) -> None:
    """Narrows the vertical axis if the first epochs are far outside the range of the others."""
    n_early = max(1, len(curves[0]) // 20)
    later = np.concatenate([curve[n_early:] for curve in curves])
    later = later[np.isfinite(later)]
    if len(later) < 8:
        return
    low, high = float(later.min()), float(later.max())
    span = high - low
    bottom, top = ax.get_ylim()
    if span > 0 and (top > high + 2 * span or bottom < low - 2 * span):
        ax.set_ylim(low - 0.1 * span, high + 0.1 * span)


def _label_ends(ax: Axes, ends: Sequence[tuple[str, float, str]]) -> None:
    """Labels each curve at its right end, without overlap."""
    low, high = ax.get_ylim()
    heights = [min(max((y - low) / (high - low), 0.0), 1.0) for _, y, _ in ends]
    order = np.argsort(heights)
    for below, above in zip(order, order[1:], strict=False):
        overlap = 0.09 - (heights[above] - heights[below])
        if overlap > 0:
            heights[below] -= overlap / 2
            heights[above] += overlap / 2
    for (name, _, colour), y in zip(ends, heights, strict=True):
        ax.text(
            1.015, y, name, color=colour, fontsize=SMALL_SIZE, va="center", transform=ax.transAxes
        )


def _set_ticks(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(
        MaxNLocator(integer=True, nbins=6, min_n_ticks=1, steps=[1, 2, 5, 10])
    )
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
