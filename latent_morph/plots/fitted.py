"""Pictures of what a fitted estimator says, in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from latent_morph.estimators import LatentODEPointClassifier
from latent_morph.estimators.classifier import ClassifierBase
from latent_morph.plots.arguments import as_codes, as_names
from latent_morph.plots.classes import plot_point_probabilities
from latent_morph.plots.figures import (
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
from latent_morph.plots.portraits import plot_field, plot_morph
from latent_morph.plots.reconstructions import draw_reconstruction, reconstruction_legend
from latent_morph.series import Data, SeriesBatch, as_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from latent_morph.estimators import DynamicsRegressor
    from latent_morph.estimators.base import LatentODEBase

_FINE = 300  # times at which a curve looks smooth


def plot_series(
    estimator: LatentODEBase,
    X: Data,
    times: ArrayLike | None = None,
    *,
    case: int = 0,
    labels: Any = None,  # noqa: ANN401
    channels: Sequence[int] | None = None,
    channel_names: Sequence[str] | None = None,
) -> np.ndarray:
    """Draws one series with its reconstruction band and, of a classifier, class probabilities.

    A `LatentODEPointClassifier` is asked for the class at every moment, observed or not. A
    `LatentODEClassifier` judges a series as a whole: what is drawn at a time is what it said if
    the series had ended there, which shows how soon it knows.

    Args:
        estimator: Fitted.
        X: Series, in any form that `as_series` takes.
        times: (Q,) when to decode; by default 300 times over the span of the series.
        case: Which of the series.
        labels: Of a point classifier, (T,) the true class at each row of the series; of the other
            its true class. By default unknown.
        channels: Positions of the channels to draw; by default the four observed most often.
        channel_names: C names, of all channels.

    Returns:
        The axes, shape (len(channels),), one more with classes.

    Raises:
        IndexError: There is no such case.
        ValueError: A channel or a label is unknown, or shapes disagree.
    """
    batch = as_series(X, dtype=torch.float64)[case].trim()
    clock, values = batch.to_ragged()[0]
    fine = np.linspace(clock[0], clock[-1], _FINE) if times is None else np.asarray(times, float)
    shown = _channels(values, channels)
    names = [f"channel {c}" for c in range(values.shape[1])]
    names = names if channel_names is None else list(channel_names)
    if len(names) != values.shape[1]:
        raise ValueError(f"channel_names has {len(names)} names; wanted {values.shape[1]}")
    mean, std = estimator.reconstruct(batch, fine, return_std=True)
    judges = isinstance(estimator, ClassifierBase)
    heights = [1.25] * len(shown) + [2.0] * judges
    figure = new_figure(7.6, sum(heights) + 0.9, hspace=0.04, h_pad=0.02)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    axes = grid[:, 0]
    for ax, c in zip(axes, shown, strict=False):
        seen = np.isfinite(values[:, c])
        observed = (clock[seen], values[seen, c]) if seen.any() else None
        draw_reconstruction(ax, fine, mean[0, :, c], std[0, :, c], observed=observed)
        ax.locator_params(axis="y", nbins=4)
        ax.set_ylabel(names[c], fontsize=TEXT)
    handles, parts = reconstruction_legend(axes[: len(shown)])
    figure.legend(handles, parts, loc="outside upper left", ncols=3, **legend_style())
    if judges:
        _draw_classes(estimator, batch, fine, labels, axes[-1])
    low, high = min(fine.min(), clock[0]), max(fine.max(), clock[-1])
    axes[-1].set_xlim(low - 0.01 * (high - low), high + 0.01 * (high - low))
    axes[-1].set_xlabel("time", fontsize=TEXT)
    figure.align_ylabels(axes)
    return axes


def plot_latent_trajectories(
    estimator: LatentODEBase,
    X: Data,
    times: ArrayLike | None = None,
    *,
    labels: Any = None,  # noqa: ANN401
    class_names: Sequence[Any] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draws the latent trajectory of each series in the plane in which they move most.

    Each starts at its dot and runs to its arrow. The axes are the two main directions of all
    states drawn, with the share of their variance; a latent state of two dimensions is drawn as
    it is.

    Args:
        estimator: Fitted; not a `DynamicsRegressor`, whose states are those of the data.
        X: (N) series, in any form that `as_series` takes.
        times: (Q,) or (N, Q) when; by default 100 times over the span of each series.
        labels: (N,) a class for each series, or (N, Q) for each time, such as
            `estimator.predict(X, times)`, for colours.
        class_names: K names in the order of colours; by default the classes of the estimator, or
            the labels there are.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: Shapes disagree, or a label is no class.
    """
    batch = as_series(X, dtype=torch.float64)
    if times is None:
        share = np.linspace(0, 1, 100)
        first, last = batch.times[:, :1].numpy(), batch.times[:, -1:].numpy()
        times = first + share * (last - first)
    states = estimator.latent_trajectory(batch, times).astype(float)
    plane, directions = _main_plane(states)
    n_cases, n_times = plane.shape[:2]
    codes, names = np.zeros((n_cases, n_times), int), None
    if labels is not None:
        raw = np.asarray(labels)
        known = class_names
        if known is None:
            known = getattr(estimator, "classes_", np.unique(raw)).tolist()
        names = as_names(known)
        codes = as_codes("labels", raw, known)
        if codes.ndim == 1 and len(codes) == n_cases:
            codes = np.repeat(codes[:, None], n_times, axis=1)
        if codes.shape != (n_cases, n_times):
            raise ValueError(
                f"labels has shape {raw.shape}; wanted ({n_cases},) or {(n_cases, n_times)}"
            )
    if ax is None:
        ax = new_figure(5.6, 4.4).subplots()
    colours = [MAIN] if names is None else class_colours(len(names))
    _draw_paths(ax, plane, codes, colours)
    style_axes(ax)
    ax.grid(False)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(directions[0], fontsize=TEXT)
    ax.set_ylabel(directions[1], fontsize=TEXT)
    if names is not None:
        there = [code for code in np.unique(codes) if code >= 0]
        handles = [patch(colours[code], names[code]) for code in there]
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), **legend_style())
    return ax


