"""Learning ODEs from trajectories on the command line: data, presets, figures and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from latent_morph.checks import check_choice, check_device
from latent_morph.datasets import (
    fetch_robot_demonstrations,
    make_lorenz,
    make_lotka_volterra,
    make_robertson,
)
from latent_morph.diagnostics import Timing, evaluations_in, interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.estimators.base import resolve_flow
from latent_morph.experiments.presets import PRESETS
from latent_morph.experiments.runs import Run, comparison_rows
from latent_morph.experiments.tasks import Request
from latent_morph.flows import METHODS
from latent_morph.io.records import versions, write_csv, write_json
from latent_morph.series import SeriesBatch

# What `--ode all` compares here: closed forms, a neural base, and the paper's solvers.
COMPARED = ("morph", "morph-neural", "euler", "midpoint", "rk4", "dopri5")
LEARNED_POINTS = 100  # of a demonstration; errors are taken at ten times as many


@dataclass(frozen=True)
class Problem:
    """Trajectories to learn from, and those that roll-outs are held against.

    Attributes:
        train_X: What the model sees.
        test_X: References: each is rolled out to from its own start.
        seen: References of the trajectories learned from, rolled out to from the noisy starts.
        channel_names: Of the coordinates.
        unit: Of the coordinates.
        source: "real" or "synthetic".
        protocol: Which split or variant.
        note: What a reader should know.
    """

    train_X: SeriesBatch
    test_X: SeriesBatch
    seen: SeriesBatch | None
    channel_names: list[str]
    unit: str
    source: str
    protocol: str
    note: str = ""


@dataclass(frozen=True)
class DynamicsTask:
    """A data set's name on the command line and everything that hangs on it."""

    load: Callable[[Request], Problem]
    metric: str
    protocols: Mapping[str, str]  # what each name stands for; the first is the default
    stable: bool = False
    log: bool = False
    ours: dict[str, Any] = field(default_factory=dict)
    # As the other tasks have them.
    estimator: type[DynamicsRegressor] = DynamicsRegressor
    takes_keep: bool = False
    takes_n_times: bool = False

    def parameters(self, preset: str, ode: str) -> dict[str, Any]:
        """Estimator parameters of a preset for an ODE."""
        check_choice("preset", preset, PRESETS)
        linear = ode in ("linear", "morph", "morph-real", "morph-stable")
        promise = {"stable": True, "goal": "ends"} if self.stable and linear else {}
        if preset == "paper":
            return _PAPER | promise | {"ode_options": _paper_options(ode)}
        params = dict(self.ours)
        if ode in METHODS:
            # The networks of the paper's baselines; the rest of the training is the same for all.
            params["ode_options"] = _paper_options(ode)
        elif ode in ("linear", "morph-neural"):
            params.pop("ode_options", None)
        return params | promise


# Settings of the paper's appendix: full batches, from the trajectories' own starts only. For the
# stiff system the paper goes down to a hundredth of the rate after 500 steps; here it stays.
_PAPER: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "schedule": "constant",
    "gradient_clip": None,
    "max_epochs": 5000,
    "restarts": 0,
    "linear_start": False,
}


def _paper_options(ode: str) -> dict[str, Any] | None:
    if ode in METHODS:
        return {"units": 150, "layers": 5}
    if ode == "morph":
        return {"inn": "paper", "spectrum": "real"}
    return {"inn": "paper"} if ode.startswith("morph") else None


def _lotka_volterra(request: Request) -> Problem:
    bunch = make_lotka_volterra(variant=request.protocol or "standard", random_state=request.seed)
    return _generated(bunch, bunch.unseen, bunch.reference)


def _lorenz(request: Request) -> Problem:
    protocol = request.protocol or "standard"
    if protocol == "long":
        bunch = make_lorenz(
            201, start=(-3.1, -1.15, 8.15), interval=(0, 5), random_state=request.seed
        )
    else:
        bunch = make_lorenz(variant=protocol, random_state=request.seed)
    return _generated(bunch, bunch.reference, None, protocol)


def _robertson(request: Request) -> Problem:
    bunch = make_robertson(variant=request.protocol or "standard", random_state=request.seed)
    return _generated(bunch, bunch.reference, None)


