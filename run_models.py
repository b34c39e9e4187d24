"""Train a latent ODE on a data set and report: `run_models.py --dataset activity --ode morph`."""

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from latent_morph.experiments import dynamics, runs
from latent_morph.experiments.dynamics import DYNAMICS
from latent_morph.experiments.presets import PRESETS, preset_parameters
from latent_morph.experiments.progress import Progress
from latent_morph.experiments.report import figure
from latent_morph.experiments.runs import Run
from latent_morph.experiments.tasks import SOURCES, TASKS, Request
from latent_morph.flows import FLOWS, IntegrationError
from latent_morph.io.records import new_run_folder, read_json, write_json
from latent_morph.training import TrainingError

# What `--ode all` compares: the closed forms, and the solvers of the paper's tables.
COMPARED = ("morph", "morph-real", "linear", "euler", "midpoint", "rk4", "dopri5", "dopri8")
# Parameters that the command has its own words for.
OWN_WORDS = {"ode", "random_state", "checkpoint", "resume", "callbacks", "verbose"}
QUICK = {"n_cases": 120, "max_epochs": 2}
# Latent ODEs of series, and ODEs learned from trajectories themselves.
ALL: dict[str, Any] = {**TASKS, **DYNAMICS}
GENERATED = ("periodic", "lotka_volterra", "lorenz", "rober")  # by definition, not as stand-ins
# Without any argument: something to see within a minute or so.
FIRST_LOOK = ["--dataset", "periodic", "--ode", "morph", "--budget", "50"]


class UsageError(Exception):
    """The arguments make no sense together; the message says why."""


def build_parser(dataset: str) -> argparse.ArgumentParser:
    """Options of the command, and one for each parameter of the data set's estimator."""
    task = ALL[dataset]
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Defaults shown are those of the estimator; a preset may set others, and what is "
        "given here wins.",
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--dataset",
        choices=list(ALL),
        default="periodic",
        help="default periodic, which needs no file",
    )
    run.add_argument(
        "--ode",
        choices=[*FLOWS, "all"],
        default="morph",
        metavar="NAME",
        help=f"the ODE: {', '.join(FLOWS)}; or all, to compare {', '.join(COMPARED)}",
    )
    run.add_argument(
        "--preset",
        choices=PRESETS,
        default="default",
        help="our defaults, or the settings of the paper's appendix",
    )
    run.add_argument(
        "--quick", action="store_true", help="a few series and epochs, to see everything work"
    )
    run.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of generated data, random splits, start and training; default 0",
    )
    run.add_argument("--out", type=Path, default=Path("runs"), help="folder for results")
    run.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="continue the interrupted run in this folder, with its own arguments",
    )
    run.add_argument(
        "--json",
        action="store_true",
        help="print the record, and nothing else, on standard output",
    )
    run.add_argument(
        "--threads",
        type=int,
        default=1,
        help="of torch; default 1, since the operations are small and more threads wait for each "
        "other on a busy machine",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--source",
        choices=SOURCES,
        default="auto",
        help="auto takes the real file, or else a generated stand-in, and says so",
    )
    data.add_argument("--data-home", type=Path, help="folder with the data files")
    data.add_argument(
        "--protocol",
        choices=task.protocols,
        default=next(iter(task.protocols)),
        help="; ".join(f"{name}: {what}" for name, what in task.protocols.items()).replace(
            "%", "%%"
        ),
    )
    data.add_argument("--n-cases", type=int, help="take so many series")
    if task.takes_n_times:
        data.add_argument("--n-times", type=int, default=100, help="points a series, default 100")
    if task.takes_keep:
        data.add_argument("--keep", type=float, help="share of the points that is shown")
    model = parser.add_argument_group(f"parameters of {task.estimator.__name__}")
    for name, parameter in inspect.signature(task.estimator).parameters.items():
        if name in OWN_WORDS or (name == "keep" and task.takes_keep):
            continue
        model.add_argument(
            f"--{name.replace('_', '-')}",
            type=_value,
            default=argparse.SUPPRESS,
            metavar="VALUE",
            help=f"default {parameter.default}",
        )
    return parser


