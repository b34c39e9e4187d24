"""A Markdown table of the runs in a folder: `python -m latent_morph.experiments.report FOLDER`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latent_morph.experiments.dynamics import DYNAMICS
from latent_morph.experiments.tasks import TASKS
from latent_morph.io.records import read_json

COLUMNS = (
    "data set",
    "source",
    "protocol",
    "preset",
    "ODE",
    "encoder",
    "seed",
    "test score",
    "epochs",
    "training s",
    "epoch s",
    "integration ms",
    "field evaluations",
)


def figure(value: float) -> str:
    """A score in four decimals, or where these would show little of it in three digits."""
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def table(folder: Path) -> str:
    """One row a record found below `folder`, sorted by data set and then in order of time."""
    records = [read_json(path) for path in sorted(folder.rglob("record.json"), key=_written)]
    if not records:
        raise ValueError(f"no record.json below {folder}")
    records.sort(key=lambda record: record["dataset"])
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(record)) + " |" for record in records]
    return "\n".join(lines)


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _cells(record: dict[str, Any]) -> list[str]:
    test, timings = record["metrics"]["test"], record["timings"]
    metric = (TASKS | DYNAMICS)[record["dataset"]].metric
    integration = timings["integration"]
    evaluations = record["field_evaluations"]
    return [
        record["dataset"],
        record["source"],
        record["protocol"],
        record["preset"],
        record["ode"],
        record["encoder"],
        str(record["seed"]),
        f"{metric} {figure(test[metric])}",
        str(record["epochs"]["run"]),
        f"{timings['training_s']:.0f}",
        f"{timings['epoch_s']['mean']:.1f}",
        f"{integration['mean_ms']:.2f} ± {integration['std_ms']:.2f}",
        "-" if evaluations is None else str(evaluations),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table of the folder named."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1:
        print("usage: python -m latent_morph.experiments.report FOLDER", file=sys.stderr)
        return 2
    try:
        print(table(Path(words[0])))
    except (OSError, ValueError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
