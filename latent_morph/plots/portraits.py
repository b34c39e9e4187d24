"""Figures of learned ODEs: phase portraits, coordinates over time, fields and morphed grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.figures import (
    CLASS_COLOURS,
    INK,
    TEXT,
    legend_style,
    new_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The paper's colours: blue for what was there, red for what the model says.
_TRUTH, _ROLLED, _BASE = CLASS_COLOURS[:3]
_GRID = "#B8C4D6"


def plot_phase_portrait(
    truth: Sequence[ArrayLike],
    rolled: Sequence[ArrayLike],
    *,
    points: Sequence[ArrayLike] = (),
    names: Sequence[str] = ("x", "y", "z"),
    title: str = "",
    goal: ArrayLike | None = None,
) -> Axes:
    """Draws trajectories in the plane or in space: truth as lines, roll-outs over them.

    Args:
        truth: What was there, each (T, C) with C 2 or 3.
        rolled: What the model says, each (T', C).
        points: What the model learned from, drawn as dots, each (T'', C).
        names: Labels of the axes.
        title: Above the picture.
        goal: (C,) a point to mark.
    """
    dim = _dimensions([*truth, *rolled, *points])
    figure = new_figure(5.2, 4.8 if dim == 3 else 4.2)
    ax = figure.add_subplot(projection="3d" if dim == 3 else None)
    for k, dots in enumerate(points):
        ax.plot(
            *np.asarray(dots)[:, :dim].T,
            linestyle="",
            marker=".",
            markersize=2.5,
            color=_TRUTH,
            alpha=0.5,
            label="" if k else "data",
        )
    _draw_paths(ax, truth, rolled, goal, dim)
    _label_axes(ax, names, dim)
    ax.set_title(title, fontsize=TEXT, loc="left")
    figure.legend(loc="outside upper right", ncols=4, **legend_style())
    return ax


def plot_coordinates(
    times: ArrayLike,
    rolled: ArrayLike,
    *,
    truth: tuple[ArrayLike, ArrayLike] | None = None,
    observed: tuple[ArrayLike, ArrayLike] | None = None,
    names: Sequence[str] = ("x", "y", "z"),
    log: bool = False,
    base: ArrayLike | None = None,
) -> np.ndarray:
    """Draws each coordinate of one trajectory over time, one panel a coordinate.

    Args:
        times: (T,).
        rolled: (T, C), the roll-out.
        truth: Times (R,) and values (R, C).
        observed: Times (S,) and values (S, C) that the model learned from.
        names: Of the coordinates.
        log: Logarithmic vertical axes, of absolute values.
        base: (T, D) what the base ODE does, for a further panel.

    Returns:
        The axes, shape (C,), or (C + 1,) with a base.
    """
    clock, path = np.asarray(times, dtype=float), np.asarray(rolled, dtype=float)
    n_panels = path.shape[1] + (base is not None)
    figure = new_figure(3.0 * n_panels, 2.9)
    axes = figure.subplots(1, n_panels, squeeze=False)[0]
    shown = np.abs if log else np.asarray
    for c in range(path.shape[1]):
        ax = axes[c]
        if truth is not None:
            ax.plot(
                truth[0], shown(np.asarray(truth[1])[:, c]), color=_TRUTH, lw=1.8, label="truth"
            )
        ax.plot(clock, shown(path[:, c]), color=_ROLLED, lw=1.1, label="roll-out")
        if observed is not None:
            ax.plot(
                observed[0],
                shown(np.asarray(observed[1])[:, c]),
                linestyle="",
                marker=".",
                markersize=3,
                color=INK,
                label="data",
            )
        style_axes(ax)
        if log:
            ax.set_yscale("log")
        ax.set_xlabel("time", fontsize=TEXT)
        ax.set_title(names[c], fontsize=TEXT, loc="left")
    handles, labels = axes[0].get_legend_handles_labels()
    if base is not None:
        inner = np.asarray(base, dtype=float)
        ax = axes[-1]
        for d in range(inner.shape[1]):
            ax.plot(clock, inner[:, d], color=_BASE, lw=1.0, alpha=0.4 + 0.6 / (d + 1))
        style_axes(ax)
        ax.set_xlabel("time", fontsize=TEXT)
        ax.set_title("base ODE, linear scale", fontsize=TEXT, loc="left")
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), **legend_style())
    return axes


def plot_morph(
    base_paths: Sequence[ArrayLike],
    base_grid: Sequence[ArrayLike],
    paths: Sequence[ArrayLike],
    grid: Sequence[ArrayLike],
    *,
    names: Sequence[str] = ("x", "y"),
) -> np.ndarray:
    """Draws the base ODE with a grid at the left, and both as the network bends them at the right.

    Args:
        base_paths: Curves of the base ODE, each (T, 2 or more); the first two coordinates count.
        base_grid: Lines of a grid in the base's space, likewise.
        paths: The same curves in the units of the data.
        grid: The same lines in the units of the data.
        names: Labels of the right panel's axes.

    Returns:
        The axes, shape (2,).
    """
    figure = new_figure(8.4, 4.0)
    axes = figure.subplots(1, 2)
    for ax, lines, curves, title in (
        (axes[0], base_grid, base_paths, "base ODE"),
        (axes[1], grid, paths, "learned ODE"),
    ):
        for line in lines:
            ax.plot(*np.asarray(line)[:, :2].T, color=_GRID, lw=0.7)
        for curve in curves:
            ax.plot(*np.asarray(curve)[:, :2].T, color=_ROLLED, lw=1.2)
        style_axes(ax)
        ax.grid(False)
        ax.set_title(title, fontsize=TEXT, loc="left")
        _frame(ax, curves, lines)
    axes[1].set_xlabel(names[0], fontsize=TEXT)
    axes[1].set_ylabel(names[1], fontsize=TEXT)
    return axes


def plot_field(
    states: ArrayLike,
    velocity: ArrayLike,
    *,
    truth: Sequence[ArrayLike] = (),
    rolled: Sequence[ArrayLike] = (),
    names: Sequence[str] = ("x", "y"),
    goal: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws a vector field on a lattice of the plane as streamlines, with trajectories over it.

    Args:
        states: (H, W, C) a lattice: the first coordinate grows along W, the second along H.
        velocity: (H, W, C) the field there.
        truth: Demonstrations, each (T, C).
        rolled: Roll-outs, each (T', C).
        names: Labels of the axes.
        goal: (C,) a point to mark.
        ax: Where to draw; by default a figure of its own.
    """
    where, speed = np.asarray(states, dtype=float), np.asarray(velocity, dtype=float)
    if where.ndim != 3 or where.shape != speed.shape:
        raise ValueError(
            f"states and velocity must have one shape (H, W, C), got {where.shape} and "
            f"{speed.shape}"
        )
    if ax is None:
        ax = new_figure(5.4, 4.6).subplots()
    ax.streamplot(
        where[0, :, 0],
        where[:, 0, 1],
        speed[..., 0],
        speed[..., 1],
        color=_GRID,
        linewidth=0.7,
        arrowsize=0.7,
        density=1.3,
    )
    _draw_paths(ax, truth, rolled, goal, 2)
    style_axes(ax)
    ax.grid(False)
    ax.set_xlim(where[..., 0].min(), where[..., 0].max())
    ax.set_ylim(where[..., 1].min(), where[..., 1].max())
    ax.set_xlabel(names[0], fontsize=TEXT)
    ax.set_ylabel(names[1], fontsize=TEXT)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, **legend_style())
    return ax


