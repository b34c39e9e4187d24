"""Errors of ODEs learned by each method within the same processor time."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cache import Record, run_cached
from benchmarks.mean_motion import predict_mean_motion
from benchmarks.rollout import measure
from benchmarks.rows import Row
from benchmarks.trajectories import (
    IMITATION,
    LEARNED,
    SOLVERS,
    get_parameters,
    list_available,
    load_problem,
)
from latent_morph.diagnostics import Timing
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import compute_errors
from latent_morph.experiments.problem import Problem
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.models.linear_fit import linear_base
from latent_morph.series import SeriesBatch
from latent_morph.training import TrainingError
from latent_morph.training.callbacks import AnyCallback, History, Settings

TITLE = "ODEs learned from trajectories, every method for the same seconds of processor time"
RECORDS = Path("runs/learned")
BUDGET = 20.0  # seconds of processor time
MAX_TRIES = 4  # of finding the number of steps
LEARNING_RATES = (1e-3, 5e-3)  # of which each method takes the better one
N_STARTS = 1000  # from which a stable ODE must converge to the goal


def run(
    *,
    short: bool,
    only: str | None = None,
    protocol: str | None = None,
    budget: float | None = None,
    seeds: int | None = None,
    records: Path | None = None,
) -> list[Row]:
    """Makes one row per method: errors over seeds, and the roll-out time of the first seed.

    A seed is that of training and, where data are generated or split at random, of the data. Every
    method trains with each of `LEARNING_RATES` for the whole budget; the error on the training
    trajectories selects one of them.
    """
    budget = budget or (0.5 if short else BUDGET)
    tasks = list_available(LEARNED, only)
    results: dict[str, dict[str, list[Record]]] = {}
    models: dict[str, dict[str, DynamicsRegressor]] = {task: {} for task in tasks}
    for seed in range(seeds or 1):  # outermost, so that an interrupted run has complete seeds
        for task in tasks:
            for method in list_methods(task):
                folder = (records or RECORDS) / f"{task}-{protocol or 'default'}-{budget:g}s"
                trials = {}
                for rate in LEARNING_RATES:
                    path = folder / f"{method}-{rate:g}-{seed}.json"
                    trials[path] = _train_cached(path, task, method, protocol, budget, seed, rate)
                path = min(trials, key=lambda path: _get_train_error(trials[path]))
                results.setdefault(task, {}).setdefault(method, []).append(trials[path])
                if seed == 0 and trials[path]["failed"] is None:
                    models[task][method] = DynamicsRegressor.load(_get_model_path(path))
    rows: list[Row] = []
    for task, by_method in results.items():
        test = load_problem(task, protocol, 0).test_X
        timing_rows = measure(task, models[task], test, repeats=3 if short else 5, flows=False)
        timings = {row["candidate"]: row for row in timing_rows}
        rows += [
            _make_row(task, method, budget, runs, timings.get(method, {}))
            for method, runs in by_method.items()
        ]
        if task in IMITATION:
            rows.append(_make_baseline_row(task, protocol, seeds or 1))
    return rows


def list_methods(task: str) -> tuple[str, ...]:
    """Methods of the paper's table: a linear base, for some tasks a neural one, and solvers."""
    neural = () if task in IMITATION or task == "lotka_volterra" else ("morph-neural",)
    return ("morph", *neural, *SOLVERS)


def _get_model_path(record: Path) -> Path:
    return record.with_suffix(".safetensors")


def _train_cached(
    path: Path,
    task: str,
    method: str,
    protocol: str | None,
    budget: float,
    seed: int,
    rate: float,
) -> Record:
    params = get_parameters(task, method) | {"learning_rate": rate}

    def train() -> Record:
        data = load_problem(task, protocol, seed)
        model = DynamicsRegressor(**params, random_state=seed)
        try:
            steps, spent = fit_within_budget(model, data.train_X, budget)
        except TrainingError as error:  # "N/A" in the paper's table
            return {"failed": str(error)}
        model.save(_get_model_path(path))
        return {
            "failed": None,
            "learned_error": -model.score(data.train_X),
            "errors": get_learner(task).metrics(get_learner(task).predict(model, data), data),
            "steps": steps,
            "processor_s": spent,
            "astray": _count_not_converged(model, data),
        }

    settings = {
        "task": task,
        "protocol": protocol,
        "data": load_problem(task, protocol, seed).note,
        "params": params,
        "budget": budget,
        "seed": seed,
    }
    return run_cached(path, settings, train)


def _get_train_error(record: Record) -> float:
    """Returns the error on the training trajectories, infinity for a failed run."""
    error = record.get("learned_error")
    return math.inf if error is None or not math.isfinite(error) else float(error)


