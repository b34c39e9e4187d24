"""Runs of experiments: fit, predict, score, record and draw, and resume."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from latent_morph.experiments.problem import Problem
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.experiments.task import Task
from latent_morph.experiments.trained import CHECKPOINT
from latent_morph.io.records import read_json, versions, write_json


@dataclass(frozen=True)
class Experiment:
    """One model on one data set, with its unfitted estimator."""

    dataset: str
    model: str
    ode: str | None  # None for a model without an ODE
    preset: str
    seed: int
    estimator: Any
    command: Sequence[str]

    @property
    def task(self) -> Task:
        """The task of the data set."""
        return TASKS[self.dataset]

    @property
    def learner(self) -> Any:  # noqa: ANN401
        """The learner of the model."""
        return get_learner(self.dataset, self.model)

    @property
    def name(self) -> str:
        """What tells it from other experiments on the data set."""
        return self.ode or self.model


class Result(NamedTuple):
    """The results of a run."""

    estimator: Any
    record: dict[str, Any]
    predictions: Any


def run(
    experiment: Experiment,
    problem: Problem,
    folder: Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Fits, predicts and scores on the test set, and writes everything but the figures.

    With `resume`, a complete run is read from its files, and another is resumed if its learner
    left something to resume from.
    """
    learner, estimator = experiment.learner, experiment.estimator
    model = folder / "model.safetensors"
    if resume and (folder / "record.json").exists():
        estimator = learner.estimator.load(model)
        record = read_json(folder / "record.json")
        return Result(estimator, record, learner.predict(estimator, problem))
    training_s = learner.fit(estimator, problem, folder, resume=resume, callbacks=callbacks)
    start = time.perf_counter()
    predictions = learner.predict(estimator, problem)
    seconds = {"training_s": training_s, "prediction_s": time.perf_counter() - start}
    record = make_record(experiment, problem, learner.metrics(predictions, problem), seconds)
    estimator.save(model)
    write_json(folder / "record.json", record)  # last: it marks a complete run
    (folder / CHECKPOINT).unlink(missing_ok=True)  # no longer needed
    return Result(estimator, record, predictions)


def make_record(
    experiment: Experiment,
    problem: Problem,
    scores: dict[str, float],
    seconds: dict[str, float],
) -> dict[str, Any]:
    """Collects scores, settings, timings and versions."""
    learner, estimator = experiment.learner, experiment.estimator
    summary = learner.summarise(estimator, problem)
    params = estimator.get_params(deep=False)
    return {
        "dataset": experiment.dataset,
        "model": experiment.model,
        "ode": experiment.ode,
        "encoder": params.get("encoder", "none"),
        "source": problem.source,
        "protocol": problem.protocol,
        "preset": experiment.preset,
        "seed": experiment.seed,
        "n_train": summary.n_train,
        "n_validation": summary.n_validation,
        "n_test": len(problem.test_X),
        "metrics": {"validation": summary.validation, "test": scores},
        "epochs": summary.epochs,
        "timings": {**seconds, "threads": torch.get_num_threads(), **summary.timings},
        "field_evaluations": summary.field_evaluations,
        "n_parameters": summary.n_parameters,
        "params": {
            name: value for name, value in params.items() if name not in learner.reserved - {"ode"}
        },
        **summary.details,
        "command": experiment.command,
        "versions": versions(),
        "note": problem.note,
    }


def draw(experiment: Experiment, problem: Problem, result: Result, folder: Path) -> list[Path]:
    """Draws the figures of a run and returns their files."""
    from latent_morph import plots

    figures = experiment.learner.figures(result.predictions, problem, result.estimator)
    if experiment.task.is_stand_in(problem.source):
        for axes in figures.values():
            plots.annotate_source(axes, "synthetic stand-in")
    return [plots.save_figure(axes, folder / f"{name}.png") for name, axes in figures.items()]


def compare(
    experiment: Experiment, problem: Problem, results: Sequence[Result]
) -> list[dict[str, Any]]:
    """Returns the rows of a table like the paper's: score and integration time per ODE."""
    metric = experiment.task.metric
    timings = experiment.learner.time_odes(
        {result.record["ode"]: result.estimator for result in results}, problem
    )
    reference = timings["morph"].median_ms if "morph" in timings else None
    return [
        {
            "ode": record["ode"],
            "score": record["metrics"]["test"][metric],
            "integration_ms_mean": timings[record["ode"]].mean_ms,
            "integration_ms_std": timings[record["ode"]].std_ms,
            "ratio_to_morph": reference and timings[record["ode"]].median_ms / reference,
            "field_evaluations": record["field_evaluations"],
            "epochs": record["epochs"]["run"],
            "training_s": record["timings"]["training_s"],
        }
        for record in (result.record for result in results)
    ]
