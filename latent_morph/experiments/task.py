"""Task, the abstract base of data sets of the command line with all that depends on them."""

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from latent_morph.diagnostics import Timing
from latent_morph.series import SeriesBatch

SOURCES = ("auto", "real", "synthetic")

Estimator = TypeVar("Estimator")
Predictions = TypeVar("Predictions")


@dataclass(frozen=True)
class Request:
    """Options of a data set."""

    source: str = "auto"
    data_home: Path | None = None
    protocol: str | None = None
    n_cases: int | None = None
    n_times: int = 100
    keep: float | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set, split into training and test; the latter is used once per run."""

    train_X: SeriesBatch
    train_y: Any = None  # labels or targets, if there are any
    test_X: SeriesBatch  # inputs of predictions, or references of roll-outs
    test_y: Any = None  # true labels or targets, if not `test_X`
    train_reference: SeriesBatch | None = None  # `train_X` without noise, if known
    groups: np.ndarray | None = None  # (N,) of `train_X`; held out as a whole
    channel_names: Sequence[str]
    class_names: Sequence[str] = ()
    unit: str = ""  # of the channels
    source: str  # "real" or "synthetic"
    protocol: str  # which split or variant
    note: str = ""  # for the reader of results


class Costs(NamedTuple):
    """Costs of a fitted model: times by part, and evaluations of a solver's vector field."""

    n_cases: int
    timings: dict[str, Timing]
    field_evaluations: int | None


@dataclass(frozen=True, kw_only=True)
class Task(abc.ABC, Generic[Estimator, Predictions]):
    """A data set of the command line, its estimator, metrics and figures."""

    load: Callable[[Request], Problem]
    estimator: type[Estimator]
    metric: str  # of the test set, for comparisons
    validation_metric: str  # the estimator's `validation_score`, up to its sign
    protocols: Mapping[str, str]  # meanings by name; the first is the default
    default: Mapping[str, Any]  # parameters of our preset
    compared_odes: tuple[str, ...]  # by `--ode all`
    is_generated: bool = False  # always, not as a stand-in
    takes_n_cases: bool = True
    takes_n_times: bool = False
    takes_keep: bool = False

    @abc.abstractmethod
    def parameters(self, preset: str, ode: str) -> dict[str, Any]:
        """Returns the estimator's parameters of a preset for an ODE."""

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
        """Draws the predictions; returns axes by the name of their file."""

    @abc.abstractmethod
    def measure(self, estimator: Estimator, problem: Problem) -> Costs:
        """Times the fitted model on test series."""

    @abc.abstractmethod
    def time_odes(
        self, estimators: Mapping[str, Estimator], problem: Problem
    ) -> dict[str, Timing]:
        """Times the integration of several ODEs in turn, on the same test series."""

    def details(self, estimator: Estimator) -> dict[str, Any]:
        """Returns additional entries of the record."""
        return {}

    def is_stand_in(self, source: str) -> bool:
        """Returns whether data of this source are a stand-in for real data."""
        return source == "synthetic" and not self.is_generated
