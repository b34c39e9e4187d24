"""Leave-one-out errors of presets for few trajectories, on training data only."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cache import Record, run_cached
from benchmarks.mean_motion import predict_mean_motion
from benchmarks.rows import Row
from benchmarks.trajectories import IMITATION, get_parameters, list_available, load_problem
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import compute_errors, roll_out

TITLE = "Presets for few trajectories: leave-one-out errors on the training trajectories"
RECORDS = Path("runs/leave-one-out")
TASKS = ("lotka_volterra", *IMITATION)


def _make_inn_options(blocks: int, width: int) -> dict[str, Any]:
    return {"ode_options": {"inn": {"blocks": blocks, "width": width, "clamp": 0.3}}}


# Changes to the preset of demonstrations: the spread of starts, blocks and width of the network,
# steps, and the fading of shifted starts.
IMITATION_VARIANTS: dict[str, dict[str, Any]] = {
    f"spread {spread}, {blocks} x {width}, {steps} steps, fade {fade}": {
        "start_spread": spread,
        "spread_fade": fade,
        "max_epochs": steps,
        **_make_inn_options(blocks, width),
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
# Changes to the presets of other trajectories: the size of the network.
SIZE_VARIANTS: dict[str, dict[str, Any]] = {
    f"{blocks} blocks of {width}": _make_inn_options(blocks, width)
    for blocks, width in ((2, 32), (2, 48), (2, 64), (3, 48), (3, 64), (4, 64))
}


def run(
    *,
    short: bool,
    only: str | None = None,
    seeds: int | None = None,
    records: Path | None = None,
) -> list[Row]:
    """Makes one row per variant; test trajectories are not used."""
    rows: list[Row] = []
    for task in list_available(TASKS, only):
        variants = IMITATION_VARIANTS if task in IMITATION else SIZE_VARIANTS
        for name, changes in variants.items():
            params = get_parameters(task, "morph-exact") | changes
            params |= {"max_epochs": 3} if short else {}
            mse = [
                _evaluate_cached(task, name, params, case, seed, records or RECORDS)["mse"]
                for case in range(len(load_problem(task).train_X))
                for seed in range(seeds or 1)
            ]
            rows.append(_make_row(task, name, mse, steps=DynamicsRegressor(**params).max_epochs))
        if task in IMITATION:
            rows.append(_make_row(task, "mean of the others", _evaluate_baseline(task), steps=0))
    return rows


def _make_row(task: str, name: str, mse: list[float], *, steps: int) -> Row:
    return {
        "task": task,
        "candidate": name,
        "mse": float(np.mean(mse)),
        "mse_std": float(np.std(mse)),
        "mse_median": float(np.median(mse)),
        "runs": len(mse),
        "steps": steps,
    }


def _evaluate_baseline(task: str) -> list[float]:
    """Error of the mean of the other demonstrations, on each demonstration."""
    X = load_problem(task).train_X
    mse = []
    for case in range(len(X)):
        truth = X[[case]].values.numpy()
        others = X[[i for i in range(len(X)) if i != case]]
        mse.append(
            compute_errors(predict_mean_motion(others, truth[:, 0], X.n_times), truth)["mse"]
        )
    return mse


def _evaluate_cached(
    task: str, name: str, params: dict[str, Any], case: int, seed: int, records: Path
) -> Record:
    def evaluate() -> Record:
        X = load_problem(task).train_X
        others = [i for i in range(len(X)) if i != case]
        model = DynamicsRegressor(**params, random_state=seed).fit(X[others])
        test = X[[case]]
        return compute_errors(roll_out(model, test), test.values.numpy())

    stem = f"{task}-{name.replace(', ', '-').replace(' ', '_')}-without_{case}-seed_{seed}"
    data = load_problem(task).note
    settings = {"task": task, "data": data, "params": params, "left_out": case, "seed": seed}
    return run_cached(records / f"{stem}.json", settings, evaluate)
