"""Presets for few trajectories, judged on those to learn from alone."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grid import Record, recorded
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


# Changes to a common start, named by what they are.
DEMONSTRATED: dict[str, dict[str, Any]] = {
    **{
        f"spread {spread}, {blocks} blocks": {"start_spread": spread, **_inn(blocks)}
        for blocks in (2, 4)
        for spread in (0.1, 0.3, 0.8)
    },
    "spread 0.3, 2 blocks of 96": {"start_spread": 0.3, **_inn(2, width=96)},
    "spread 0.3, 2 blocks of 32": {"start_spread": 0.3, **_inn(2, width=32)},
    **{
        f"spread {spread}, 2 blocks, 1000 steps": {
            "start_spread": spread,
            "max_epochs": 1000,
            **_inn(2),
        }
        for spread in (0.1, 0.3, 0.8)
    },
    "spread 0.1, 2 blocks of 48, 1000 steps": {
        "start_spread": 0.1,
        "max_epochs": 1000,
        **_inn(2, width=48),
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
            common = {"max_epochs": STEPS} if demonstrated else {}
            params = parameters(task, "morph-exact") | common | changes
            params |= {"max_epochs": 3} if short else {}
            found = [
                _left_out(task, name, params, case, seed, records or RECORDS)["mse"]
                for case in range(len(problem(task).train_X))
                for seed in range(seeds or 1)
            ]
            rows.append(
                {
                    "task": task,
                    "candidate": name,
                    "mse": float(np.mean(found)),
                    "mse_std": float(np.std(found)),
                    "mse_median": float(np.median(found)),
                    "runs": len(found),
                    "steps": DynamicsRegressor(**params).max_epochs,
                }
            )
    return rows


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
