"""What each method learns of an ODE in the same time: errors as the paper defines them."""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grid import Record, recorded
from benchmarks.mean_motion import mean_motion
from benchmarks.rollout import measured
from benchmarks.rows import Row
from benchmarks.trajectories import (
    IMITATION,
    LEARNED,
    SOLVERS,
    available,
    parameters,
    problem,
)
from latent_morph.diagnostics import Timing
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import DYNAMICS, Problem, errors, metrics
from latent_morph.models.linear_fit import base_of
from latent_morph.series import SeriesBatch
from latent_morph.training import TrainingError
from latent_morph.training.callbacks import AnyCallback, History, Settings

TITLE = "ODEs learned from trajectories, every method for the same seconds of processor time"
RECORDS = Path("runs/learned")
BUDGET = 20.0  # seconds of processor time
TRIES = 4  # of a number of steps
RATES = (1e-3, 5e-3)  # learning rates, of which each run takes the better
STARTS = 1000  # from which a stable ODE has to come home


def run(
    *,
    short: bool,
    only: str | None = None,
    protocol: str | None = None,
    budget: float | None = None,
    seeds: int | None = None,
    records: Path | None = None,
) -> list[Row]:
    """One row a method: errors over the seeds, and the time of a roll-out with the first of them.

    A seed is a seed of the training and, where data are generated or split at random, of these.
    Every method trains with each learning rate of `RATES`, each for the whole budget; roll-outs
    from the trajectories that were learned from decide which one counts.
    """
    budget = budget or (0.5 if short else BUDGET)
    tasks = available(LEARNED, only)
    found: dict[str, dict[str, list[Record]]] = {}
    models: dict[str, dict[str, DynamicsRegressor]] = {task: {} for task in tasks}
    for seed in range(seeds or 1):  # outermost: a table of one seed is better than half a table
        for task in tasks:
            for method in methods(task):
                folder = (records or RECORDS) / f"{task}-{protocol or 'default'}-{budget:g}s"
                tried = {}
                for rate in RATES:
                    path = folder / f"{method}-{rate:g}-{seed}.json"
                    tried[path] = _carried_out(path, task, method, protocol, budget, seed, rate)
                path = min(tried, key=lambda path: _learned_error(tried[path]))
                found.setdefault(task, {}).setdefault(method, []).append(tried[path])
                if seed == 0 and tried[path]["failed"] is None:
                    models[task][method] = DynamicsRegressor.load(_model_file(path))
    rows: list[Row] = []
    for task, by_method in found.items():
        test = problem(task, protocol, 0).test_X
        timed = measured(task, models[task], test, repeats=3 if short else 5, flows=False)
        times = {row["candidate"]: row for row in timed}
        rows += [
            _row(task, method, budget, some, times.get(method, {}))
            for method, some in by_method.items()
        ]
        if task in IMITATION:
            rows.append(_by_the_mean(task, protocol, seeds or 1))
    return rows


def methods(task: str) -> tuple[str, ...]:
    """The paper's table: a linear base, or a neural one as well, and solvers."""
    neural = () if task in IMITATION or task == "lotka_volterra" else ("morph-neural",)
    return ("morph", *neural, *SOLVERS)


def _model_file(record: Path) -> Path:
    return record.with_suffix(".safetensors")


def _carried_out(
    path: Path,
    task: str,
    method: str,
    protocol: str | None,
    budget: float,
    seed: int,
    rate: float,
) -> Record:
    params = parameters(task, method) | {"learning_rate": rate}

    def carry_out() -> Record:
        data = problem(task, protocol, seed)
        model = DynamicsRegressor(**params, random_state=seed)
        try:
            steps, spent = fit_within(model, data.train_X, budget)
        except TrainingError as problem_met:  # the paper's "N/A": a solver that gets nowhere
            return {"failed": str(problem_met)}
        model.save(_model_file(path))
        return {
            "failed": None,
            "learned_error": -model.score(data.train_X),
            "errors": metrics(model, data),
            "steps": steps,
            "processor_s": spent,
            "astray": _astray(model, data),
        }

    asked = {
        "task": task,
        "protocol": protocol,
        "data": problem(task, protocol, seed).note,
        "params": params,
        "budget": budget,
        "seed": seed,
    }
    return recorded(path, asked, carry_out)


def _learned_error(record: Record) -> float:
    """On the trajectories learned from; a run that failed, or left the numbers, comes last."""
    error = record.get("learned_error")
    return math.inf if error is None or not math.isfinite(error) else float(error)