def plot_vector_field(
    estimator: DynamicsRegressor,
    X: Data,
    *,
    names: Sequence[str] = ("x", "y"),
    room: float = 0.15,
    ax: Axes | None = None,
) -> Axes:
    """Draws the learned vector field around trajectories, with them and their roll-outs.

    With zeros appended to the states (`augment`), the field is that of setting out, and roll-outs
    may cross it later on; with `augment=0` they follow it.

    Args:
        estimator: Fitted, on two channels.
        X: Trajectories, in any form that `as_series` takes.
        names: Labels of the axes.
        room: Share of the trajectories' extent that is shown on each side of them.
        ax: Where to draw; by default a figure of its own.

    Raises:
        ValueError: The states are not of two dimensions.
    """
    truth = [values for _, values in as_series(X, dtype=torch.float64).to_ragged()]
    if truth[0].shape[1] != 2:
        raise ValueError(f"X has {truth[0].shape[1]} channels; wanted 2 for a field in the plane")
    rolled = [path[np.isfinite(path).all(-1)] for path in estimator.predict(X)]
    drawn = np.concatenate([*truth, *rolled])
    low, high = np.nanmin(drawn, 0), np.nanmax(drawn, 0)
    low, high = low - room * (high - low), high + room * (high - low)
    across, up = (np.linspace(low[c], high[c], 40) for c in (0, 1))
    lattice = np.stack(np.meshgrid(across, up), -1)
    return plot_field(
        lattice,
        estimator.vector_field(lattice),
        truth=truth,
        rolled=rolled,
        names=names,
        goal=estimator.equilibrium_ if estimator.stable else None,
        ax=ax,
    )


def plot_morphed_grid(
    estimator: DynamicsRegressor, X: Data, *, names: Sequence[str] = ("x", "y")
) -> np.ndarray:
    """Draws the base ODE on a square grid, and both as the invertible network bends them.

    The grid lies in the plane in which the base ODE moves most.

    Args:
        estimator: Fitted, with an ODE of the morph family.
        X: Trajectories, in any form that `as_series` takes; those from their starts are drawn.
        names: Labels of the right panel's axes.

    Returns:
        The axes, shape (2,).

    Raises:
        ValueError: The ODE has no base.
    """
    batch = as_series(X, dtype=torch.float64)
    starts = batch.values[:, 0].numpy()
    span = float((batch.times[:, -1] - batch.times[:, 0]).max())
    times = np.linspace(0, span, _FINE)
    base = estimator.base_trajectory(starts, times)
    middle = base.mean((0, 1))
    _, _, directions = np.linalg.svd((base - middle).reshape(-1, base.shape[-1]))
    plane = directions[:2]
    flat = (base - middle) @ plane.T
    low, high = flat.min((0, 1)), flat.max((0, 1))
    lines = []
    for value in np.linspace(0, 1, 13):
        for axis in (0, 1):
            line = np.empty((80, 2))
            line[:, axis] = np.linspace(low[axis], high[axis], 80)
            line[:, 1 - axis] = low[1 - axis] + value * (high - low)[1 - axis]
            lines.append(line)
    return plot_morph(
        list(flat),
        lines,
        list(estimator.predict(starts, times)),
        [estimator.morph(middle + line @ plane) for line in lines],
        names=names,
    )


