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
STEPS = 600
TASKS = ("lotka_volterra", *IMITATION)


def _inn(blocks: int, width: int = 64) -> dict[str, Any]:
    return {"ode_options": {"inn": {"blocks": blocks, "width": width, "clamp": 0.3}}}


def _shown(
    spread: float, inn: dict[str, Any], steps: int = STEPS, fade: float | str = 1.0
) -> dict[str, Any]:
    return {"start_spread": spread, "spread_fade": fade, "max_epochs": steps, **inn}


# Changes to the preset, named by what they are; shifts fade evenly where nothing is said.
DEMONSTRATED: dict[str, dict[str, Any]] = {
    **{
        f"spread {spread}, {blocks} blocks": _shown(spread, _inn(blocks))
        for blocks in (2, 4)
        for spread in (0.1, 0.3, 0.8)
    },
    "spread 0.3, 2 blocks of 96": _shown(0.3, _inn(2, 96)),
    "spread 0.3, 2 blocks of 32": _shown(0.3, _inn(2, 32)),
    **{
        f"spread {spread}, 2 blocks, 1000 steps": _shown(spread, _inn(2), 1000)
        for spread in (0.1, 0.3, 0.8)
    },
    "spread 0.1, 2 blocks of 48, 1000 steps": _shown(0.1, _inn(2, 48), 1000),
    **{
        f"spread {spread}, {blocks} blocks of {width}, {steps} steps, fade measured": _shown(
            spread, _inn(blocks, width), steps, "measured"
        )
        for spread, blocks, width, steps in (
            (0.3, 2, 32, 600),
            (0.3, 2, 32, 1000),
            (0.3, 2, 24, 1000),
            (0.8, 2, 32, 600),
            (0.8, 4, 64, 600),
        )
    },
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
    asked = {"task": task, "params": params, "left_out": case, "seed": seed}
    return recorded(records / f"{stem}.json", asked, carry_out)
