"""Records as text; `python -m latent_morph.experiments.report FOLDER` makes a Markdown table."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latent_morph.experiments.registry import TASKS
from latent_morph.io.records import read_json


def format_score(value: float) -> str:
    """Formats a score with four decimals, or with three digits if it is small."""
    return f"{value:.2e}" if 0 < abs(value) < 1e-3 else f"{value:.4f}"


def format_data(dataset: str, source: str) -> str:
    """Returns the name of the data, marked if they are a stand-in."""
    is_stand_in = TASKS[dataset].is_stand_in(source)
    return f"{dataset} (synthetic stand-in)" if is_stand_in else dataset


def format_result(record: dict[str, Any]) -> str:
    """Formats a run's test metrics as one line."""
    test = record["metrics"]["test"].items()
    scores = "  ".join(f"{name} {format_score(value)}" for name, value in test)
    epochs = f"{record['epochs']['run']} epochs, " if record["epochs"] else ""
    return (
        f"{format_data(record['dataset'], record['source'])}, {record['ode'] or record['model']}, "
        f"{record['preset']} preset, protocol {record['protocol']}: test {scores}  "
        f"({epochs}{record['timings']['training_s']:.0f} s)"
    )


def format_comparison(title: str, metric: str, rows: Sequence[dict[str, Any]]) -> str:
    """Formats the table of several ODEs below its title."""
    lines = [
        title,
        f"{'ODE':<12} {'test ' + metric:>14} {'integration ms':>20} {'x morph':>9} "
        f"{'field evals':>12} {'epochs':>7}",
    ]
    for row in rows:
        spread = f"{row['integration_ms_mean']:.2f} ± {row['integration_ms_std']:.2f}"
        ratio = "-" if row["ratio_to_morph"] is None else f"{row['ratio_to_morph']:.1f}"
        lines.append(
            f"{row['ode']:<12} {format_score(row['score']):>14} {spread:>20} {ratio:>9} "
            f"{_format_optional(row['field_evaluations']):>12} {row['epochs']:>7}"
        )
    return "\n".join(lines)


def format_records(folder: Path) -> str:
    """Formats one row per record below `folder`, sorted by data set and then by time."""
    paths = sorted(folder.rglob("record.json"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise ValueError(f"folder must hold a record.json somewhere, got {folder}")
    records = sorted(map(read_json, paths), key=lambda record: record["dataset"])
    rows = [_format_cells(record) for record in records]
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cells(record: dict[str, Any]) -> dict[str, str]:
    task, timings = TASKS[record["dataset"]], record["timings"]
    metric, integration = task.metric, timings.get("integration")
    epochs, epoch_s = record["epochs"], timings.get("epoch_s")
    return {
        "data set": record["dataset"],
        "source": record["source"],
        "protocol": record["protocol"],
        "preset": record["preset"],
        "model": record.get("model", next(iter(task.learners))),  # version 0.1 had only one
        "ODE": _format_optional(record["ode"]),
        "encoder": record["encoder"],
        "seed": str(record["seed"]),
        "test score": f"{metric} {format_score(record['metrics']['test'][metric])}",
        "epochs": _format_optional(epochs and epochs["run"]),
        "training s": f"{timings['training_s']:.0f}",
        "epoch s": _format_optional(epoch_s and f"{epoch_s['mean']:.1f}"),
        "integration ms": _format_optional(
            integration and f"{integration['mean_ms']:.2f} ± {integration['std_ms']:.2f}"
        ),
        "field evaluations": _format_optional(record["field_evaluations"]),
    }


def _format_optional(value: object) -> str:
    return "-" if value is None else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table of a folder."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1:
        print("usage: python -m latent_morph.experiments.report FOLDER", file=sys.stderr)
        return 2
    try:
        print(format_records(Path(words[0])))
    except (OSError, ValueError) as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
