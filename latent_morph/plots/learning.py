"""Learning curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latent_morph.plots.arguments import numbers_of
from latent_morph.plots.figures import INK, MAIN, SECOND, SMALL, SOFT, TEXT, new_figure, style_axes

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
        ("loss", {"train_loss": ("training", MAIN), "validation_loss": ("validation", SECOND)}),
        (score_name, {"validation_score": ("validation", SECOND)}),
    ):
        curves = [(numbers_of(history, key), *look) for key, look in keys.items()]
        curves = [curve for curve in curves if np.isfinite(curve[0]).any()]
        if curves:
            panels.append((title, curves))
    if not panels:
        raise ValueError(
            "history holds no number under 'train_loss', 'validation_loss' or 'validation_score'"
        )
    axes = new_figure(4.4 * len(panels), 2.9).subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, curves) in zip(axes, panels, strict=True):
        for curve, _, colour in curves:
            shown = np.isfinite(curve)
            lone = {"marker": "."} if shown.sum() == 1 else {}
            ax.plot(epochs[shown], curve[shown], color=colour, linewidth=1.4, **lone)
        style_axes(ax)
        _history_ticks(ax)
        ax.set_xlabel("epoch", fontsize=TEXT)
        ax.set_title(title, fontsize=TEXT, color=INK, loc="left")
        ax.margins(x=0.02)
        _leave_out_the_start(ax, [curve for curve, _, _ in curves])
        if best_epoch is not None:
            _mark_best(ax, epochs, curves[-1][0], best_epoch, title if title != "loss" else "")
        _label_ends(ax, [(name, curve[np.isfinite(curve)][-1], c) for curve, name, c in curves])
    return axes


def _mark_best(ax: Axes, epochs: np.ndarray, curve: np.ndarray, best: int, score: str) -> None:
    ax.axvline(best, color=SOFT, linewidth=0.9, linestyle=":", zorder=1)
    at = np.flatnonzero((epochs == best) & np.isfinite(curve))
    label = f"best: epoch {best}"
    if len(at):
        ax.plot(best, curve[at[0]], "o", color=SECOND, markersize=5.5, zorder=4)
        label += f", {curve[at[0]]:.4g}" if score else ""
    # In the title's line, where no curve passes.
    ax.set_title(label, loc="right", fontsize=SMALL, color=SOFT)


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
        ax.text(1.015, y, name, color=colour, fontsize=SMALL, va="center", transform=ax.transAxes)


def _history_ticks(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(
        MaxNLocator(integer=True, nbins=6, min_n_ticks=1, steps=[1, 2, 5, 10])
    )
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