def _value(text: str) -> Any:  # noqa: ANN401
    """A number, true, false, none, a JSON object, or else the text itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        return text


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments; those of an interrupted run where one is to be continued."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        say(f"No arguments: a first look, as with {' '.join(FIRST_LOOK)} (--help for more)")
        words = FIRST_LOOK
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--dataset", default="periodic")
    dataset = first.parse_known_args(words)[0].dataset
    arguments = build_parser(dataset if dataset in ALL else "periodic").parse_args(words)
    if arguments.resume is not None:
        saved = read_json(arguments.resume / "arguments.json")
        again = parse(saved["argv"])
        again.resume, again.json = arguments.resume, arguments.json
        return again
    arguments.argv = words
    return arguments


def plan(arguments: argparse.Namespace, ode: str, folder: Path) -> Run:
    """A run's parameters: the preset's, then what was given."""
    if arguments.dataset in DYNAMICS:
        params = DYNAMICS[arguments.dataset].parameters(arguments.preset, ode) | {"ode": ode}
    else:
        params = preset_parameters(arguments.dataset, arguments.preset, ode) | {"ode": ode}
    names = inspect.signature(ALL[arguments.dataset].estimator).parameters
    given = {
        name: value
        for name, value in vars(arguments).items()
        if name in names and name not in OWN_WORDS | {"keep"}
    }
    if "keep" in names and arguments.keep is not None:
        given["keep"] = arguments.keep
    if arguments.quick:
        params["max_epochs"] = QUICK["max_epochs"]
    return Run(
        arguments.dataset,
        ode,
        arguments.preset,
        arguments.seed,
        folder,
        params | given,
        arguments.argv,
    )


def load(arguments: argparse.Namespace) -> Any:  # noqa: ANN401
    """The data set, as asked for."""
    n_cases = arguments.n_cases
    if arguments.dataset in DYNAMICS:
        if n_cases is not None:
            raise UsageError(f"--n-cases: {arguments.dataset} has the trajectories that it has")
    elif n_cases is None and arguments.quick:
        n_cases = QUICK["n_cases"]
    if arguments.data_home is not None and not arguments.data_home.is_dir():
        raise UsageError(f"--data-home {arguments.data_home} is no folder")
    if n_cases is not None and n_cases < 20:
        raise UsageError(f"--n-cases must be at least 20, got {n_cases}")
    return ALL[arguments.dataset].load(
        Request(
            source=arguments.source,
            data_home=arguments.data_home,
            protocol=arguments.protocol,
            n_cases=n_cases,
            n_times=getattr(arguments, "n_times", 100),
            keep=getattr(arguments, "keep", None),
            seed=arguments.seed,
        )
    )


def say(text: str) -> None:
    """Progress goes to standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def work(arguments: argparse.Namespace) -> Any:  # noqa: ANN401
    """The module that fits, records and draws this kind of task."""
    return dynamics if arguments.dataset in DYNAMICS else runs


def described(problem: Any, dataset: str) -> str:  # noqa: ANN401
    """What every result says about its data."""
    if dataset in GENERATED:
        return dataset
    return dataset if problem.source == "real" else f"{dataset} (synthetic stand-in)"