class _Overdrawn(Exception):
    """Training takes much more than its budget; the argument is the number of steps that fit."""


def fit_within(model: DynamicsRegressor, X: SeriesBatch, budget: float) -> tuple[int, float]:
    """Fits with the steps that `budget` seconds of processor time allow: how many, and the time.

    Not by the clock: on a shared machine that would measure what else is running. The number of
    steps comes from the first five. What an adaptive solver's steps take changes as it learns: a
    training that is half as much again over the budget, or a quarter below it, starts anew with
    another number, up to `TRIES` times in all. The last one may stay below.
    """
    some = 5
    model.set_params(max_epochs=1).fit(X)  # pays for imports, caches and allocations
    begin = time.process_time()
    model.set_params(max_epochs=some).fit(X)
    steps = max(1, round(budget * some / (time.process_time() - begin)))
    tries = 1
    while True:
        begin = time.process_time()
        try:
            model.set_params(max_epochs=steps, callbacks=[_limit(begin, budget)]).fit(X)
        except _Overdrawn as problem_met:
            steps = problem_met.args[0]
        else:
            spent = time.process_time() - begin
            if spent >= 0.75 * budget or tries >= TRIES:
                model.set_params(callbacks=None)
                return steps, spent
            steps = max(steps + 1, round(steps * budget / spent))
        tries += 1


def _limit(begin: float, budget: float) -> AnyCallback:
    def check(history: History, settings: Settings) -> None:
        spent, done = time.process_time() - begin, len(history.rows)
        if spent > 1.5 * budget and done < settings.max_epochs:
            raise _Overdrawn(max(1, int(done * budget / spent)))

    return check


def _astray(model: DynamicsRegressor, data: Problem) -> int | None:
    """How many random starts do not end within 1e-3 of the goal; None if nothing is promised.

    Starts fill a box three times as large as the demonstrations'. The end is that of sixty e-folds
    of the slowest mode, on the way to which everything has to be finite.
    """
    base = base_of(model.model_.flow)
    if not model.stable or base is None or model.equilibrium_ is None:
        return None
    seen = data.train_X.values[data.train_X.observed].numpy()
    middle, half = (seen.max(0) + seen.min(0)) / 2, (seen.max(0) - seen.min(0)) / 2
    sides = np.random.default_rng(0).uniform(-3, 3, (STARTS, seen.shape[1]))
    slowest = float(-base.rates.detach().max())
    times = np.array([0.1, 0.3, 1.0, 3.0, 60.0 / slowest]) * model.scaler_.time_scale_
    path = model.predict(middle + half * sides, times)
    home = np.linalg.norm(path[:, -1] - model.equilibrium_, axis=1) < 1e-3
    return int((~(home & np.isfinite(path).all((1, 2)))).sum())


def _by_the_mean(task: str, protocol: str | None, seeds: int) -> Row:
    """The row of what needs no learning, over the same splits."""
    found = []
    for seed in range(seeds):
        data = problem(task, protocol, seed)
        truth = data.test_X.values.numpy()
        found.append(errors(mean_motion(data.train_X, truth[:, 0], data.test_X.n_times), truth))
    record = {"failed": None, "steps": 0, "processor_s": 0.0, "astray": None}
    records = [record | {"errors": error} for error in found]
    return _row(task, "mean of demonstrations", 0.0, records, {})


def _row(
    task: str, method: str, budget: float, records: list[Record], timed: Mapping[str, Any]
) -> Row:
    metric = DYNAMICS[task].metric
    done = [record for record in records if record["failed"] is None]
    row: Row = {"task": task, "candidate": method, "metric": metric}
    for shown, key in (("error", metric), ("interpolation", f"{metric}_interpolation")):
        values = [record["errors"][key] for record in done if key in record["errors"]]
        row[shown] = float(np.mean(values)) if values else None
        row[f"{shown}_std"] = float(np.std(values)) if len(values) > 1 else None
    lost = [record["astray"] for record in done if record["astray"] is not None]
    return row | {
        "steps": float(np.mean([record["steps"] for record in done])) if done else None,
        "budget_s": budget,
        "processor_s": float(np.mean([r["processor_s"] for r in done])) if done else None,
        "seeds": len(records),
        "failed": len(records) - len(done),
        "learning_rates": " ".join(
            f"{r['asked']['params']['learning_rate']:g}" for r in done if "asked" in r
        ),
        "astray": sum(lost) if lost else None,
        **{
            key: timed.get(key)
            for key in (*Timing._fields, "ratio_to_morph", "field_evaluations", "threads")
        },
    }