def _generated(
    bunch: Any,  # noqa: ANN401
    test: SeriesBatch,
    seen: SeriesBatch | None,
    protocol: str | None = None,
) -> Problem:
    return Problem(
        train_X=bunch.data,
        test_X=test,
        seen=seen,
        channel_names=list(bunch.feature_names),
        unit="",
        source="synthetic",
        protocol=protocol or bunch.variant,
    )


def _imitation(motion: str) -> Callable[[Request], Problem]:
    def load(request: Request) -> Problem:
        if request.source == "synthetic":
            raise ValueError("source 'synthetic': demonstrations have no generated stand-in")
        protocol = request.protocol or "first"
        check_choice("protocol", protocol, _SPLITS)
        read = _READ[protocol]
        bunch = fetch_robot_demonstrations(motion, data_home=request.data_home, **read)
        missing = "positions leap" if "gaps" in read else "the clock goes on"
        train, test = bunch.train, bunch.test
        if protocol == "random":
            order = np.random.RandomState(request.seed).permutation(len(bunch.data))
            train, test = np.sort(order[: len(train)]), np.sort(order[len(train) :])
        return Problem(
            train_X=resampled(bunch.data[train], LEARNED_POINTS),
            test_X=resampled(bunch.data[test], 10 * LEARNED_POINTS),
            seen=None,
            channel_names=list(bunch.feature_names),
            unit=bunch.unit,
            source=bunch.source,
            protocol=protocol,
            note=f"errors in {bunch.unit} squared; demonstrations {test.tolist()} are for testing"
            f"; where rows are missing {missing}",
        )

    return load


def resampled(batch: SeriesBatch, n_times: int) -> SeriesBatch:
    """Each trajectory at so many evenly spaced times of its own, interpolated linearly."""
    cases = []
    for times, values in batch.to_ragged():
        even = np.linspace(times[0], times[-1], n_times)
        cases.append((even, np.stack([np.interp(even, times, v) for v in values.T], 1)))
    return SeriesBatch.from_ragged(cases, dtype=torch.float64)


# Ours, for few demonstrations: one for all motions, by `python -m benchmarks leave_one_out`.
_DEMONSTRATED: dict[str, Any] = {
    "restarts": 1,
    "start_spread": 0.3,
    "scale": "shared",
    "max_epochs": 1000,
    # Far from the demonstrations the scales of all blocks multiply: less room, less detours.
    "ode_options": {"inn": {"blocks": 2, "width": 32, "clamp": 0.3}},
}
_SPLITS = {
    "first": "the first 70 % of the demonstrations train, on a common clock and to a common goal",
    "random": "a random 70 % of them do",
    "leaps": "as first, but no time passes where rows are missing",
    "whole": "as first, but with the hand's rest before and after the motion",
    "recorded": "the first 70 % of them as the file has them",
}
_REST = 0.02  # of the path at either end: a hand that does not move yet, or no longer
_READ: dict[str, dict[str, Any]] = {
    "first": {"rest": _REST},
    "random": {"rest": _REST},
    "leaps": {"rest": _REST, "gaps": "recorded"},
    "whole": {},
    "recorded": {"timing": "recorded", "goal": "recorded", "gaps": "recorded"},
}
_STANDARD = {"standard": "the equations of the literature"}
_PRINTED = {"printed": "the equations as printed in the paper"}


def _imitated(motion: str) -> DynamicsTask:
    return DynamicsTask(_imitation(motion), "mse", _SPLITS, stable=True, ours=_DEMONSTRATED)


DYNAMICS: dict[str, DynamicsTask] = {
    "lotka_volterra": DynamicsTask(
        _lotka_volterra,
        "mse",
        _STANDARD,
        # Starts beyond those seen: a network that can stretch little goes less astray. Its size is
        # by `python -m benchmarks leave_one_out`.
        ours={
            "start_noise": 0.05,
            "ode_options": {"inn": {"blocks": 3, "width": 48, "clamp": 0.3}},
        },
    ),
    "imitation_s": _imitated("S"),
    "imitation_cube": _imitated("cube"),
    "imitation_c": _imitated("C"),
    "lorenz": DynamicsTask(
        _lorenz,
        "mae",
        _STANDARD | _PRINTED | {"long": "standard, for t in [0, 5] from another start"},
        ours={"restarts": 1, "max_epochs": 1500},
    ),
    "rober": DynamicsTask(
        _robertson,
        "mae",
        _STANDARD | _PRINTED,
        log=True,
        ours={"restarts": 1, "scale": "log", "max_epochs": 1000},
    ),
}


