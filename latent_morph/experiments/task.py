"""Task: a data set of the command line, how it is split and scored, and the models for it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from latent_morph.experiments.learner import Learner
from latent_morph.experiments.problem import Problem, Request


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set of the command line, with a learner for each model that applies to it."""

    load: Callable[[Request], Problem]
    learners: Mapping[str, Learner[Any, Any]]  # by `--model`; the first is the default
    metric: str  # of the test set, for comparisons
    protocols: Mapping[str, str]  # meanings by name; the first is the default
    is_generated: bool = False  # always, not as a stand-in
    takes_n_cases: bool = True
    takes_n_times: bool = False
    takes_keep: bool = False

    def is_stand_in(self, source: str) -> bool:
        """Returns whether data of this source are a stand-in for real data."""
        return source == "synthetic" and not self.is_generated
