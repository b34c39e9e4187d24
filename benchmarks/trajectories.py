"""Tasks of learning ODEs from trajectories: data, candidates and trained estimators."""

import sys
from functools import cache
from typing import Any

from benchmarks.models import TOLERANCE
from latent_morph.estimators import DynamicsRegressor
from latent_morph.estimators.dynamics import ODE_DEFAULTS
from latent_morph.experiments.dynamics import DynamicsLearner
from latent_morph.experiments.problem import Problem, Request
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.flows import METHODS
from latent_morph.series import SeriesBatch
from latent_morph.training import TrainingError

DYNAMICS = {
    name: learner for name in TASKS if isinstance(learner := get_learner(name), DynamicsLearner)
}
LEARNED = tuple(DYNAMICS)
IMITATION = tuple(name for name, learner in DYNAMICS.items() if learner.is_stable)
SOLVERS = ("euler", "midpoint", "rk4", "dopri5")

# Name of a candidate: the ODE, and options beyond the preset. Solvers integrate the paper's
# network of five hidden layers of 150 units. "morph" may interpolate within the tolerance of the
# adaptive solvers; "morph-exact" may not; "morph-paper" has the paper's invertible network.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "morph": ("morph", {"dense_output": TOLERANCE}),
    "morph-exact": ("morph", {}),
    "morph-paper": ("morph", {"inn": "paper", "spectrum": "real"}),
    "morph-neural": ("morph-neural", {}),
    **{name: (name, {}) for name in SOLVERS},
}


@cache
def load_problem(task: str, protocol: str | None = None, seed: int = 0) -> Problem:
    """Loads the trajectories, once."""
    return TASKS[task].load(Request(protocol=protocol, seed=seed))


def list_available(names: tuple[str, ...], only: str | None) -> list[str]:
    """Lists the tasks whose files exist; a missing file of task `only` is an error."""
    tasks = []
    for name in names:
        if only not in (None, name):
            continue
        try:
            load_problem(name)
        except FileNotFoundError as error:
            if only is not None:
                raise
            print(f"{name} is skipped: {error}", file=sys.stderr)
        else:
            tasks.append(name)
    return tasks


def get_parameters(task: str, candidate: str) -> dict[str, Any]:
    """Returns the task's default preset with the candidate's options."""
    ode, options = CANDIDATES[candidate]
    params = DYNAMICS[task].parameters("default", ode)
    if ode not in METHODS:
        params["ode_options"] = (params.get("ode_options") or ODE_DEFAULTS[ode]) | options
    return params | {"ode": ode}


def train_estimator(
    task: str,
    candidate: str,
    X: SeriesBatch,
    *,
    seconds: float,
    **changes: Any,  # noqa: ANN401
) -> DynamicsRegressor:
    """Trains an estimator for `seconds`.

    If gradients of a solver explode in spite of clipping, the learning rate is divided by ten.
    """
    params = get_parameters(task, candidate) | {"random_state": 0} | changes
    estimator = DynamicsRegressor(**params | {"budget": seconds, "max_epochs": 10**6})
    try:
        return estimator.fit(X)
    except TrainingError as error:
        rate = estimator.learning_rate / 10
        print(f"{task}, {candidate}: {error}; retry with {rate:g}", file=sys.stderr)
        return estimator.set_params(learning_rate=rate).fit(X)
