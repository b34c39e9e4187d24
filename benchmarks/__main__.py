"""`python -m benchmarks NAME`: a table on the screen, rows as JSON, a picture."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks import epoch, growth, integration, roofline, sizes
from benchmarks.models import SETTINGS
from benchmarks.pictures import draw
from benchmarks.rows import as_markdown
from latent_morph.records import atomic_path, versions

BENCHMARKS = {
    "integration": integration,
    "growth": growth,
    "epoch": epoch,
    "roofline": roofline,
    "sizes": sizes,
}

BY_TASK = ("integration", "roofline", "sizes")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark, or all of them for a page of results."""
    arguments = _parser().parse_args(argv)
    if arguments.threads < 1:
        print(
            f"benchmarks: --threads must be at least 1, got {arguments.threads}", file=sys.stderr
        )
        return 2
    if arguments.task is not None and arguments.name not in BY_TASK:
        print(f"benchmarks: --task is for {', '.join(BY_TASK)}", file=sys.stderr)
        return 2
    torch.set_num_threads(arguments.threads)
    names = list(BENCHMARKS) if arguments.name == "all" else [arguments.name]
    sections, everything = [], []
    for name in names:
        print(f"{BENCHMARKS[name].TITLE} ({name}) ...", file=sys.stderr, flush=True)
        only = {} if arguments.task is None else {"only": arguments.task}
        rows = BENCHMARKS[name].run(short=arguments.short, **only)
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
    parser.add_argument("name", choices=[*BENCHMARKS, "all"], help="what to measure")
    parser.add_argument("--short", action="store_true", help="less training, fewer repeats")
    parser.add_argument(
        "--task",
        choices=list(SETTINGS),
        metavar="NAME",
        help=f"of {', '.join(BY_TASK)}: only this one of {', '.join(SETTINGS)}",
    )
    parser.add_argument("--threads", type=int, default=1, help="of torch; default 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw them there (.png, .svg)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables there")
    return parser


def _command(name: str, arguments: argparse.Namespace) -> str:
    extra = " --short" if arguments.short else ""
    extra += f" --task '{arguments.task}'" if arguments.task is not None else ""
    threads = f" --threads {arguments.threads}" if arguments.threads != 1 else ""
    return f"python -m benchmarks {name}{extra}{threads}"


def _page(sections: Sequence[str], *, short: bool) -> str:
    stage = "a few seconds" if short else "some twenty seconds"
    made_with = ", ".join(f"{name} {version}" for name, version in versions().items())
    return (
        "# Results of the benchmarks\n\n"
        "Written by `make bench` or `python -m benchmarks all --markdown FILE`. Candidates of a "
        "table took turns in one process with the same threads; read the ratios. Every model was "
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
