"""Learner, the abstract base of the models of the command line with all that depends on them."""

import abc
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from latent_morph.checks import check_device
from latent_morph.experiments.problem import Problem

Estimator = TypeVar("Estimator")
Predictions = TypeVar("Predictions")


class Summary(NamedTuple):
    """What a record says of a fitted estimator, beside scores and parameters."""

    n_train: int
    n_validation: int
    n_parameters: int
    validation: dict[str, float]  # scores by metric, if there are any
    epochs: dict[str, int] | None = None
    timings: Mapping[str, Any] = {}
    field_evaluations: int | None = None  # by a solver
    details: Mapping[str, Any] = {}  # additional entries


@dataclass(frozen=True, kw_only=True)
class Learner(abc.ABC, Generic[Estimator, Predictions]):
    """An estimator for a data set, with its parameters, predictions, metrics and figures."""

    estimator: type[Estimator]
    default: Mapping[str, Any] = field(default_factory=dict)  # parameters of our preset
    compared_odes: tuple[str, ...] = ()  # by `--ode all`; none for models without an ODE

    # Parameters that are no options of the command line, and those of a short test.
    reserved: ClassVar[frozenset[str]] = frozenset({"random_state"})
    quick: ClassVar[Mapping[str, Any]] = {}

    def options(self) -> dict[str, Any]:
        """Returns the parameters that the command line offers, with their defaults."""
        parameters = inspect.signature(self.estimator).parameters
        return {
            name: parameter.default
            for name, parameter in parameters.items()
            if name not in self.reserved
        }

    def parameters(self, preset: str, ode: Any) -> dict[str, Any]:  # noqa: ANN401
        """Returns the estimator's parameters of a preset for an ODE, or None without any."""
        return dict(self.default)

    def make_estimator(self, params: Mapping[str, Any], seed: int) -> Any:  # noqa: ANN401
        """Builds an estimator and checks its parameters, before anything is loaded or written."""
        factory: Any = self.estimator
        estimator = factory(**params, random_state=seed)
        estimator._validate_params()
        check_device("device", estimator.device)
        return estimator

    def fit(
        self,
        estimator: Any,  # noqa: ANN401
        problem: Problem,
        folder: Path,
        *,
        resume: bool,
        callbacks: Sequence[Any],
    ) -> float:
        """Fits the estimator and returns the seconds that this took.

        A learner that takes long keeps its state in `folder`, and resumes from it with `resume`.
        """
        groups = {} if problem.groups is None else {"groups": problem.groups}
        start = time.perf_counter()
        estimator.fit(problem.train_X, problem.train_y, **groups)
        return time.perf_counter() - start

    @abc.abstractmethod
    def predict(self, estimator: Estimator, problem: Problem) -> Predictions:
        """Returns all predictions to be scored and drawn; called once per run."""

    @abc.abstractmethod
    def metrics(self, predictions: Predictions, problem: Problem) -> dict[str, float]:
        """Scores the predictions."""

    @abc.abstractmethod
    def figures(
        self, predictions: Predictions, problem: Problem, estimator: Estimator
    ) -> dict[str, Any]:
        """Draws the estimator and its predictions; returns axes by the name of their file."""

    @abc.abstractmethod
    def summarise(self, estimator: Estimator, problem: Problem) -> Summary:
        """Describes the fitted estimator for its record."""
