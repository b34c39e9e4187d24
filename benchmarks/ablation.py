"""Error and roll-out time on demonstrated motions by size of the invertible network."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cache import Record, run_cached
from benchmarks.rows import Row
from benchmarks.trajectories import IMITATION, get_parameters, list_available, load_problem
from latent_morph.diagnostics import Timing, time_interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import roll_out
from latent_morph.experiments.registry import get_learner

TITLE = "Blocks and width of the invertible network, on demonstrated motions"
RECORDS = Path("runs/ablation")
STEPS = 600

# Blocks and width: one of them varied from the paper's 5 x 1,500, then from 5 x 64.
SIZES = (
    *((blocks, 1500) for blocks in range(2, 9)),
    *((5, width) for width in (500, 1000, 2000, 2500)),
    *((blocks, 64) for blocks in range(2, 9)),
    *((5, width) for width in (32, 128, 256)),
)


def run(
    *,
    short: bool,
    only: str | None = None,
    seeds: int | None = None,
    records: Path | None = None,
    widest: int | None = None,
) -> list[Row]:
    """Makes one row per size, smallest first, with the default preset of the motion otherwise."""
    rows: list[Row] = []
    for task in list_available(IMITATION, only):
        for blocks, width in sorted(SIZES, key=lambda size: (size[1], size[0])):
            if widest is not None and width > widest:
                continue
            results = [
                _train_cached(task, blocks, width, seed, short, records or RECORDS)
                for seed in range(seeds or 1)
            ]
            errors = [record["mse"] for record in results]
            rows.append(
                {
                    "task": task,
                    "candidate": f"{blocks} x {width}",
                    "blocks": blocks,
                    "width": width,
                    "mse": float(np.mean(errors)),
                    "mse_std": float(np.std(errors)) if len(errors) > 1 else None,
                    **{
                        key: float(np.mean([record[key] for record in results]))
                        for key in Timing._fields
                    },
                    "step_ms": float(np.mean([record["step_ms"] for record in results])),
                    "ratio_to_morph": None,
                    "seeds": len(results),
                    "threads": results[0]["threads"],
                }
            )
    return rows


def _train_cached(
    task: str, blocks: int, width: int, seed: int, short: bool, records: Path
) -> Record:
    params = get_parameters(task, "morph-exact")
    options: dict[str, Any] = params["ode_options"]
    inn = options["inn"] | {"blocks": blocks, "width": width}
    params |= {"ode_options": options | {"inn": inn}, "max_epochs": 2 if short else STEPS}

    def train() -> Record:
        data = load_problem(task)
        model = DynamicsRegressor(**params, random_state=seed).fit(data.train_X)
        calls = {"predict": lambda: roll_out(model, data.test_X)}
        return {
            **get_learner(task).metrics(get_learner(task).predict(model, data), data),
            **time_interleaved(calls, repeats=10)["predict"]._asdict(),
            "step_ms": 1e3 * float(np.median([row["seconds"] for row in model.history_])),
            "threads": torch.get_num_threads(),
        }

    settings = {"task": task, "data": load_problem(task).note, "params": params, "seed": seed}
    return run_cached(records / f"{task}-{blocks}_x_{width}-{seed}.json", settings, train)