def _dimensions(paths: Sequence[ArrayLike]) -> int:
    if not len(paths):
        raise ValueError("there is nothing to draw; wanted at least one trajectory")
    sizes = {np.asarray(path).shape[-1] for path in paths}
    if len(sizes) > 1 or min(sizes) < 2:
        raise ValueError(f"trajectories must have the same 2 or 3 coordinates, got {sizes}")
    return min(3, sizes.pop())


def _label_axes(ax: Any, names: Sequence[str], dim: int) -> None:  # noqa: ANN401
    ax.set_xlabel(names[0], fontsize=TEXT)
    ax.set_ylabel(names[1], fontsize=TEXT)
    if dim == 3:
        ax.set_zlabel(names[2], fontsize=TEXT)
        ax.tick_params(labelsize=7.5)
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.pane.set_alpha(0.15)
    else:
        style_axes(ax)
        ax.set_aspect("equal", adjustable="datalim")


def _frame(ax: Axes, curves: Sequence[ArrayLike], lines: Sequence[ArrayLike]) -> None:
    """Limits around all curves, and around the grid as far as it does not stray from them."""
    inner, outer = (
        np.concatenate([np.asarray(path)[:, :2] for path in paths]) for paths in (curves, lines)
    )
    low, high = inner.min(0), inner.max(0)
    room = np.maximum(high - low, 1e-12)
    low = np.maximum(np.minimum(low, outer.min(0)), low - 0.3 * room) - 0.04 * room
    high = np.minimum(np.maximum(high, outer.max(0)), high + 0.3 * room) + 0.04 * room
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])


def _draw_paths(
    ax: Any,  # noqa: ANN401
    truth: Sequence[ArrayLike],
    rolled: Sequence[ArrayLike],
    goal: ArrayLike | None,
    dim: int,
) -> None:
    """The true curves, the roll-outs with their starts, and the goal, in the first `dim` axes."""
    for k, path in enumerate(truth):
        ax.plot(
            *np.asarray(path)[:, :dim].T, color=_TRUTH, linewidth=1.3, label="" if k else "truth"
        )
    for k, path in enumerate(rolled):
        line = np.asarray(path)[:, :dim]
        ax.plot(*line.T, color=_ROLLED, linewidth=1.1, label="" if k else "roll-out")
        ax.plot(*line[:1].T, linestyle="", marker="o", markersize=3.5, color=_ROLLED)
    if goal is not None:
        ax.plot(
            *np.asarray(goal, dtype=float)[:dim, None],
            linestyle="",
            marker="*",
            markersize=11,
            color=INK,
            label="goal",
        )