def make_estimator(
    task: DynamicsTask, run: Run, *, resume: bool, callbacks: Sequence[Any]
) -> DynamicsRegressor:
    """The estimator of a run, its parameters checked before anything is loaded or written."""
    estimator = task.estimator(
        **run.params,
        random_state=run.seed,
        checkpoint=run.checkpoint,
        resume=resume,
        callbacks=list(callbacks),
    )
    estimator._validate_params()
    check_device("device", estimator.device)
    # Options that no flow takes are found here, not after the data were loaded.
    resolve_flow(estimator.ode, estimator.ode_options, "ode")(4)
    return estimator


def carry_out(
    task: DynamicsTask, run: Run, problem: Problem, *, resume: bool, callbacks: Sequence[Any]
) -> tuple[DynamicsRegressor, dict[str, Any]]:
    """Fits, scores on the references, once, and writes everything but the plots."""
    estimator = make_estimator(task, run, resume=resume, callbacks=callbacks)
    estimator.fit(problem.train_X)
    record = make_record(task, run, problem, estimator)
    write_csv(run.folder / "history.csv", estimator.history_)
    estimator.save(run.model)
    write_json(run.folder / "record.json", record)  # last: its presence says that all is there
    run.checkpoint.unlink(missing_ok=True)
    return estimator, record


