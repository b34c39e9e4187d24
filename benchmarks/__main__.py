"""`python -m benchmarks NAME`: prints a table; writes rows as JSON, a figure, a page."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import (
    ablation,
    epoch,
    few_labels,
    filter_growth,
    filters,
    growth,
    integration,
    learned,
    leave_one_out,
    rollout,
    roofline,
    sizes,
    training,
)
from benchmarks.models import SETTINGS
from benchmarks.pictures import draw
from benchmarks.rows import format_markdown
from benchmarks.trajectories import IMITATION, LEARNED
from latent_morph.experiments import registry
from latent_morph.io.atomic import write_bytes_atomic
from latent_morph.io.records import versions

BENCHMARKS: dict[str, Any] = {
    "integration": integration,
    "growth": growth,
    "epoch": epoch,
    "roofline": roofline,
    "sizes": sizes,
    "rollout": rollout,
    "training": training,
    "learned": learned,
    "ablation": ablation,
    "leave_one_out": leave_one_out,
    "filter_growth": filter_growth,
    "filters": filters,
    "few_labels": few_labels,
}
# These train many models, for hours, and resume where they were stopped.
LONG = ("learned", "ablation", "leave_one_out", "filters", "few_labels")
# Benchmarks whose figures are not times of candidates.
NOT_DRAWN = ("leave_one_out", "filters", "few_labels")
TASKS: dict[str, tuple[str, ...]] = {
    "integration": tuple(SETTINGS),
    "roofline": tuple(SETTINGS),
    "sizes": tuple(SETTINGS),
    "rollout": LEARNED,
    "training": LEARNED,
    "learned": LEARNED,
    "ablation": IMITATION,
    "leave_one_out": leave_one_out.TASKS,
    "filters": filters.TASKS,
}
# Benchmarks that have an option.
OPTIONS = {
    "seeds": LONG,
    "records": LONG,
    "budget": ("learned",),
    "protocol": ("learned",),
    "widest": ("ablation",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark, or all of them for a page of results."""
    arguments = _make_parser().parse_args(argv)
    if arguments.threads < 1:
        print(
            f"benchmarks: --threads must be at least 1, got {arguments.threads}", file=sys.stderr
        )
        return 2
    misuse = _find_misuse(arguments)
    if misuse is not None:
        print(f"benchmarks: {misuse}", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    names = [arguments.name]
    if arguments.name == "all":
        names = [name for name in BENCHMARKS if name not in LONG]
    options = _get_options(arguments)
    sections, all_rows = [], []
    for name in names:
        print(f"{BENCHMARKS[name].TITLE} ({name}) ...", file=sys.stderr, flush=True)
        rows = BENCHMARKS[name].run(short=arguments.short, **options)
        table = format_markdown(rows)
        print(table, flush=True)
        sections.append(
            f"## {BENCHMARKS[name].TITLE}\n\n`{_format_command(name, arguments)}`\n\n{table}"
        )
        all_rows += rows
        if arguments.plot is not None:
            path = arguments.plot
            if arguments.name == "all":
                path = path.with_name(f"{path.stem}-{name}{path.suffix}")
            print(f"figure: {draw(name, rows, path)}", file=sys.stderr)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(all_rows, indent=1) + "\n")
    if arguments.markdown is not None:
        _write(arguments.markdown, _format_page(sections, short=arguments.short))
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        choices=[*BENCHMARKS, "all"],
        help=f"what to measure; all but {', '.join(LONG)} with 'all'",
    )
    parser.add_argument("--short", action="store_true", help="less training, fewer repeats")
    parser.add_argument(
        "--task",
        metavar="NAME",
        help=f"only this one: of {', '.join((*SETTINGS, *LEARNED, *filters.TASKS))}",
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch; default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (.png, .svg)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    long = parser.add_argument_group(f"of {', '.join(LONG)}")
    long.add_argument(
        "--seeds",
        type=_make_positive(int),
        metavar="N",
        help="runs of each; default 1, of filters and few_labels 3",
    )
    long.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="one file per run; a run whose file exists is not repeated; default in runs/",
    )
    long.add_argument(
        "--budget",
        type=_make_positive(float),
        metavar="SECONDS",
        help=f"of learned: processor time of each training; default {learned.BUDGET:g}",
    )
    long.add_argument("--protocol", metavar="NAME", help="of learned: as in run_models.py")
    long.add_argument(
        "--widest", type=_make_positive(int), metavar="N", help="of ablation: no width beyond"
    )
    return parser


def _make_positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes an argparse type of positive finite numbers."""

    def number(text: str) -> Any:  # noqa: ANN401
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    return number


def _find_misuse(arguments: argparse.Namespace) -> str | None:
    """Returns a message if an option is not for this benchmark or has an invalid value."""
    name, task, protocol = arguments.name, arguments.task, arguments.protocol
    if task is not None and task not in TASKS.get(name, ()):
        known = f"one of {', '.join(TASKS[name])}" if name in TASKS else "none"
        return f"--task of {name} must be {known}, got {task!r}"
    for option, benchmarks in OPTIONS.items():
        if getattr(arguments, option) is not None and name not in benchmarks:
            return f"--{option} must be used with {', '.join(benchmarks)}, got {name}"
    if arguments.plot is not None and name in NOT_DRAWN:
        return f"--plot must be used with a benchmark of times, got {name}"
    if protocol is not None:
        for each in LEARNED if task is None else (task,):
            protocols = registry.TASKS[each].protocols
            if protocol not in protocols:
                return (
                    f"--protocol of {each} must be one of {', '.join(protocols)}, got {protocol!r}"
                )
    return None


def _get_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keyword arguments of `run` that were given."""
    options = {"only": arguments.task} | {name: getattr(arguments, name) for name in OPTIONS}
    return {name: value for name, value in options.items() if value is not None}


def _format_command(name: str, arguments: argparse.Namespace) -> str:
    words = ["python -m benchmarks", name]
    words += ["--short"] if arguments.short else []
    words += [f"--task '{arguments.task}'"] if arguments.task is not None else []
    for option in ("protocol", "budget", "seeds", "widest"):
        value = getattr(arguments, option)
        words += [f"--{option} {value}"] if value is not None else []
    words += [f"--threads {arguments.threads}"] if arguments.threads != 1 else []
    return " ".join(words)


def _format_page(sections: Sequence[str], *, short: bool) -> str:
    duration = "a few seconds" if short else "about twenty seconds"
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        "# Results of the benchmarks\n\n"
        "Written by `make bench` or `python -m benchmarks all --markdown FILE`. Candidates of a "
        "table took turns in one process with the same threads; compare the ratios, which are "
        "those of medians, as a shared machine delays single calls. Every model was first trained "
        f"for {duration}, as adaptive solvers take more steps after training. `morph` may "
        "interpolate to a relative error of 1e-5, the tolerance of the adaptive solvers; "
        "`morph-exact` evaluates every point.\n\n"
        f"{made_with}\n\n" + "\n\n".join(sections) + "\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes_atomic(path, text.encode())


if __name__ == "__main__":
    raise SystemExit(main())
