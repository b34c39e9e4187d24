"""Presets for few trajectories, judged on those to learn from alone."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grid import Record, recorded
from benchmarks.mean_motion import mean_motion
from benchmarks.rows import Row
from benchmarks.trajectories import IMITATION, available, parameters, problem
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import errors, rolled_out

TITLE = "Presets for few trajectories: error on each to learn from, learned from the others"
RECORDS = Path("runs/leave-one-out")
TASKS = ("lotka_volterra", *IMITATION)


def _inn(blocks: int, width: int) -> dict[str, Any]:
    return {"ode_options": {"inn": {"blocks": blocks, "width": width, "clamp": 0.3}}}


# Changes to the preset, named by what they are: the spread of starts, blocks and width of the
# network, steps, and how shifts of starts fade.
DEMONSTRATED: dict[str, dict[str, Any]] = {
    f"spread {spread}, {blocks} x {width}, {steps} steps, fade {fade}": {
        "start_spread": spread,
        "spread_fade": fade,
        "max_epochs": steps,
        **_inn(blocks, width),
    }
    for spreads, sizes, steps, fade in (
        ((0.1, 0.3, 0.8), ((2, 32), (2, 64), (4, 64)), 600, "measured"),
        ((0.3, 0.8), ((2, 32), (4, 64)), 1000, "measured"),
        ((0.3, 0.8), ((2, 32), (4, 64)), 600, 1.0),
        ((0.3,), ((2, 24),), 1000, "measured"),
    )
    for blocks, width in sizes
    for spread in spreads
}
# Changes to the preset: the network.
SIZED: dict[str, dict[str, Any]] = {
    f"{blocks} blocks of {width}": _inn(blocks, width)
    for blocks, width in ((2, 32), (2, 48), (2, 64), (3, 48), (3, 64), (4, 64))
}


def run(
    *,
    short: bool,
    only: str | None = None,
    seeds: int | None = None,
    records: Path | None = None,
) -> list[Row]:
    """One row a variant; what is there for testing is not touched."""
    rows: list[Row] = []
    for task in available(TASKS, only):
        demonstrated = task in IMITATION
        for name, changes in (DEMONSTRATED if demonstrated else SIZED).items():
            params = parameters(task, "morph-exact") | changes
            params |= {"max_epochs": 3} if short else {}
            found = [
                _left_out(task, name, params, case, seed, records or RECORDS)["mse"]
                for case in range(len(problem(task).train_X))
                for seed in range(seeds or 1)
            ]
            rows.append(_row(task, name, found, steps=DynamicsRegressor(**params).max_epochs))
        if demonstrated:
            rows.append(_row(task, "mean of the others", _by_the_mean(task), steps=0))
    return rows


def _row(task: str, name: str, found: list[float], *, steps: int) -> Row:
    return {
        "task": task,
        "candidate": name,
        "mse": float(np.mean(found)),
        "mse_std": float(np.std(found)),
        "mse_median": float(np.median(found)),
        "runs": len(found),
        "steps": steps,
    }


def _by_the_mean(task: str) -> list[float]:
    """The error on each demonstration of what needs no learning."""
    X = problem(task).train_X
    found = []
    for case in range(len(X)):
        held = X[[case]].values.numpy()
        others = X[[i for i in range(len(X)) if i != case]]
        found.append(errors(mean_motion(others, held[:, 0], X.n_times), held)["mse"])
    return found


def _left_out(
    task: str, name: str, params: dict[str, Any], case: int, seed: int, records: Path
) -> Record:
    def carry_out() -> Record:
        X = problem(task).train_X
        others = [i for i in range(len(X)) if i != case]
        model = DynamicsRegressor(**params, random_state=seed).fit(X[others])
        held = X[[case]]
        return errors(rolled_out(model, held), held.values.numpy())

    stem = f"{task}-{name.replace(', ', '-').replace(' ', '_')}-without_{case}-seed_{seed}"
    data = problem(task).note
    asked = {"task": task, "data": data, "params": params, "left_out": case, "seed": seed}
    return recorded(records / f"{stem}.json", asked, carry_out)