def errors(guess: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Mean squared and absolute error, and the absolute one with each channel in its own scale."""
    wrong = guess - truth
    size = np.abs(truth).mean(axis=(0, 1))
    return {
        "mse": float(np.square(wrong).mean()),
        "mae": float(np.abs(wrong).mean()),
        "mae_relative": float((np.abs(wrong).mean(axis=(0, 1)) / size).mean()),
    }


def rolled_out(
    estimator: DynamicsRegressor, reference: SeriesBatch, starts: np.ndarray | None = None
) -> np.ndarray:
    """Roll-outs at the times of `reference`, from its own first states or from others."""
    begin = reference.values[:, 0].numpy() if starts is None else starts
    times = (reference.times - reference.times[:, :1]).numpy()
    # One grid for all, where there is one, is cheaper for a solver.
    shared = bool((reference.times == reference.times[:1]).all())
    return estimator.predict(begin, times[0] if shared else times)


def metrics(estimator: DynamicsRegressor, problem: Problem) -> dict[str, float]:
    """The figures of a run, at ten times the resolution of the data."""
    found = errors(rolled_out(estimator, problem.test_X), problem.test_X.values.numpy())
    if problem.seen is not None:
        noisy = problem.train_X.values[:, 0].numpy()
        inner = errors(rolled_out(estimator, problem.seen, noisy), problem.seen.values.numpy())
        found |= {f"{name}_interpolation": value for name, value in inner.items()}
    return found


def make_record(
    task: DynamicsTask, run: Run, problem: Problem, estimator: DynamicsRegressor
) -> dict[str, Any]:
    """Everything that is needed to know what a figure means."""
    best = estimator.history_[estimator.best_epoch_ - 1]
    score = best.get("validation_score")
    seconds = [row["seconds"] for row in estimator.history_]
    params = estimator.get_params(deep=False)
    for name in ("random_state", "checkpoint", "resume", "callbacks", "verbose"):
        del params[name]
    roll_out = _timed(estimator, problem)
    evaluations = evaluations_in(estimator.model_, roll_out)
    return {
        "dataset": run.dataset,
        "ode": run.ode,
        "encoder": "none",
        "source": problem.source,
        "protocol": problem.protocol,
        "preset": run.preset,
        "seed": run.seed,
        "n_train": estimator.n_learn_,
        "n_validation": estimator.n_validation_,
        "n_test": len(problem.test_X),
        "metrics": {
            "validation": {} if score is None else {"mse": -score},
            "test": metrics(estimator, problem),
        },
        "equilibrium": estimator.equilibrium_,
        "epochs": {"run": estimator.n_iter_, "best": estimator.best_epoch_},
        "timings": {
            "training_s": float(sum(seconds)),
            "epoch_s": {"mean": float(np.mean(seconds)), "std": float(np.std(seconds))},
            "batch_of": len(problem.test_X),
            "threads": torch.get_num_threads(),
            "integration": interleaved({"it": roll_out}, repeats=3)["it"]._asdict(),
        },
        "field_evaluations": evaluations,
        "n_parameters": sum(p.numel() for p in estimator.model_.parameters()),
        "params": params,
        "scaler": estimator.scaler_.state(),
        "command": run.command,
        "versions": versions(),
        "note": problem.note,
    }


def _timed(estimator: DynamicsRegressor, problem: Problem) -> Callable[[], Any]:
    """A roll-out of all test starts at the resolution of the references."""
    return lambda: rolled_out(estimator, problem.test_X)


def comparison(
    task: DynamicsTask, problem: Problem, done: Sequence[tuple[Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Rows of a table like the paper's: error and roll-out time of each ODE, interleaved."""
    calls: Mapping[str, Callable[[], Any]] = {
        record["ode"]: _timed(estimator, problem) for estimator, record in done
    }
    timings: dict[str, Timing] = interleaved(calls, repeats=5)
    return comparison_rows(task.metric, timings, done)


def draw(
    task: DynamicsTask, run: Run, problem: Problem, estimator: DynamicsRegressor
) -> list[Path]:
    """The pictures of a run; their files."""
    from latent_morph import plots

    pictures: dict[str, Any] = {
        "learning_curves": plots.plot_history(
            [row | _shown_score(row) for row in estimator.history_],
            best_epoch=estimator.best_epoch_ if estimator.n_validation_ else None,
            score_name="validation mse",
        ),
        "phase_portrait": _draw_portrait(task, problem, estimator),
        "coordinates": _draw_coordinates(task, problem, estimator),
    }
    if estimator.n_channels_ == 2:
        pictures["vector_field"] = plots.plot_vector_field(
            estimator, problem.test_X, names=_names(problem)
        )
    if run.ode.startswith("morph") and run.ode != "morph-neural":
        pictures["morphed_grid"] = plots.plot_morphed_grid(
            estimator, problem.train_X, names=_names(problem)
        )
    return [plots.save_figure(axes, run.folder / f"{name}.png") for name, axes in pictures.items()]


def _shown_score(row: dict[str, float]) -> dict[str, float]:
    return {"validation_score": -row["validation_score"]} if "validation_score" in row else {}


def _names(problem: Problem) -> list[str]:
    return [f"{name} ({problem.unit})" if problem.unit else name for name in problem.channel_names]


def _new_starts(problem: Problem, n: int = 8) -> np.ndarray:
    """Starts that nobody demonstrated: around those that were, twice as far apart."""
    begin = problem.train_X.values[:, 0].numpy()
    rng = np.random.default_rng(0)
    return begin.mean(0) + rng.normal(size=(n, begin.shape[1])) * 2 * begin.std(0)


def _draw_portrait(task: DynamicsTask, problem: Problem, estimator: DynamicsRegressor) -> Any:  # noqa: ANN401
    from latent_morph import plots

    rolled = list(rolled_out(estimator, problem.test_X))
    if task.stable:
        span = float(problem.test_X.times.max())
        rolled += list(estimator.predict(_new_starts(problem), np.linspace(0, span, 300)))
    return plots.plot_phase_portrait(
        list(problem.test_X.values.numpy()),
        rolled,
        points=[values for _, values in problem.train_X.to_ragged()],
        names=_names(problem),
        goal=estimator.equilibrium_ if task.stable else None,
    )


def _draw_coordinates(task: DynamicsTask, problem: Problem, estimator: DynamicsRegressor) -> Any:  # noqa: ANN401
    from latent_morph import plots

    case = 0
    times = problem.test_X.times[case].numpy()
    truth = problem.test_X.values[case].numpy()
    # Where there is but one trajectory, it is the one that was learned from.
    observed = problem.train_X.to_ragged()[0] if len(problem.train_X) == 1 else None
    base = None
    if task.log and estimator.ode in ("morph", "morph-real", "morph-stable", "morph-neural"):
        base = estimator.base_trajectory(truth[0], times - times[0])
    start = 1 if task.log else 0  # a logarithm of the start's zeros
    return plots.plot_coordinates(
        times[start:],
        estimator.predict(truth[0], times - times[0])[start:],
        truth=(times[start:], truth[start:]),
        observed=None if observed is None else (observed[0][start:], observed[1][start:]),
        names=_names(problem),
        log=task.log,
        base=None if base is None else base[start:],
    )