def _channels(values: np.ndarray, asked: Sequence[int] | None) -> list[int]:
    n_channels = values.shape[1]
    if asked is None:
        count = np.isfinite(values).sum(0)
        return sorted(np.argsort(-count, kind="stable")[:4].tolist())
    if not len(asked) or not set(asked) <= set(range(n_channels)):
        raise ValueError(f"channels is {list(asked)}; wanted some of 0 .. {n_channels - 1}")
    return list(asked)


def _draw_classes(
    estimator: ClassifierBase,
    batch: SeriesBatch,
    fine: np.ndarray,
    labels: Any,  # noqa: ANN401
    ax: Axes,
) -> None:
    clock, values = batch.to_ragged()[0]
    names = estimator.classes_.tolist()
    if isinstance(estimator, LatentODEPointClassifier):
        share = estimator.predict_proba(batch, fine)[0]
        if labels is not None and np.shape(labels) != clock.shape:
            raise ValueError(f"labels has shape {np.shape(labels)}; wanted {clock.shape}")
        plot_point_probabilities(fine, share, names, labels=labels, observed_times=clock, ax=ax)
        return
    ends = np.flatnonzero(np.append(np.diff(clock) > 0, True))  # all rows of one moment at once
    prefixes = [(clock[: end + 1], values[: end + 1]) for end in ends]
    share = estimator.predict_proba(prefixes)
    # It holds until something new is seen: a step at every observation.
    edges = np.append(clock[ends], max(fine.max(), clock[-1]))
    steps = np.stack([edges[:-1], edges[1:]], 1).ravel()
    plot_point_probabilities(
        steps, np.repeat(share, 2, axis=0), names, observed_times=clock, ax=ax
    )
    if labels is not None:
        if labels not in names:
            raise ValueError(f"labels is {labels!r}; wanted one of {names}")
        ax.set_title(f"true class: {labels}", loc="right", fontsize=SMALL, color=INK)
    ax.set_ylabel("probability, by what\nwas seen so far", fontsize=SMALL)


def _main_plane(states: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """(N, Q, 2) of (N, Q, D), and what the two axes are."""
    dim = states.shape[-1]
    if dim == 1:
        raise ValueError("the latent state has one dimension; wanted at least 2 for a plane")
    if dim == 2:
        return states, ["latent state 1", "latent state 2"]
    centred = (states - states.mean((0, 1))).reshape(-1, dim)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    shares = sizes**2 / max((sizes**2).sum(), 1e-300)
    plane = (centred @ directions[:2].T).reshape(*states.shape[:2], 2)
    return plane, [f"main direction {k + 1} ({shares[k]:.0%} of variance)" for k in (0, 1)]


def _draw_paths(ax: Axes, plane: np.ndarray, codes: np.ndarray, colours: Sequence[str]) -> None:
    from matplotlib.collections import LineCollection

    alpha = float(np.clip(12 / len(plane), 0.3, 0.9))
    pieces = np.stack([plane[:, :-1], plane[:, 1:]], -2).reshape(-1, 2, 2)
    shades = np.array([*colours, "#D0D0D0"])  # the last for what has no class: code -1
    ax.add_collection(
        LineCollection(
            list(pieces), colors=shades[codes[:, 1:].ravel()].tolist(), linewidths=1.1, alpha=alpha
        )
    )
    starts, ends = plane[:, 0], plane[:, -1]
    ax.scatter(
        starts[:, 0], starts[:, 1], s=14, c=shades[codes[:, 0]].tolist(), linewidths=0, zorder=3
    )
    for path, code in zip(plane, codes[:, -1], strict=True):
        ax.annotate(
            "",
            path[-1],
            path[-2],
            arrowprops={
                "arrowstyle": "-|>",
                "color": shades[code],
                "alpha": alpha,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 9,
            },
        )
    ax.update_datalim(np.concatenate([plane.reshape(-1, 2), ends]))
    ax.autoscale_view()
