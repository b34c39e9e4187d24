"""Plots of learned ODEs: phase portraits, coordinates over time, fields and morphed grids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from latent_morph.plots.figures import (
    CLASS_COLOURS,
    DARK,
    LEGEND_STYLE,
    TEXT_SIZE,
    make_figure,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The paper's colours: blue for the truth, red for the model.
_TRUTH, _ROLLOUT, _BASE = CLASS_COLOURS[:3]
_GRID = "#B8C4D6"


def plot_phase_portrait(
    truth: Sequence[ArrayLike],
    rollouts: Sequence[ArrayLike],
    *,
    points: Sequence[ArrayLike] = (),
    names: Sequence[str] = ("x", "y", "z"),
    title: str = "",
    goal: ArrayLike | None = None,
) -> Axes:
    """Draws trajectories in two or three dimensions, with roll-outs over the truth.

    Args:
        truth: True trajectories, each (T, C) with C 2 or 3.
        rollouts: Roll-outs of the model, each (T', C).
        points: Training data, drawn as dots, each (T'', C).
        names: Labels of the axes.
        title: Title of the plot.
        goal: (C,) a point to mark.
    """
    dim = _check_dimension([*truth, *rollouts, *points])
    figure = make_figure(5.2, 4.8 if dim == 3 else 4.2)
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
    _draw_paths(ax, truth, rollouts, goal, dim)
    _label_axes(ax, names, dim)
    ax.set_title(title, fontsize=TEXT_SIZE, loc="left")
    figure.legend(loc="outside upper right", ncols=4, **LEGEND_STYLE)
    return ax


def plot_coordinates(
    times: ArrayLike,
    rollout: ArrayLike,
    *,
    truth: tuple[ArrayLike, ArrayLike] | None = None,
    observed: tuple[ArrayLike, ArrayLike] | None = None,
    names: Sequence[str] = ("x", "y", "z"),
    log: bool = False,
    base: ArrayLike | None = None,
) -> np.ndarray:
    """Draws the coordinates of one trajectory over time, one panel per coordinate.

    Args:
        times: (T,).
        rollout: (T, C), the roll-out of the model.
        truth: Times (R,) and values (R, C) of the true trajectory.
        observed: Times (S,) and values (S, C) of the training data.
        names: Names of the coordinates.
        log: Whether to draw absolute values on logarithmic axes.
        base: (T, D) trajectory of the base ODE, for a further panel.

    Returns:
        The axes, shape (C,), or (C + 1,) with a base.
    """
    times, path = np.asarray(times, dtype=float), np.asarray(rollout, dtype=float)
    n_panels = path.shape[1] + (base is not None)
    figure = make_figure(3.0 * n_panels, 2.9)
    axes = figure.subplots(1, n_panels, squeeze=False)[0]
    transform = np.abs if log else np.asarray
    for c in range(path.shape[1]):
        ax = axes[c]
        if truth is not None:
            ax.plot(
                truth[0],
                transform(np.asarray(truth[1])[:, c]),
                color=_TRUTH,
                lw=1.8,
                label="truth",
            )
        ax.plot(times, transform(path[:, c]), color=_ROLLOUT, lw=1.1, label="roll-out")
        if observed is not None:
            ax.plot(
                observed[0],
                transform(np.asarray(observed[1])[:, c]),
                linestyle="",
                marker=".",
                markersize=3,
                color=DARK,
                label="data",
            )
        style_axes(ax)
        if log:
            ax.set_yscale("log")
        ax.set_xlabel("time", fontsize=TEXT_SIZE)
        ax.set_title(names[c], fontsize=TEXT_SIZE, loc="left")
    handles, labels = axes[0].get_legend_handles_labels()
    if base is not None:
        base = np.asarray(base, dtype=float)
        ax = axes[-1]
        for d in range(base.shape[1]):
            ax.plot(times, base[:, d], color=_BASE, lw=1.0, alpha=0.4 + 0.6 / (d + 1))
        style_axes(ax)
        ax.set_xlabel("time", fontsize=TEXT_SIZE)
        ax.set_title("base ODE, linear scale", fontsize=TEXT_SIZE, loc="left")
    figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), **LEGEND_STYLE)
    return axes


def plot_morph(
    base_paths: Sequence[ArrayLike],
    base_grid: Sequence[ArrayLike],
    paths: Sequence[ArrayLike],
    grid: Sequence[ArrayLike],
    *,
    names: Sequence[str] = ("x", "y"),
) -> np.ndarray:
    """Draws base trajectories and a grid at the left, and both as mapped to data at the right.

    Args:
        base_paths: Trajectories of the base ODE, each (T, D); the first two coordinates are drawn.
        base_grid: Lines of a grid in the same space, each (T', D).
        paths: The same trajectories in the units of the data, each (T, C).
        grid: The same lines in the units of the data, each (T', C).
        names: Labels of the right panel's axes.

    Returns:
        The axes, shape (2,).
    """
    figure = make_figure(8.4, 4.0)
    axes = figure.subplots(1, 2)
    for ax, lines, curves, title in (
        (axes[0], base_grid, base_paths, "base ODE"),
        (axes[1], grid, paths, "learned ODE"),
    ):
        for line in lines:
            ax.plot(*np.asarray(line)[:, :2].T, color=_GRID, lw=0.7)
        for curve in curves:
            ax.plot(*np.asarray(curve)[:, :2].T, color=_ROLLOUT, lw=1.2)
        style_axes(ax)
        ax.grid(False)
        ax.set_title(title, fontsize=TEXT_SIZE, loc="left")
        _set_limits(ax, curves, lines)
    axes[1].set_xlabel(names[0], fontsize=TEXT_SIZE)
    axes[1].set_ylabel(names[1], fontsize=TEXT_SIZE)
    return axes


def plot_field(
    states: ArrayLike,
    velocity: ArrayLike,
    *,
    truth: Sequence[ArrayLike] = (),
    rollouts: Sequence[ArrayLike] = (),
    names: Sequence[str] = ("x", "y"),
    goal: ArrayLike | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws a vector field in the plane as streamlines, with trajectories over it.

    Args:
        states: (H, W, C) grid of states: the first coordinate increases along W, the second
            along H.
        velocity: (H, W, C) the field at `states`.
        truth: True trajectories, each (T, C).
        rollouts: Roll-outs of the model, each (T', C).
        names: Labels of the axes.
        goal: (C,) a point to mark.
        ax: Axes to draw into; by default those of a new figure.
    """
    states, velocity = np.asarray(states, dtype=float), np.asarray(velocity, dtype=float)
    if states.ndim != 3 or states.shape != velocity.shape:
        raise ValueError(
            f"states and velocity must have one shape (H, W, C), got {states.shape} and "
            f"{velocity.shape}"
        )
    if ax is None:
        ax = make_figure(5.4, 4.6).subplots()
    ax.streamplot(
        states[0, :, 0],
        states[:, 0, 1],
        velocity[..., 0],
        velocity[..., 1],
        color=_GRID,
        linewidth=0.7,
        arrowsize=0.7,
        density=1.3,
    )
    _draw_paths(ax, truth, rollouts, goal, 2)
    style_axes(ax)
    ax.grid(False)
    ax.set_xlim(states[..., 0].min(), states[..., 0].max())
    ax.set_ylim(states[..., 1].min(), states[..., 1].max())
    ax.set_xlabel(names[0], fontsize=TEXT_SIZE)
    ax.set_ylabel(names[1], fontsize=TEXT_SIZE)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, **LEGEND_STYLE)
    return ax


def _check_dimension(paths: Sequence[ArrayLike]) -> int:
    """Returns the number of coordinates to draw, at most 3."""
    if not len(paths):
        raise ValueError("truth, rollouts and points must have a trajectory, got none")
    sizes = {np.asarray(path).shape[-1] for path in paths}
    if len(sizes) > 1 or min(sizes) < 2:
        raise ValueError(f"trajectories must have the same 2 or 3 coordinates, got {sizes}")
    return min(3, sizes.pop())


def _label_axes(ax: Any, names: Sequence[str], dim: int) -> None:  # noqa: ANN401
    ax.set_xlabel(names[0], fontsize=TEXT_SIZE)
    ax.set_ylabel(names[1], fontsize=TEXT_SIZE)
    if dim == 3:
        ax.set_zlabel(names[2], fontsize=TEXT_SIZE)
        ax.tick_params(labelsize=7.5)
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.pane.set_alpha(0.15)
    else:
        style_axes(ax)
        ax.set_aspect("equal", adjustable="datalim")


def _set_limits(ax: Axes, curves: Sequence[ArrayLike], lines: Sequence[ArrayLike]) -> None:
    """Sets limits around all curves, and around the grid unless it is far from them."""
    inner, outer = (
        np.concatenate([np.asarray(path)[:, :2] for path in paths]) for paths in (curves, lines)
    )
    low, high = inner.min(0), inner.max(0)
    extent = np.maximum(high - low, 1e-12)
    low = np.maximum(np.minimum(low, outer.min(0)), low - 0.3 * extent) - 0.04 * extent
    high = np.minimum(np.maximum(high, outer.max(0)), high + 0.3 * extent) + 0.04 * extent
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])


def _draw_paths(
    ax: Any,  # noqa: ANN401
    truth: Sequence[ArrayLike],
    rollouts: Sequence[ArrayLike],
    goal: ArrayLike | None,
    dim: int,
) -> None:
    """Draws true trajectories, roll-outs with their starts, and the goal, in `dim` coordinates."""
    for k, path in enumerate(truth):
        ax.plot(
            *np.asarray(path)[:, :dim].T, color=_TRUTH, linewidth=1.3, label="" if k else "truth"
        )
    for k, path in enumerate(rollouts):
        line = np.asarray(path)[:, :dim]
        ax.plot(*line.T, color=_ROLLOUT, linewidth=1.1, label="" if k else "roll-out")
        ax.plot(*line[:1].T, linestyle="", marker="o", markersize=3.5, color=_ROLLOUT)
    if goal is not None:
        ax.plot(
            *np.asarray(goal, dtype=float)[:dim, None],
            linestyle="",
            marker="*",
            markersize=11,
            color=DARK,
            label="goal",
        )
