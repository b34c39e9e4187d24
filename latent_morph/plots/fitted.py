"""Plots of fitted estimators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from latent_morph.estimators import LatentODEPointClassifier
from latent_morph.estimators.classifier import ClassifierBase
from latent_morph.plots.arguments import as_channel_names, as_class_names, as_codes
from latent_morph.plots.classes import plot_point_probabilities
from latent_morph.plots.figures import (
    DARK,
    LEGEND_STYLE,
    LIGHT,
    PRIMARY,
    SMALL_SIZE,
    TEXT_SIZE,
    get_class_colours,
    make_figure,
    make_patch,
    style_axes,
)
from latent_morph.plots.portraits import plot_field, plot_morph
from latent_morph.plots.reconstructions import draw_reconstruction, get_legend_entries
from latent_morph.series import Data, SeriesBatch, as_series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from latent_morph.estimators import DynamicsRegressor
    from latent_morph.estimators.latent import LatentODEBase

_N_TIMES = 300  # enough for a curve to look smooth


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
    """Draws one series with its reconstruction and, for a classifier, class probabilities.

    A `LatentODEPointClassifier` predicts the class at every time, observed or not. A
    `LatentODEClassifier` predicts one class per series: the probabilities drawn at a time are
    those of the series up to that time, which shows how early the class is known.

    Args:
        estimator: Fitted.
        X: Series, in any form that `as_series` accepts.
        times: (Q,) query times; by default 300 times over the span of the series.
        case: Index of the series.
        labels: For a point classifier, (T,) the true class at each row of the series; for a
            classifier the true class of the series. Optional.
        channels: Positions of the channels to draw; by default the four observed most often.
        channel_names: C names, of all channels.

    Returns:
        The axes, shape (len(channels),), one more for a classifier.

    Raises:
        IndexError: There is no such case.
        ValueError: A channel or a label is unknown, or shapes disagree.
    """
    batch = as_series(X, dtype=torch.float64)[case].trim()
    observed_times, values = batch.to_ragged()[0]
    first, last = observed_times[0], observed_times[-1]
    query_times = np.linspace(first, last, _N_TIMES) if times is None else np.asarray(times, float)
    selected = _select_channels(values, channels)
    if channel_names is None:
        channel_names = [f"channel {c}" for c in range(values.shape[1])]
    names = as_channel_names(channel_names, values.shape[1])
    mean, std = estimator.reconstruct(batch, query_times, return_std=True)
    is_classifier = isinstance(estimator, ClassifierBase)
    heights = [1.25] * len(selected) + [2.0] * is_classifier
    figure = make_figure(7.6, sum(heights) + 0.9, hspace=0.04, h_pad=0.02)
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    axes = grid[:, 0]
    for ax, c in zip(axes, selected, strict=False):
        mask = np.isfinite(values[:, c])
        observed = (observed_times[mask], values[mask, c]) if mask.any() else None
        draw_reconstruction(ax, query_times, mean[0, :, c], std[0, :, c], observed=observed)
        ax.locator_params(axis="y", nbins=4)
        ax.set_ylabel(names[c], fontsize=TEXT_SIZE)
    handles, entries = get_legend_entries(axes[: len(selected)])
    figure.legend(handles, entries, loc="outside upper left", ncols=3, **LEGEND_STYLE)
    if is_classifier:
        _draw_classes(estimator, batch, query_times, labels, axes[-1])
    low, high = min(query_times.min(), first), max(query_times.max(), last)
    axes[-1].set_xlim(low - 0.01 * (high - low), high + 0.01 * (high - low))
    axes[-1].set_xlabel("time", fontsize=TEXT_SIZE)
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
    """Draws the latent trajectory of each series, projected to the plane of largest variance.

    A dot marks the start of a trajectory and an arrow its end. The axes are the first two
    principal components of all states drawn, with their fraction of the variance; a latent state
    of two dimensions is drawn unchanged.

    Args:
        estimator: Fitted; not a `DynamicsRegressor`, whose states are those of the data.
        X: N series, in any form that `as_series` accepts.
        times: (Q,) or (N, Q) query times; by default 100 times over the span of each series.
        labels: Classes for colours: (N,) one per series, or (N, Q) one per time, such as
            `estimator.predict(X, times)`.
        class_names: K names in the order of colours; by default the classes of the estimator, or
            the distinct labels.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: Shapes disagree, or a label is not a class.
    """
    batch = as_series(X, dtype=torch.float64)
    if times is None:
        first, last = batch.times[:, :1].numpy(), batch.times[:, -1:].numpy()
        times = first + np.linspace(0, 1, 100) * (last - first)
    states = estimator.latent_trajectory(batch, times).astype(float)
    plane, axis_names = _project_to_plane(states)
    n_cases, n_times = plane.shape[:2]
    codes, names = np.zeros((n_cases, n_times), int), None
    if labels is not None:
        if class_names is None:
            class_names = getattr(estimator, "classes_", np.unique(labels)).tolist()
        names = as_class_names(class_names)
        codes = as_codes("labels", labels, class_names)
        if codes.ndim == 1 and len(codes) == n_cases:
            codes = np.repeat(codes[:, None], n_times, axis=1)
        if codes.shape != (n_cases, n_times):
            raise ValueError(
                f"labels must have shape ({n_cases},) or {(n_cases, n_times)}, "
                f"got {np.shape(labels)}"
            )
    if ax is None:
        ax = make_figure(5.6, 4.4).subplots()
    colours = [PRIMARY] if names is None else get_class_colours(len(names))
    _draw_latent_paths(ax, plane, codes, colours)
    style_axes(ax)
    ax.grid(False)
    ax.set_aspect("equal", adjustable="datalim")
    ax.set_xlabel(axis_names[0], fontsize=TEXT_SIZE)
    ax.set_ylabel(axis_names[1], fontsize=TEXT_SIZE)
    if names is not None:
        handles = [
            make_patch(colours[code], names[code]) for code in np.unique(codes) if code >= 0
        ]
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), **LEGEND_STYLE)
    return ax


def plot_vector_field(
    estimator: DynamicsRegressor,
    X: Data,
    *,
    names: Sequence[str] = ("x", "y"),
    margin: float = 0.15,
    ax: Axes | None = None,
) -> Axes:
    """Draws the learned vector field around trajectories, with them and their roll-outs.

    With augmented states (`augment`), the field is that of initial states, whose augmented part is
    zero, and roll-outs may cross it later; with `augment=0` they follow it.

    Args:
        estimator: Fitted, on two channels.
        X: Trajectories, in any form that `as_series` accepts.
        names: Labels of the axes.
        margin: Margin on each side, as a fraction of the trajectories' extent.
        ax: Axes to draw into; by default those of a new figure.

    Raises:
        ValueError: The states are not two-dimensional.
    """
    truth = [values for _, values in as_series(X, dtype=torch.float64).to_ragged()]
    if truth[0].shape[1] != 2:
        raise ValueError(f"X must have 2 channels, got {truth[0].shape[1]}")
    rollouts = [path[np.isfinite(path).all(-1)] for path in estimator.predict(X)]
    states = np.concatenate([*truth, *rollouts])
    low, high = np.nanmin(states, 0), np.nanmax(states, 0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    x, y = (np.linspace(low[c], high[c], 40) for c in (0, 1))
    grid = np.stack(np.meshgrid(x, y), -1)
    return plot_field(
        grid,
        estimator.vector_field(grid),
        truth=truth,
        rollouts=rollouts,
        names=names,
        goal=estimator.equilibrium_ if estimator.stable else None,
        ax=ax,
    )


def plot_morphed_grid(
    estimator: DynamicsRegressor, X: Data, *, names: Sequence[str] = ("x", "y")
) -> np.ndarray:
    """Draws base trajectories on a square grid, and both as mapped by the invertible network.

    The grid lies in the plane of largest variance of the base trajectories.

    Args:
        estimator: Fitted, with an ODE of the morph family.
        X: Trajectories, in any form that `as_series` accepts; those from their starts are drawn.
        names: Labels of the right panel's axes.

    Returns:
        The axes, shape (2,).

    Raises:
        ValueError: The ODE has no base.
    """
    batch = as_series(X, dtype=torch.float64)
    starts = batch.values[:, 0].numpy()
    span = float((batch.times[:, -1] - batch.times[:, 0]).max())
    times = np.linspace(0, span, _N_TIMES)
    base = estimator.base_trajectory(starts, times)
    mean = base.mean((0, 1))
    _, _, components = np.linalg.svd((base - mean).reshape(-1, base.shape[-1]))
    plane = components[:2]
    projected = (base - mean) @ plane.T
    low, high = projected.min((0, 1)), projected.max((0, 1))
    lines = []
    for fraction in np.linspace(0, 1, 13):
        for axis in (0, 1):
            line = np.empty((80, 2))
            line[:, axis] = np.linspace(low[axis], high[axis], 80)
            line[:, 1 - axis] = low[1 - axis] + fraction * (high - low)[1 - axis]
            lines.append(line)
    return plot_morph(
        list(projected),
        lines,
        list(estimator.predict(starts, times)),
        [estimator.morph(mean + line @ plane) for line in lines],
        names=names,
    )


def _select_channels(values: np.ndarray, channels: Sequence[int] | None) -> list[int]:
    n_channels = values.shape[1]
    if channels is None:
        count = np.isfinite(values).sum(0)
        return sorted(np.argsort(-count, kind="stable")[:4].tolist())
    if not len(channels) or not set(channels) <= set(range(n_channels)):
        raise ValueError(
            f"channels must be positions in 0 .. {n_channels - 1}, got {list(channels)}"
        )
    return list(channels)


def _draw_classes(
    estimator: ClassifierBase,
    batch: SeriesBatch,
    query_times: np.ndarray,
    labels: Any,  # noqa: ANN401
    ax: Axes,
) -> None:
    times, values = batch.to_ragged()[0]
    names = estimator.classes_.tolist()
    if isinstance(estimator, LatentODEPointClassifier):
        probabilities = estimator.predict_proba(batch, query_times)[0]
        if labels is not None and np.shape(labels) != times.shape:
            raise ValueError(f"labels must have shape {times.shape}, got {np.shape(labels)}")
        plot_point_probabilities(
            query_times, probabilities, names, labels=labels, observed_times=times, ax=ax
        )
        return
    ends = np.flatnonzero(np.append(np.diff(times) > 0, True))  # one prefix per distinct time
    prefixes = SeriesBatch.from_ragged(
        ((times[: end + 1], values[: end + 1]) for end in ends), dtype=torch.float64
    )
    if batch.static is not None:  # the facts of the series are those of each prefix
        prefixes = prefixes.with_static(batch[[0] * len(ends)].static)
    probabilities = estimator.predict_proba(prefixes)
    # A step function: probabilities change at observations only.
    edges = np.append(times[ends], max(query_times.max(), times[-1]))
    steps = np.stack([edges[:-1], edges[1:]], 1).ravel()
    plot_point_probabilities(
        steps, np.repeat(probabilities, 2, axis=0), names, observed_times=times, ax=ax
    )
    if labels is not None:
        if labels not in names:
            raise ValueError(f"labels must be one of {names}, got {labels!r}")
        ax.set_title(f"true class: {labels}", loc="right", fontsize=SMALL_SIZE, color=DARK)
    ax.set_ylabel("probability, given the\nobservations so far", fontsize=SMALL_SIZE)


def _project_to_plane(states: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Projects (N, Q, D) to its first two principal components (N, Q, 2), and names them."""
    dim = states.shape[-1]
    if dim == 1:
        raise ValueError("latent_dim of estimator must be at least 2, got 1")
    if dim == 2:
        return states, ["latent state 1", "latent state 2"]
    centred = (states - states.mean((0, 1))).reshape(-1, dim)
    _, singular_values, components = np.linalg.svd(centred, full_matrices=False)
    variances = singular_values**2
    ratios = variances / max(variances.sum(), 1e-300)
    plane = (centred @ components[:2].T).reshape(*states.shape[:2], 2)
    return plane, [f"principal component {k + 1} ({ratios[k]:.0%} of variance)" for k in (0, 1)]


def _draw_latent_paths(
    ax: Axes, plane: np.ndarray, codes: np.ndarray, colours: Sequence[str]
) -> None:
    from matplotlib.collections import LineCollection

    alpha = float(np.clip(12 / len(plane), 0.3, 0.9))
    segments = np.stack([plane[:, :-1], plane[:, 1:]], -2).reshape(-1, 2, 2)
    palette = np.array([*colours, LIGHT])  # the last, at code -1, for no class
    ax.add_collection(
        LineCollection(
            list(segments),
            colors=palette[codes[:, 1:].ravel()].tolist(),
            linewidths=1.1,
            alpha=alpha,
        )
    )
    x, y = plane[:, 0].T
    ax.scatter(x, y, s=14, c=palette[codes[:, 0]].tolist(), linewidths=0, zorder=3)
    for path, code in zip(plane, codes[:, -1], strict=True):
        ax.annotate(
            "",
            path[-1],
            path[-2],
            arrowprops={
                "arrowstyle": "-|>",
                "color": palette[code],
                "alpha": alpha,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 9,
            },
        )
    ax.update_datalim(plane.reshape(-1, 2))
    ax.autoscale_view()
