"""The command line of `run_models.py`: arguments, output and exit codes."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from latent_morph.experiments import runs
from latent_morph.experiments.presets import PRESETS, override
from latent_morph.experiments.problem import SOURCES, Problem, Request
from latent_morph.experiments.progress import Progress
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.experiments.report import format_comparison, format_data, format_result
from latent_morph.experiments.runs import Experiment, Result
from latent_morph.flows import FLOWS, IntegrationError
from latent_morph.io.records import new_run_folder, read_json, write_json
from latent_morph.training import TrainingError

QUICK_CASES, MIN_CASES = 120, 20
# Arguments of a run without any, which takes about a minute.
DEFAULT_ARGUMENTS = ["--dataset", "periodic", "--ode", "morph", "--budget", "50"]


def build_parser(dataset: str, model: str) -> argparse.ArgumentParser:
    """Builds options of the command, and one for each parameter of the model's estimator."""
    task, learner = TASKS[dataset], get_learner(dataset, model)
    parser = argparse.ArgumentParser(
        prog="run_models.py",
        description="Fit a model to a data set and report: "
        "`run_models.py --dataset activity --ode morph`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Defaults are those of the estimator. A preset may have others; arguments override "
        "both.",
    )
    run = parser.add_argument_group("run")
    run.add_argument(
        "--dataset",
        choices=list(TASKS),
        default="periodic",
        help="default periodic, which needs no file",
    )
    run.add_argument(
        "--model",
        default=model,
        metavar="NAME",
        help=f"the model: {' or '.join(task.learners)}; options depend on it",
    )
    if learner.compared_odes:
        compared = ", ".join(learner.compared_odes)
        run.add_argument(
            "--ode",
            choices=[*FLOWS, "all"],
            default="morph",
            metavar="NAME",
            help=f"the ODE: {', '.join(FLOWS)}; or all, to compare {compared}",
        )
        run.add_argument(
            "--preset",
            choices=PRESETS,
            default="default",
            help="our defaults, or the settings of the paper's appendix",
        )
    else:
        parser.set_defaults(ode=None, preset="default")
    run.add_argument("--quick", action="store_true", help="a few series and epochs, as a test")
    run.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of generated data, random splits, initial weights and training; default 0",
    )
    run.add_argument("--out", type=Path, default=Path("runs"), help="folder for results")
    run.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="resume the interrupted run in this folder, with its own arguments",
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
        help="threads of torch; default 1, since operations are small",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--source",
        choices=SOURCES,
        default="auto",
        help="auto takes the real file, or else a generated stand-in",
    )
    data.add_argument("--data-home", type=Path, help="folder with the data files")
    protocols = "; ".join(f"{name}: {what}" for name, what in task.protocols.items())
    data.add_argument(
        "--protocol",
        choices=task.protocols,
        default=next(iter(task.protocols)),
        help=protocols.replace("%", "%%"),
    )
    data.add_argument("--n-cases", type=int, help="number of series")
    # Arguments that were not given are absent: the data set or a preset has the default.
    absent = argparse.SUPPRESS
    if task.takes_n_times:
        data.add_argument(
            "--n-times", type=int, default=absent, help="points per series, default 100"
        )
    if task.takes_keep:
        data.add_argument(
            "--keep",
            type=float,
            default=absent,
            help="fraction of the points that the model is given",
        )
    parameters = parser.add_argument_group(f"parameters of {learner.estimator.__name__}")
    for name, default in learner.options().items():
        if not (name == "keep" and task.takes_keep):
            parameters.add_argument(
                f"--{name.replace('_', '-')}",
                type=parse_value,
                default=absent,
                metavar="VALUE",
                help=f"default {default}",
            )
    return parser


def parse_value(text: str) -> Any:  # noqa: ANN401
    """Parses a number, true, false, none, a JSON object, or else the text itself."""
    if text.lower() == "none":
        return None
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        return text


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments, or those of the interrupted run that is to be resumed."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        say(f"No arguments: running {' '.join(DEFAULT_ARGUMENTS)} (see --help)")
        words = DEFAULT_ARGUMENTS
    parser = choose_parser(words)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(
            f"unrecognized arguments for --dataset {arguments.dataset} "
            f"--model {arguments.model}: {' '.join(unknown)}"
        )
    if arguments.resume is not None:
        saved = read_json(arguments.resume / "arguments.json")
        resumed = parse(saved["argv"])
        resumed.resume, resumed.json = arguments.resume, arguments.json
        return resumed
    arguments.argv = words
    return arguments


def choose_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Builds the parser of the data set and the model that the arguments name."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--dataset", default="periodic")
    first.add_argument("--model")
    chosen = first.parse_known_args(words)[0]
    if chosen.dataset not in TASKS:
        return build_parser("periodic", "latent-ode")  # which refuses the data set
    model = chosen.model or next(iter(TASKS[chosen.dataset].learners))
    return build_parser(chosen.dataset, model)


def make_parameters(arguments: argparse.Namespace, ode: str | None) -> dict[str, Any]:
    """Collects an estimator's parameters: those of the preset, then the arguments."""
    learner = get_learner(arguments.dataset, arguments.model)
    names = learner.options()
    given = {name: value for name, value in vars(arguments).items() if name in names}
    quick = learner.quick if arguments.quick else {}
    params = override({**learner.parameters(arguments.preset, ode), **quick}, given)
    return params if ode is None else params | {"ode": ode}


