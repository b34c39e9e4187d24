"""Runs of experiments: fit, predict, score, record and draw, and resume."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from latent_morph.checks import check_device
from latent_morph.estimators.latent import LatentODEBase
from latent_morph.experiments.registry import TASKS
from latent_morph.experiments.task import Problem, Task
from latent_morph.flows import FLOWS
from latent_morph.io.records import read_json, versions, write_csv, write_json

# Parameters that a run sets itself.
RESERVED = frozenset({"ode", "random_state", "checkpoint", "resume", "callbacks", "verbose"})


@dataclass(frozen=True)
class Experiment:
    """One ODE on one data set, with its unfitted estimator."""

    dataset: str
    ode: str
    preset: str
    seed: int
    estimator: Any
    command: Sequence[str]

    @property
    def task(self) -> Task[Any, Any]:
        """The task of the data set."""
        return TASKS[self.dataset]


class Result(NamedTuple):
    """The results of a run."""

    estimator: Any
    record: dict[str, Any]
    predictions: Any


def make_estimator(task: Task[Any, Any], params: dict[str, Any], seed: int) -> Any:  # noqa: ANN401
    """Builds an estimator and checks its parameters, before anything is loaded or written."""
    estimator = task.estimator(**params, random_state=seed)
    estimator._validate_params()
    check_device("device", estimator.device)
    # Options are checked by building the flow and the encoder, which takes milliseconds.
    dim = getattr(estimator, "latent_dim", 4)
    FLOWS[estimator.ode](dim, **(estimator.ode_options or {}))
    if isinstance(estimator, LatentODEBase):
        estimator._new_encoder(1)
    return estimator


def run(
    experiment: Experiment,
    problem: Problem,
    folder: Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Fits, predicts and scores on the test set, and writes everything but the figures.

    With `resume`, training resumes from the checkpoint in `folder`, if there is one; a complete
    run is read from its files.
    """
    task, estimator = experiment.task, experiment.estimator
    model, checkpoint = folder / "model.safetensors", folder / "checkpoint.pt"
    if resume and (folder / "record.json").exists():
        estimator = task.estimator.load(model)
        record = read_json(folder / "record.json")
        return Result(estimator, record, task.predict(estimator, problem))
    estimator.set_params(checkpoint=checkpoint, resume=resume, callbacks=list(callbacks))
    groups = {} if problem.groups is None else {"groups": problem.groups}
    estimator.fit(problem.train_X, problem.train_y, **groups)
    predictions = task.predict(estimator, problem)
    record = make_record(experiment, problem, task.metrics(predictions, problem))
    write_csv(folder / "history.csv", estimator.history_)
    estimator.save(model)
    write_json(folder / "record.json", record)  # last: it marks a complete run
    checkpoint.unlink(missing_ok=True)  # no longer needed
    return Result(estimator, record, predictions)


def make_record(
    experiment: Experiment, problem: Problem, scores: dict[str, float]
) -> dict[str, Any]:
    """Collects scores, settings, timings and versions."""
    task, estimator = experiment.task, experiment.estimator
    best = _convert_score(task, estimator.history_[estimator.best_epoch_ - 1])
    seconds = [row["seconds"] for row in estimator.history_]
    costs = task.measure(estimator, problem)
    params = estimator.get_params(deep=False)
    return {
        "dataset": experiment.dataset,
        "ode": experiment.ode,
        "encoder": params.get("encoder", "none"),
        "source": problem.source,
        "protocol": problem.protocol,
        "preset": experiment.preset,
        "seed": experiment.seed,
        "n_train": estimator.n_train_,
        "n_validation": estimator.n_val_,
        "n_test": len(problem.test_X),
        "metrics": {
            "validation": {task.validation_metric: best["validation_score"]}
            if "validation_score" in best
            else {},
            "test": scores,
        },
        "epochs": {"run": estimator.n_iter_, "best": estimator.best_epoch_},
        "timings": {
            "training_s": float(sum(seconds)),
            "epoch_s": {"mean": float(np.mean(seconds)), "std": float(np.std(seconds))},
            "batch_of": costs.n_cases,
            "threads": torch.get_num_threads(),
            **{name: timing._asdict() for name, timing in costs.timings.items()},
        },
        "field_evaluations": costs.field_evaluations,
        "n_parameters": sum(p.numel() for p in estimator.model_.parameters()),
        "params": {
            name: value for name, value in params.items() if name not in RESERVED - {"ode"}
        },
        **task.details(estimator),
        "command": experiment.command,
        "versions": versions(),
        "note": problem.note,
    }


def draw(experiment: Experiment, problem: Problem, result: Result, folder: Path) -> list[Path]:
    """Draws the figures of a run and returns their files."""
    from latent_morph import plots

    task, estimator = experiment.task, result.estimator
    figures = {
        "learning_curves": plots.plot_history(
            [_convert_score(task, row) for row in estimator.history_],
            best_epoch=estimator.best_epoch_ if estimator.n_val_ else None,
            score_name=f"validation {task.validation_metric}",
        ),
        **task.figures(result.predictions, problem, estimator),
    }
    if task.is_stand_in(problem.source):
        for axes in figures.values():
            plots.annotate_source(axes, "synthetic stand-in")
    return [plots.save_figure(axes, folder / f"{name}.png") for name, axes in figures.items()]


def compare(
    task: Task[Any, Any], problem: Problem, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Returns the rows of a table like the paper's: score and integration time per ODE."""
    timings = task.time_odes(
        {result.record["ode"]: result.estimator for result in results}, problem
    )
    reference = timings["morph"].median_ms if "morph" in timings else None
    return [
        {
            "ode": record["ode"],
            "score": record["metrics"]["test"][task.metric],
            "integration_ms_mean": timings[record["ode"]].mean_ms,
            "integration_ms_std": timings[record["ode"]].std_ms,
            "ratio_to_morph": reference and timings[record["ode"]].median_ms / reference,
            "field_evaluations": record["field_evaluations"],
            "epochs": record["epochs"]["run"],
            "training_s": record["timings"]["training_s"],
        }
        for record in (result.record for result in results)
    ]


def _convert_score(task: Task[Any, Any], row: dict[str, float]) -> dict[str, float]:
    """Returns a row of the history with the metric as its score, not minus an error."""
    if task.validation_metric == "mse" and "validation_score" in row:
        return row | {"validation_score": -row["validation_score"]}
    return row
