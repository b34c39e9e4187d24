"""One run: fit, score, measure, draw, and write it all to a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latent_morph.checks import check_device
from latent_morph.diagnostics import Timing, field_evaluations, time_integrations, time_parts
from latent_morph.estimators.base import LatentODEBase, resolve_flow
from latent_morph.experiments.tasks import Problem, Task
from latent_morph.io.records import read_json, versions, write_csv, write_json
from latent_morph.series import SeriesBatch

TIMED_CASES = 50  # the batch of the paper's timings


@dataclass(frozen=True)
class Run:
    """What was asked for, and where its results go."""

    dataset: str
    ode: str
    preset: str
    seed: int
    folder: Path
    params: dict[str, Any]

    command: list[str]

    @property
    def checkpoint(self) -> Path:
        """Where the state of training is kept."""
        return self.folder / "checkpoint.pt"

    @property
    def model(self) -> Path:
        """Where the fitted estimator goes."""
        return self.folder / "model.safetensors"

    def finished(self) -> dict[str, Any] | None:
        """The record, if the run has been carried out already."""
        path = self.folder / "record.json"
        return read_json(path) if path.exists() else None


def make_estimator(task: Task, run: Run, *, resume: bool, callbacks: Sequence[Any]) -> Any:  # noqa: ANN401
    """The estimator of a run, its parameters checked before anything is loaded or written."""
    estimator = task.estimator(
        **run.params,
        random_state=run.seed,
        checkpoint=run.checkpoint,
        resume=resume,
        callbacks=list(callbacks),
    )
    estimator._validate_params()
    check_device("device", estimator.device)
    # Options that no flow takes are found here, not after the data were loaded.
    resolve_flow(estimator.ode, estimator.ode_options, "ode")(estimator.latent_dim)
    return estimator


def carry_out(
    task: Task, run: Run, problem: Problem, *, resume: bool, callbacks: Sequence[Any]
) -> tuple[LatentODEBase, dict[str, Any]]:
    """Fits, scores on validation and, once, on test, and writes everything but the plots."""
    estimator = make_estimator(task, run, resume=resume, callbacks=callbacks)
    estimator.fit(problem.train_X, problem.train_y, groups=problem.groups)
    record = make_record(task, run, problem, estimator)
    write_csv(run.folder / "history.csv", estimator.history_)
    estimator.save(run.model)
    write_json(run.folder / "record.json", record)  # last: its presence says that all is there
    run.checkpoint.unlink(missing_ok=True)  # the run is complete: nothing is left to continue
    return estimator, record


def make_record(
    task: Task,
    run: Run,
    problem: Problem,
    estimator: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """Everything that is needed to know what a figure means."""
    best = estimator.history_[estimator.best_epoch_ - 1]
    validation = best.get("validation_score")
    if validation is not None and task.metric == "mse":
        validation = -validation
    batch, times = timed_query(estimator, problem)
    parts = time_parts(estimator.model_, batch, times)
    seconds = [row["seconds"] for row in estimator.history_]
    params = estimator.get_params(deep=False)
    for name in ("random_state", "checkpoint", "resume", "callbacks", "verbose"):
        del params[name]
    return {
        "dataset": run.dataset,
        "ode": run.ode,
        "encoder": estimator.encoder,
        "source": problem.source,
        "protocol": problem.protocol,
        "preset": run.preset,
        "seed": run.seed,
        "n_train": estimator.n_learn_,
        "n_validation": estimator.n_validation_,
        "n_test": len(problem.test_X),
        "metrics": {
            "validation": {} if validation is None else {task.metric: validation},
            "test": task.metrics(estimator, problem.test_X, problem.test_y),
        },
        "epochs": {"run": estimator.n_iter_, "best": estimator.best_epoch_},
        "timings": {
            "training_s": float(sum(seconds)),
            "epoch_s": {"mean": float(np.mean(seconds)), "std": float(np.std(seconds))},
            "batch_of": len(batch),
            "threads": torch.get_num_threads(),
            **{name: timing._asdict() for name, timing in parts.items()},
        },
        "field_evaluations": field_evaluations(estimator.model_, batch, times),
        "n_parameters": sum(p.numel() for p in estimator.model_.parameters()),
        "params": params,
        "command": run.command,
        "versions": versions(),
        "note": problem.note,
    }


def timed_query(estimator: Any, problem: Problem) -> tuple[SeriesBatch, Tensor]:  # noqa: ANN401
    """Scaled test series and the (N, Q) times they are decoded at, on which clocks are run."""
    seen = problem.test_X[:TIMED_CASES]
    batch = estimator._scale(seen).trim().to(estimator.device)
    if not isinstance(problem.test_y, SeriesBatch):
        return batch, batch.times
    asked = problem.test_y[:TIMED_CASES].times
    return batch, estimator.scaler_.scale_times(asked, seen.times[:, 0]).to(estimator.device)


def draw(task: Task, run: Run, problem: Problem, estimator: Any) -> list[Path]:  # noqa: ANN401
    """The pictures of a run; their files."""
    from latent_morph import plots

    pictures: dict[str, Any] = {
        "learning_curves": plots.plot_history(
            [row | _shown_score(task, row) for row in estimator.history_],
            best_epoch=estimator.best_epoch_,
            score_name=f"validation {task.metric}",
        )
    }
    if task.metric == "mse":
        pictures["reconstructions"] = _draw_reconstructions(problem, estimator)
    else:
        names = problem.class_names
        guess = estimator.predict(problem.test_X)
        pictures["confusion"] = plots.plot_confusion(
            [names[i] for i in np.ravel(problem.test_y)],
            [names[i] for i in np.ravel(guess)],
            names,
        )
        pictures["example"] = _draw_example(problem, estimator, guess)
    if problem.source == "synthetic" and run.dataset != "periodic":
        for axes in pictures.values():
            plots.annotate_source(axes, "synthetic stand-in")
    return [plots.save_figure(axes, run.folder / f"{name}.png") for name, axes in pictures.items()]


def _shown_score(task: Task, row: dict[str, float]) -> dict[str, float]:
    if task.metric == "mse" and "validation_score" in row:
        return {"validation_score": -row["validation_score"]}
    return {}


def _draw_reconstructions(problem: Problem, estimator: Any) -> Any:  # noqa: ANN401
    from latent_morph import plots

    seen, truth = problem.test_X[:6], problem.test_y[:6]
    fine = np.linspace(float(truth.times.min()), float(truth.times.max()), 300)
    mean, std = estimator.reconstruct(seen, fine, return_std=True)
    pairs = zip(seen.to_ragged(), truth.to_ragged(), mean, std, strict=True)
    return plots.plot_reconstructions(
        [
            {
                "times": fine,
                "mean": middle[:, 0],
                "std": spread[:, 0],
                "observed": (shown[0], shown[1][:, 0]),
                "truth": (whole[0], whole[1][:, 0]),
            }
            for shown, whole, middle, spread in pairs
        ]
    )


def _draw_example(problem: Problem, estimator: Any, guess: Any) -> Any:  # noqa: ANN401
    """A labelled test series: of a series with a label a point, the one with most changes."""
    from latent_morph import plots

    names = problem.class_names
    if np.ndim(problem.test_y) == 2:
        changes = (np.diff(problem.test_y, axis=1) != 0).sum(1)
        case = int(changes.argmax())
        times, values = problem.test_X[case].to_ragged()[0]
        return plots.plot_labelled_series(
            times,
            values,
            [names[i] for i in problem.test_y[case]],
            [names[i] for i in guess[case]],
            names,
            problem.channel_names,
        )
    case = 0
    channel = int(problem.test_X[case].mask[0].sum(0).argmax())  # the one most often observed
    times, values = problem.test_X[case].to_ragged()[0]
    fine = np.linspace(times.min(), times.max(), 300)
    mean, std = estimator.reconstruct(problem.test_X[case], fine, return_std=True)
    shown = ~np.isnan(values[:, channel])
    axis = plots.plot_reconstruction(
        fine,
        mean[0, :, channel],
        std[0, :, channel],
        observed=(times[shown], values[shown, channel]),
        channel_name=problem.channel_names[channel],
    )
    text = f"class {names[problem.test_y[case]]}, predicted {names[guess[case]]}"
    axis.set_title(text, loc="right", fontsize=10)  # the legend stands at the left
    return axis


def comparison(
    task: Task, problem: Problem, done: Sequence[tuple[Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Rows of a table like the paper's: score and integration time of each ODE, interleaved."""
    estimators = {record["ode"]: estimator for estimator, record in done}
    batch, times = timed_query(next(iter(estimators.values())), problem)
    timings: dict[str, Timing] = time_integrations(
        {name: estimator.model_ for name, estimator in estimators.items()}, batch, times
    )
    return comparison_rows(task.metric, timings, done)


def comparison_rows(
    metric: str, timings: Mapping[str, Timing], done: Sequence[tuple[Any, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """One row a run: its score, and the time of its ODE; ratios are those of medians."""
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
        for _, record in done
    ]