def plan(arguments: argparse.Namespace, ode: str | None) -> Experiment:
    """Builds the estimator of a run, which checks its parameters."""
    learner = get_learner(arguments.dataset, arguments.model)
    return Experiment(
        dataset=arguments.dataset,
        model=arguments.model,
        ode=ode,
        preset=arguments.preset,
        seed=arguments.seed,
        estimator=learner.make_estimator(make_parameters(arguments, ode), arguments.seed),
        command=arguments.argv,
    )


def make_request(arguments: argparse.Namespace) -> Request:
    """Collects the options of the data set."""
    names = {entry.name for entry in fields(Request)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    takes_n_cases = TASKS[arguments.dataset].takes_n_cases
    if not takes_n_cases and arguments.n_cases is not None:
        raise ValueError(
            f"--n-cases must be absent for {arguments.dataset}, whose number of trajectories is "
            f"fixed, got {arguments.n_cases}"
        )
    if takes_n_cases and arguments.n_cases is None and arguments.quick:
        values["n_cases"] = QUICK_CASES
    if arguments.data_home is not None and not arguments.data_home.is_dir():
        raise ValueError(f"--data-home must be a folder, got {arguments.data_home}")
    if arguments.n_cases is not None and arguments.n_cases < MIN_CASES:
        raise ValueError(f"--n-cases must be at least {MIN_CASES}, got {arguments.n_cases}")
    return Request(**values)


def say(text: str) -> None:
    """Writes a message to standard error; standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def show(text: str, arguments: argparse.Namespace) -> None:
    """Writes a result to standard output, or to standard error with `--json`."""
    print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def execute(arguments: argparse.Namespace) -> int:
    """Runs the parsed command and returns its exit code."""
    task = TASKS[arguments.dataset]
    learner = get_learner(arguments.dataset, arguments.model)
    odes = learner.compared_odes if arguments.ode == "all" else (arguments.ode,)
    experiments = [plan(arguments, ode) for ode in odes]
    if arguments.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {arguments.threads}")
    torch.set_num_threads(arguments.threads)
    problem = task.load(make_request(arguments))
    if problem.note:
        say(f"{arguments.dataset}: {problem.note}.")
    folder = arguments.resume
    if folder is None:
        name = f"{arguments.dataset}-{arguments.ode or arguments.model}"
        folder = new_run_folder(arguments.out, name)
        write_json(folder / "arguments.json", {"argv": arguments.argv})
    say(
        f"{format_data(arguments.dataset, problem.source)}: {len(problem.train_X)} series to "
        f"train on, {len(problem.test_X)} to test on; results go to {folder}"
    )
    try:
        if arguments.ode == "all":
            run_all(experiments, problem, folder, arguments)
        else:
            run_one(experiments[0], problem, folder, arguments)
    except KeyboardInterrupt:
        say(f"\nInterrupted. Resume with: python run_models.py --resume {folder}")
        return 130
    if arguments.json:
        name = "comparison.json" if arguments.ode == "all" else "record.json"
        print(json.dumps(read_json(folder / name)))
    return 0


def run_one(
    experiment: Experiment, problem: Problem, folder: Path, arguments: argparse.Namespace
) -> Result:
    """Fits and scores one model, and writes its results and figures."""
    resume = arguments.resume is not None
    with Progress(f"{experiment.dataset} {experiment.name}") as progress:
        result = runs.run(experiment, problem, folder, resume=resume, callbacks=[progress])
    show(format_result(result.record), arguments)
    try:
        runs.draw(experiment, problem, result, folder)
    except ImportError as missing:
        say(f"No figures: {missing}")
    return result


def run_all(
    experiments: Sequence[Experiment],
    problem: Problem,
    folder: Path,
    arguments: argparse.Namespace,
) -> None:
    """Runs each ODE in turn and compares those that do not fail."""
    results = []
    for experiment in experiments:
        ode_folder = folder / experiment.name
        ode_folder.mkdir(exist_ok=True)
        try:
            results.append(run_one(experiment, problem, ode_folder, arguments))
        except TrainingError as failure:
            say(f"{experiment.ode} failed and is left out: {failure}")
    if not results:
        raise TrainingError("every ODE failed; the reasons are above")
    metric = TASKS[arguments.dataset].metric
    rows = runs.compare(experiments[0], problem, results)
    title = f"{format_data(arguments.dataset, problem.source)}, {arguments.preset} preset"
    show(format_comparison(title, metric, rows), arguments)
    records = [result.record for result in results]
    write_json(folder / "comparison.json", {"title": title, "rows": rows, "records": records})
    try:
        from latent_morph import plots

        axes = plots.plot_ode_table(rows, score_name=f"test {metric}")
        axes.set_title(title)
        plots.save_figure(axes, folder / "comparison.png")
    except ImportError as missing:
        say(f"No figure: {missing}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 0, 1 for failure, 2 for wrong usage, 130 if interrupted."""
    try:
        return execute(parse(argv))
    except KeyboardInterrupt:
        say("\nInterrupted before training; nothing was written.")
        return 130
    except (ValueError, TypeError) as problem:
        say(f"run_models.py: {problem}")
        return 2
    except (OSError, ImportError, IntegrationError, TrainingError) as problem:
        say(f"run_models.py: {problem}")
        return 1
