"""The invertible network's blocks and width: error and roll-out time on demonstrated motions."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.grid import Record, recorded
from benchmarks.rows import Row
from benchmarks.trajectories import IMITATION, available, parameters, problem
from latent_morph.diagnostics import Timing, interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import metrics, rolled_out

TITLE = "Blocks and width of the invertible network, on demonstrated motions"
RECORDS = Path("runs/ablation")
STEPS = 600

# Blocks and width: the paper's two lines through 5 x 1,500, then two through 5 x 64.
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
    """One row a size, smallest first; all else is the motion's default preset."""
    rows: list[Row] = []
    for task in available(IMITATION, only):
        for blocks, width in sorted(SIZES, key=lambda size: (size[1], size[0])):
            if widest is not None and width > widest:
                continue
            found = [
                _carried_out(task, blocks, width, seed, short, records or RECORDS)
                for seed in range(seeds or 1)
            ]
            values = [record["mse"] for record in found]
            rows.append(
                {
                    "task": task,
                    "candidate": f"{blocks} x {width}",
                    "blocks": blocks,
                    "width": width,
                    "mse": float(np.mean(values)),
                    "mse_std": float(np.std(values)) if len(values) > 1 else None,
                    **{
                        key: float(np.mean([record[key] for record in found]))
                        for key in Timing._fields
                    },
                    "step_ms": float(np.mean([record["step_ms"] for record in found])),
                    "ratio_to_morph": None,
                    "seeds": len(found),
                    "threads": found[0]["threads"],
                }
            )
    return rows


def _carried_out(
    task: str, blocks: int, width: int, seed: int, short: bool, records: Path
) -> Record:
    params = parameters(task, "morph-exact")
    options: dict[str, Any] = params["ode_options"]
    inn = options["inn"] | {"blocks": blocks, "width": width}
    params |= {"ode_options": options | {"inn": inn}, "max_epochs": 2 if short else STEPS}

    def carry_out() -> Record:
        data = problem(task)
        model = DynamicsRegressor(**params, random_state=seed).fit(data.train_X)
        calls = {"it": lambda: rolled_out(model, data.test_X)}
        return {
            **metrics(model, data),
            **interleaved(calls, repeats=10)["it"]._asdict(),
            "step_ms": 1e3 * float(np.median([row["seconds"] for row in model.history_])),
            "threads": torch.get_num_threads(),
        }

    asked = {"task": task, "data": problem(task).note, "params": params, "seed": seed}
    return recorded(records / f"{task}-{blocks}_x_{width}-{seed}.json", asked, carry_out)
