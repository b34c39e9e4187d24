"""TrainedLearner, the abstract base of models with an ODE that gradients train."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from latent_morph.diagnostics import Timing
from latent_morph.estimators.trained import TrainedEstimator
from latent_morph.experiments.learner import Learner, Predictions, Summary
from latent_morph.experiments.problem import Problem
from latent_morph.flows import FLOWS
from latent_morph.io.records import write_csv

CHECKPOINT = "checkpoint.pt"
# Metrics of which less is better.
ERRORS = ("mse", "log_loss")

Trained = TypeVar("Trained", bound=TrainedEstimator)


class Costs(NamedTuple):
    """Costs of a fitted model: times by part, and evaluations of a solver's vector field."""

    n_cases: int
    timings: dict[str, Timing]
    field_evaluations: int | None


@dataclass(frozen=True, kw_only=True)
class TrainedLearner(Learner[Trained, Predictions], abc.ABC):
    """A learner that keeps checkpoints and a history, and compares ODEs."""

    reserved: ClassVar[frozenset[str]] = Learner.reserved | {
        "ode",
        "checkpoint",
        "resume",
        "callbacks",
        "verbose",
    }
    quick: ClassVar[Mapping[str, Any]] = {"max_epochs": 2}

    def make_estimator(self, params: Mapping[str, Any], seed: int) -> Any:  # noqa: ANN401
        estimator = super().make_estimator(params, seed)
        self.check_options(estimator)
        return estimator

    @abc.abstractmethod
    def check_options(self, estimator: Trained) -> None:
        """Checks options by building what takes them, in milliseconds."""

    def fit(
        self,
        estimator: Any,  # noqa: ANN401
        problem: Problem,
        folder: Path,
        *,
        resume: bool,
        callbacks: Sequence[Any],
    ) -> float:
        checkpoint = folder / CHECKPOINT
        estimator.set_params(checkpoint=checkpoint, resume=resume, callbacks=list(callbacks))
        super().fit(estimator, problem, folder, resume=resume, callbacks=callbacks)
        write_csv(folder / "history.csv", estimator.history_)
        # Those of all epochs, also before an interruption.
        return float(sum(row["seconds"] for row in estimator.history_))

    def figures(
        self, predictions: Predictions, problem: Problem, estimator: Trained
    ) -> dict[str, Any]:
        from latent_morph import plots

        return {
            "learning_curves": plots.plot_history(
                [self._convert_score(row, estimator) for row in estimator.history_],
                best_epoch=estimator.best_epoch_ if estimator.n_val_ else None,
                score_name=f"validation {self.validation_metric(estimator)}",
            )
        }

    def summarise(self, estimator: Trained, problem: Problem) -> Summary:
        best = self._convert_score(estimator.history_[estimator.best_epoch_ - 1], estimator)
        seconds = [row["seconds"] for row in estimator.history_]
        costs = self.measure(estimator, problem)
        return Summary(
            n_train=estimator.n_train_,
            n_validation=estimator.n_val_,
            n_parameters=sum(p.numel() for p in estimator.model_.parameters()),
            validation={self.validation_metric(estimator): best["validation_score"]}
            if "validation_score" in best
            else {},
            epochs={"run": len(seconds), "best": estimator.best_epoch_},
            timings={
                "epoch_s": {"mean": float(np.mean(seconds)), "std": float(np.std(seconds))},
                "batch_of": costs.n_cases,
                **{name: timing._asdict() for name, timing in costs.timings.items()},
            },
            field_evaluations=costs.field_evaluations,
            details=self.details(estimator),
        )

    @abc.abstractmethod
    def measure(self, estimator: Trained, problem: Problem) -> Costs:
        """Times the fitted model on test series."""

    @abc.abstractmethod
    def time_odes(self, estimators: Mapping[str, Trained], problem: Problem) -> dict[str, Timing]:
        """Times the integration of several ODEs in turn, on the same test series."""

    def details(self, estimator: Trained) -> dict[str, Any]:
        """Returns additional entries of the record."""
        return {}

    def validation_metric(self, estimator: Trained) -> str:
        """Returns the name of the estimator's `validation_score`, up to its sign."""
        return "mse"

    def _convert_score(self, row: dict[str, float], estimator: Trained) -> dict[str, float]:
        """Returns a row of the history with the metric as its score, not minus an error."""
        is_error = self.validation_metric(estimator) in ERRORS
        if is_error and "validation_score" in row:
            return row | {"validation_score": -row["validation_score"]}
        return row


def check_flow(estimator: Any, latent_dim: int) -> None:  # noqa: ANN401
    """Builds the ODE of an estimator, which checks its options."""
    FLOWS[estimator.ode](latent_dim, **(estimator.ode_options or {}))
