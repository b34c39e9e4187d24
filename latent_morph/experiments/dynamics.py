"""DynamicsLearner: ODEs learned from trajectories, their roll-outs, errors and figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch

from latent_morph.checks import check_choice
from latent_morph.diagnostics import Timing, count_evaluations, time_interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.presets import PAPER_DYNAMICS, PRESETS, paper_ode_options
from latent_morph.experiments.problem import Problem
from latent_morph.experiments.trained import Costs, TrainedLearner, check_flow
from latent_morph.flows import METHODS
from latent_morph.series import SeriesBatch

# A closed form, a neural base, and the paper's solvers.
COMPARED_ODES = ("morph", "morph-neural", "euler", "midpoint", "rk4", "dopri5")
PAPER_FIELD = (150, 5)  # units and hidden layers of a solver's network in the paper
NEW_STARTS = 8


class RollOuts(NamedTuple):
    """Roll-outs of a learned ODE."""

    test: np.ndarray  # (N, T, C) at the times of the references
    train: np.ndarray | None  # (M, T, C) from the noisy starts, if references are known
    new: np.ndarray | None  # (K, Q, C) from new starts
    base: np.ndarray | None  # (T, D) of the base ODE, for the first of `test`


@final
@dataclass(frozen=True, kw_only=True)
class DynamicsLearner(TrainedLearner[DynamicsRegressor, RollOuts]):
    """A learner for `DynamicsRegressor`."""

    is_stable: bool = False  # every motion converges to the end of the demonstrations
    is_logarithmic: bool = False  # coordinates are drawn on logarithmic axes
    estimator: type[DynamicsRegressor] = DynamicsRegressor
    compared_odes: tuple[str, ...] = COMPARED_ODES

    def parameters(self, preset: str, ode: str) -> dict[str, Any]:
        check_choice("preset", preset, PRESETS)
        params = dict(self.default if preset == "default" else PAPER_DYNAMICS)
        if preset == "paper" or ode in METHODS:
            # Solvers have the networks of the paper's baselines in both presets.
            params["ode_options"] = paper_ode_options(ode, *PAPER_FIELD)
        elif ode in ("linear", "morph-neural"):
            params.pop("ode_options", None)
        has_linear_base = ode in ("linear", "morph", "morph-real", "morph-stable")
        if self.is_stable and has_linear_base:
            params |= {"stable": True, "goal": "ends"}
        return params

    def check_options(self, estimator: DynamicsRegressor) -> None:
        check_flow(estimator, latent_dim=4)

    def predict(self, estimator: DynamicsRegressor, problem: Problem) -> RollOuts:
        test, train = problem.test_X, problem.train_reference
        noisy_starts = problem.train_X.values[:, 0].numpy()
        new = base = None
        if self.is_stable:
            times = np.linspace(0, float(test.times.max()), 300)
            new = estimator.predict(_draw_starts(noisy_starts), times)
        if self.is_logarithmic and str(estimator.ode).startswith("morph"):
            times = (test.times[0] - test.times[0, 0]).numpy()
            base = estimator.base_trajectory(test.values[0, 0].numpy(), times)
        return RollOuts(
            test=roll_out(estimator, test),
            train=None if train is None else roll_out(estimator, train, noisy_starts),
            new=new,
            base=base,
        )

    def metrics(self, predictions: RollOuts, problem: Problem) -> dict[str, float]:
        scores = compute_errors(predictions.test, problem.test_X.values.numpy())
        if predictions.train is not None and problem.train_reference is not None:
            truth = problem.train_reference.values.numpy()
            errors = compute_errors(predictions.train, truth)
            scores |= {f"{name}_interpolation": value for name, value in errors.items()}
        return scores

    def measure(self, estimator: DynamicsRegressor, problem: Problem) -> Costs:
        call = partial(roll_out, estimator, problem.test_X)
        return Costs(
            len(problem.test_X),
            time_interleaved({"integration": call}, repeats=3),
            count_evaluations(estimator.model_, call),
        )

    def time_odes(
        self, estimators: Mapping[str, DynamicsRegressor], problem: Problem
    ) -> dict[str, Timing]:
        test = problem.test_X
        calls = {ode: partial(roll_out, fitted, test) for ode, fitted in estimators.items()}
        return time_interleaved(calls, repeats=5)

    def details(self, estimator: DynamicsRegressor) -> dict[str, Any]:
        return {"equilibrium": estimator.equilibrium_, "scaler": estimator.scaler_.state()}

    def figures(
        self, predictions: RollOuts, problem: Problem, estimator: DynamicsRegressor
    ) -> dict[str, Any]:
        from latent_morph import plots

        unit = f" ({problem.unit})" if problem.unit else ""
        names = [f"{name}{unit}" for name in problem.channel_names]
        truth, rolled = list(problem.test_X.values.numpy()), list(predictions.test)
        goal = estimator.equilibrium_ if estimator.stable else None
        figures = {
            **super().figures(predictions, problem, estimator),
            "phase_portrait": plots.plot_phase_portrait(
                truth,
                [*rolled, *(() if predictions.new is None else predictions.new)],
                points=[values for _, values in problem.train_X.to_ragged()],
                names=names,
                goal=goal,
            ),
            "coordinates": self._draw_coordinates(predictions, problem, names),
        }
        if len(names) == 2:
            lattice = _make_lattice(np.concatenate([*truth, *rolled]))
            figures["vector_field"] = plots.plot_field(
                lattice,
                estimator.vector_field(lattice),
                truth=truth,
                rollouts=rolled,
                names=names,
                goal=goal,
            )
        if estimator.ode in ("morph", "morph-real", "morph-stable"):
            figures["morphed_grid"] = plots.plot_morphed_grid(
                estimator, problem.train_X, names=names
            )
        return figures

    def _draw_coordinates(
        self, predictions: RollOuts, problem: Problem, names: list[str]
    ) -> np.ndarray:
        """Draws the first test trajectory over time."""
        from latent_morph import plots

        rows = slice(1 if self.is_logarithmic else 0, None)  # the first row has zeros
        times, truth = problem.test_X.times[0].numpy(), problem.test_X.values[0].numpy()
        observed = None
        if len(problem.train_X) == 1:  # the test trajectory is that one without noise
            train_times, train_values = problem.train_X.to_ragged()[0]
            observed = train_times[rows], train_values[rows]
        return plots.plot_coordinates(
            times[rows],
            predictions.test[0, rows],
            truth=(times[rows], truth[rows]),
            observed=observed,
            names=names,
            log=self.is_logarithmic,
            base=None if predictions.base is None else predictions.base[rows],
        )


def roll_out(
    estimator: DynamicsRegressor, reference: SeriesBatch, starts: np.ndarray | None = None
) -> np.ndarray:
    """Rolls out at the times of `reference`, from its own first states or from others."""
    y0 = reference.values[:, 0].numpy() if starts is None else starts
    times = (reference.times - reference.times[:, :1]).numpy()
    # A common grid is cheaper for a solver.
    is_shared = bool((reference.times == reference.times[:1]).all())
    return estimator.predict(y0, times[0] if is_shared else times)


def compute_errors(predicted: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Computes mean squared and absolute error, and the latter relative to the mean size."""
    error = predicted - truth
    size = np.abs(truth).mean(axis=(0, 1))
    return {
        "mse": float(np.square(error).mean()),
        "mae": float(np.abs(error).mean()),
        "mae_relative": float((np.abs(error).mean(axis=(0, 1)) / size).mean()),
    }


def resample(batch: SeriesBatch, n_times: int) -> SeriesBatch:
    """Interpolates each trajectory linearly at `n_times` evenly spaced times."""
    cases = []
    for times, values in batch.to_ragged():
        grid = np.linspace(times[0], times[-1], n_times)
        cases.append((grid, np.stack([np.interp(grid, times, v) for v in values.T], 1)))
    return SeriesBatch.from_ragged(cases, dtype=torch.float64)


def _draw_starts(starts: np.ndarray) -> np.ndarray:
    """Draws starts around those of the demonstrations, with twice their spread."""
    noise = np.random.default_rng(0).normal(size=(NEW_STARTS, starts.shape[1]))
    return starts.mean(0) + noise * 2 * starts.std(0)


def _make_lattice(points: np.ndarray, margin: float = 0.15, size: int = 40) -> np.ndarray:
    """Makes a (size, size, 2) lattice of the plane around points (N, 2)."""
    points = points[np.isfinite(points).all(-1)]
    low, high = points.min(0), points.max(0)
    low, high = low - margin * (high - low), high + margin * (high - low)
    return np.stack(np.meshgrid(*np.linspace(low, high, size).T), -1)