def run_one(
    task: Any,  # noqa: ANN401
    run: Run,
    problem: Any,  # noqa: ANN401
    arguments: argparse.Namespace,
) -> tuple[Any, dict[str, Any]]:
    """Trains, scores, writes and draws one ODE."""
    record = run.finished() if arguments.resume is not None else None
    if record is not None:
        estimator: Any = task.estimator.load(run.model)
    else:
        with Progress(f"{run.dataset} {run.ode}") as progress:
            estimator, record = work(arguments).carry_out(
                task, run, problem, resume=arguments.resume is not None, callbacks=[progress]
            )
    test = record["metrics"]["test"]
    figures = "  ".join(f"{name} {figure(value)}" for name, value in test.items())
    result = (
        f"{described(problem, run.dataset)}, {run.ode}, {run.preset} preset, protocol "
        f"{problem.protocol}: test {figures}  ({record['epochs']['run']} epochs, "
        f"{record['timings']['training_s']:.0f} s)"
    )
    print(result, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    try:
        work(arguments).draw(task, run, problem, estimator)
    except ImportError as problem_with_plots:
        say(f"No pictures: {problem_with_plots}")
    return estimator, record


def compare(
    task: Any,  # noqa: ANN401
    problem: Any,  # noqa: ANN401
    done: Sequence[tuple[Any, dict[str, Any]]],
    folder: Path,
    arguments: argparse.Namespace,
) -> list[dict[str, Any]]:
    """The table of all ODEs, printed, written and drawn."""
    rows = work(arguments).comparison(task, problem, done)
    title = f"{described(problem, arguments.dataset)}, {arguments.preset} preset"
    lines = [
        f"{'ODE':<12} {'test ' + task.metric:>14} {'integration ms':>20} {'x morph':>9} "
        f"{'field evals':>12} {'epochs':>7}"
    ]
    for row in rows:
        spread = f"{row['integration_ms_mean']:.2f} ± {row['integration_ms_std']:.2f}"
        evaluations = "-" if row["field_evaluations"] is None else row["field_evaluations"]
        ratio = "-" if row["ratio_to_morph"] is None else f"{row['ratio_to_morph']:.1f}"
        lines.append(
            f"{row['ode']:<12} {figure(row['score']):>14} {spread:>20} {ratio:>9} "
            f"{evaluations:>12} {row['epochs']:>7}"
        )
    table = "\n".join([title, *lines])
    print(table, file=sys.stderr if arguments.json else sys.stdout, flush=True)
    records = [record for _, record in done]
    write_json(folder / "comparison.json", {"title": title, "rows": rows, "records": records})
    try:
        from latent_morph import plots

        axes = plots.plot_ode_table(rows, score_name=f"test {task.metric}")
        axes.set_title(title)
        plots.save_figure(axes, folder / "comparison.png")
    except ImportError as problem_with_plots:
        say(f"No picture: {problem_with_plots}")
    return rows


def execute(arguments: argparse.Namespace) -> int:
    """Carries out the parsed command."""
    task = ALL[arguments.dataset]
    compared = dynamics.COMPARED if arguments.dataset in DYNAMICS else COMPARED
    odes = compared if arguments.ode == "all" else (arguments.ode,)
    for ode in odes:  # bad parameters are found before anything is loaded or written
        work(arguments).make_estimator(
            task, plan(arguments, ode, arguments.out), resume=False, callbacks=[]
        )
    if arguments.threads < 1:
        raise UsageError(f"--threads must be at least 1, got {arguments.threads}")
    torch.set_num_threads(arguments.threads)
    problem = load(arguments)
    if problem.note:
        say(f"{arguments.dataset}: {problem.note}.")
    folder = arguments.resume
    if folder is None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        folder = new_run_folder(arguments.out, f"{arguments.dataset}-{arguments.ode}")
        write_json(folder / "arguments.json", {"argv": arguments.argv})
    say(
        f"{described(problem, arguments.dataset)}: {len(problem.train_X)} series to learn from, "
        f"{len(problem.test_X)} to test on; results go to {folder}"
    )
    try:
        done = run_all(task, odes, folder, problem, arguments)
        if len(odes) > 1:
            compare(task, problem, done, folder, arguments)
    except KeyboardInterrupt:
        say(f"\nInterrupted. Continue with: python run_models.py --resume {folder}")
        return 130
    if arguments.json:
        name = "record.json" if len(odes) == 1 else "comparison.json"
        json.dump(read_json(folder / name), sys.stdout)
        print()
    return 0


def run_all(
    task: Any,  # noqa: ANN401
    odes: Sequence[str],
    folder: Path,
    problem: Any,  # noqa: ANN401
    arguments: argparse.Namespace,
) -> list[tuple[Any, dict[str, Any]]]:
    """Each ODE in turn; of several, one that fails is reported and the others go on."""
    done = []
    for ode in odes:
        place = folder / ode if len(odes) > 1 else folder
        place.mkdir(exist_ok=True)
        try:
            done.append(run_one(task, plan(arguments, ode, place), problem, arguments))
        except TrainingError as failure:
            if len(odes) == 1:
                raise
            say(f"{ode} failed and is left out: {failure}")
    if not done:
        raise TrainingError("every ODE failed; the reasons are above")
    return done


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 0, 1 failed, 2 wrong use, 130 stopped."""
    arguments = None
    try:
        arguments = parse(argv)
        return execute(arguments)
    except KeyboardInterrupt:
        say("\nInterrupted before training began; nothing was kept.")
        return 130
    except (UsageError, ValueError, TypeError) as problem:
        say(f"run_models.py: {problem}")
        return 2
    except (OSError, ImportError, IntegrationError, TrainingError) as problem:
        say(f"run_models.py: {problem}")
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