class _BudgetExceeded(Exception):
    """Training takes much more than its budget, which `args[0]` steps would fit."""


def fit_within_budget(
    model: DynamicsRegressor, X: SeriesBatch, budget: float
) -> tuple[int, float]:
    """Fits for `budget` seconds of processor time; returns the number of steps and the time.

    Processor time, unlike wall time, does not depend on other load. The number of steps is
    estimated from the first five. As the cost of an adaptive solver's steps changes during
    training, a run that exceeds the budget by half, or stays a quarter below it, is repeated with
    another number of steps, at most `MAX_TRIES` times. The last run may stay below.
    """
    n_probe = 5
    model.set_params(max_epochs=1).fit(X)  # pays for imports, caches and allocations
    begin = time.process_time()
    model.set_params(max_epochs=n_probe).fit(X)
    steps = max(1, round(budget * n_probe / (time.process_time() - begin)))
    tries = 1
    while True:
        begin = time.process_time()
        try:
            model.set_params(max_epochs=steps, callbacks=[_make_limit(begin, budget)]).fit(X)
        except _BudgetExceeded as error:
            steps = error.args[0]
        else:
            spent = time.process_time() - begin
            if spent >= 0.75 * budget or tries >= MAX_TRIES:
                model.set_params(callbacks=None)
                return steps, spent
            steps = max(steps + 1, round(steps * budget / spent))
        tries += 1


def _make_limit(begin: float, budget: float) -> AnyCallback:
    def check(history: History, settings: Settings) -> None:
        spent, done = time.process_time() - begin, len(history.rows)
        if spent > 1.5 * budget and done < settings.max_epochs:
            raise _BudgetExceeded(max(1, int(done * budget / spent)))

    return check


def _count_not_converged(model: DynamicsRegressor, data: Problem) -> int | None:
    """Counts random starts that do not end within 1e-3 of the goal; None if not stable by design.

    Starts are uniform in a box three times as large as that of the demonstrations. The end is
    after sixty time constants of the slowest mode, and the states before must be finite.
    """
    base = linear_base(model.model_.flow)
    if not model.stable or base is None or model.equilibrium_ is None:
        return None
    states = data.train_X.values[data.train_X.observed].numpy()
    low, high = states.min(0), states.max(0)
    centre, half_width = (high + low) / 2, (high - low) / 2
    offsets = np.random.default_rng(0).uniform(-3, 3, (N_STARTS, states.shape[1]))
    slowest = float(-base.rates.detach().max())
    times = np.array([0.1, 0.3, 1.0, 3.0, 60.0 / slowest]) * model.scaler_.time_scale_
    path = model.predict(centre + half_width * offsets, times)
    at_goal = np.linalg.norm(path[:, -1] - model.equilibrium_, axis=1) < 1e-3
    return int((~(at_goal & np.isfinite(path).all((1, 2)))).sum())


def _make_baseline_row(task: str, protocol: str | None, seeds: int) -> Row:
    """Makes the row of the mean demonstration, over the same splits."""
    record = {"failed": None, "steps": 0, "processor_s": 0.0, "astray": None}
    records = []
    for seed in range(seeds):
        data = load_problem(task, protocol, seed)
        truth = data.test_X.values.numpy()
        predicted = predict_mean_motion(data.train_X, truth[:, 0], data.test_X.n_times)
        records.append(record | {"errors": compute_errors(predicted, truth)})
    return _make_row(task, "mean of demonstrations", 0.0, records, {})


def _make_row(
    task: str, method: str, budget: float, records: list[Record], timing: Mapping[str, Any]
) -> Row:
    metric = TASKS[task].metric
    done = [record for record in records if record["failed"] is None]
    row: Row = {"task": task, "candidate": method, "metric": metric}
    for column, key in (("error", metric), ("interpolation", f"{metric}_interpolation")):
        values = [record["errors"][key] for record in done if key in record["errors"]]
        row[column] = float(np.mean(values)) if values else None
        row[f"{column}_std"] = float(np.std(values)) if len(values) > 1 else None
    counts = [record["astray"] for record in done if record["astray"] is not None]
    return row | {
        "steps": float(np.mean([record["steps"] for record in done])) if done else None,
        "budget_s": budget,
        "processor_s": float(np.mean([r["processor_s"] for r in done])) if done else None,
        "seeds": len(records),
        "failed": len(records) - len(done),
        "learning_rates": " ".join(
            f"{r['asked']['params']['learning_rate']:g}" for r in done if "asked" in r
        ),
        "astray": sum(counts) if counts else None,
        **{
            key: timing.get(key)
            for key in (*Timing._fields, "ratio_to_morph", "field_evaluations", "threads")
        },
    }
