"""`python -m benchmarks NAME`: a table on the screen, rows as JSON, a picture."""

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
from benchmarks.rows import as_markdown
from benchmarks.trajectories import IMITATION, LEARNED
from latent_morph.experiments.dynamics import DYNAMICS
from latent_morph.io.records import atomic_path, versions

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
}
# These train many models to the end, for an hour or a day, and continue where they were stopped.
LONG = ("learned", "ablation", "leave_one_out")
TASKS: dict[str, tuple[str, ...]] = {
    "integration": tuple(SETTINGS),
    "roofline": tuple(SETTINGS),
    "sizes": tuple(SETTINGS),
    "rollout": LEARNED,
    "training": LEARNED,
    "learned": LEARNED,
    "ablation": IMITATION,
    "leave_one_out": leave_one_out.TASKS,
}
# Which benchmarks an option is for.
OPTIONS = {
    "seeds": LONG,
    "records": LONG,
    "budget": ("learned",),
    "protocol": ("learned",),
    "widest": ("ablation",),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark, or all of them for a page of results."""
    arguments = _parser().parse_args(argv)
    if arguments.threads < 1:
        print(
            f"benchmarks: --threads must be at least 1, got {arguments.threads}", file=sys.stderr
        )
        return 2
    wrong = _misplaced(arguments)
    if wrong is not None:
        print(f"benchmarks: {wrong}", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    names = [arguments.name]
    if arguments.name == "all":
        names = [name for name in BENCHMARKS if name not in LONG]
    given = _given(arguments)
    sections, everything = [], []
    for name in names:
        print(f"{BENCHMARKS[name].TITLE} ({name}) ...", file=sys.stderr, flush=True)
        rows = BENCHMARKS[name].run(short=arguments.short, **given)
        table = as_markdown(rows)
        print(table, flush=True)
        sections.append(f"## {BENCHMARKS[name].TITLE}\n\n`{_command(name, arguments)}`\n\n{table}")
        everything += rows
        if arguments.plot is not None:
            path = arguments.plot
            if arguments.name == "all":
                path = path.with_name(f"{path.stem}-{name}{path.suffix}")
            print(f"picture: {draw(name, rows, path)}", file=sys.stderr)
    if arguments.json is not None:
        _write(arguments.json, json.dumps(everything, indent=1) + "\n")
    if arguments.markdown is not None:
        _write(arguments.markdown, _page(sections, short=arguments.short))
    return 0


def _parser() -> argparse.ArgumentParser:
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
        help=f"only this one: of {', '.join(SETTINGS)}, or of {', '.join(LEARNED)}",
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch; default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (.png, .svg)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    long = parser.add_argument_group(f"of {', '.join(LONG)}")
    long.add_argument("--seeds", type=_positive(int), metavar="N", help="runs of each; default 1")
    long.add_argument(
        "--records",
        type=Path,
        metavar="FOLDER",
        help="one file a run; those that are there are not run again; default in runs/",
    )
    long.add_argument(
        "--budget",
        type=_positive(float),
        metavar="SECONDS",
        help=f"of learned: processor time of each training; default {learned.BUDGET:g}",
    )
    long.add_argument("--protocol", metavar="NAME", help="of learned: as in run_models.py")
    long.add_argument(
        "--widest", type=_positive(int), metavar="N", help="of ablation: no width beyond"
    )
    return parser


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def number(text: str) -> Any:  # noqa: ANN401
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    number.__name__ = "number"  # what argparse calls it
    return number


def _misplaced(arguments: argparse.Namespace) -> str | None:
    """What is wrong with options that are not for every benchmark."""
    name, task, protocol = arguments.name, arguments.task, arguments.protocol
    if task is not None and task not in TASKS.get(name, ()):
        known = f"one of {', '.join(TASKS[name])}" if name in TASKS else "none"
        return f"--task of {name} is {known}, got {task!r}"
    for option, takers in OPTIONS.items():
        if getattr(arguments, option) is not None and name not in takers:
            return f"--{option} is for {', '.join(takers)}"
    if arguments.plot is not None and name == "leave_one_out":
        return "--plot is not for leave_one_out, which has no times"
    if protocol is not None:
        for one in LEARNED if task is None else (task,):
            known = ", ".join(DYNAMICS[one].protocols)
            if protocol not in DYNAMICS[one].protocols:
                return f"--protocol of {one} is one of {known}, got {protocol!r}"
    return None


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked of the benchmark itself."""
    given = {"only": arguments.task} | {name: getattr(arguments, name) for name in OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def _command(name: str, arguments: argparse.Namespace) -> str:
    words = ["python -m benchmarks", name]
    words += ["--short"] if arguments.short else []
    words += [f"--task '{arguments.task}'"] if arguments.task is not None else []
    for option in ("protocol", "budget", "seeds", "widest"):
        value = getattr(arguments, option)
        words += [f"--{option} {value}"] if value is not None else []
    words += [f"--threads {arguments.threads}"] if arguments.threads != 1 else []
    return " ".join(words)


def _page(sections: Sequence[str], *, short: bool) -> str:
    stage = "a few seconds" if short else "some twenty seconds"
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        "# Results of the benchmarks\n\n"
        "Written by `make bench` or `python -m benchmarks all --markdown FILE`. Candidates of a "
        "table took turns in one process with the same threads; read the ratios, which are those "
        "of medians: a shared machine holds a call up now and then. Every model was "
        f"trained for {stage} before: an adaptive solver takes more steps the longer it has "
        "trained. `morph` may interpolate to a relative error of 1e-5, the tolerance of the "
        "adaptive solvers; `morph-exact` evaluates every point.\n\n"
        f"{made_with}\n\n" + "\n\n".join(sections) + "\n"
    )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
