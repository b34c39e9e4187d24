"""ODEs learned from trajectories: the tasks, the methods compared, and models of them."""

import sys
from functools import cache
from typing import Any

from benchmarks.models import TOLERANCE
from latent_morph.estimators import DynamicsRegressor
from latent_morph.estimators.dynamics import ODE_DEFAULTS
from latent_morph.experiments.dynamics import DYNAMICS, Problem
from latent_morph.experiments.tasks import Request
from latent_morph.flows import METHODS
from latent_morph.series import SeriesBatch
from latent_morph.training import TrainingError

LEARNED = tuple(DYNAMICS)
IMITATION = tuple(name for name, task in DYNAMICS.items() if task.stable)
SOLVERS = ("euler", "midpoint", "rk4", "dopri5")

# Name of a method: the ODE, and options beyond the default preset's. Solvers integrate the paper's
# network of five hidden layers of 150 units. "morph" may interpolate to the tolerance that the
# adaptive solvers have; "morph-exact" may not; "morph-paper" has the paper's invertible network.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "morph": ("morph", {"dense_output": TOLERANCE}),
    "morph-exact": ("morph", {}),
    "morph-paper": ("morph", {"inn": "paper", "spectrum": "real"}),
    "morph-neural": ("morph-neural", {}),
    **{name: (name, {}) for name in SOLVERS},
}


@cache
def problem(task: str, protocol: str | None = None, seed: int = 0) -> Problem:
    """The trajectories, loaded once."""
    return DYNAMICS[task].load(Request(protocol=protocol, seed=seed))


def available(names: tuple[str, ...], only: str | None) -> list[str]:
    """The tasks asked for; unless it was asked for by name, one without its file is left out."""
    found = []
    for name in names:
        if only not in (None, name):
            continue
        try:
            problem(name)
        except FileNotFoundError as absent:
            if only is not None:
                raise
            print(f"{name} is left out: {absent}", file=sys.stderr)
        else:
            found.append(name)
    return found


def parameters(task: str, candidate: str) -> dict[str, Any]:
    """The estimator's parameters: the task's default preset with the candidate's options."""
    ode, options = CANDIDATES[candidate]
    params = DYNAMICS[task].parameters("default", ode)
    if ode not in METHODS:
        params["ode_options"] = (params.get("ode_options") or ODE_DEFAULTS[ode]) | options
    return params | {"ode": ode}


def trained(
    task: str,
    candidate: str,
    X: SeriesBatch,
    *,
    seconds: float,
    **changes: Any,  # noqa: ANN401
) -> DynamicsRegressor:
    """An estimator trained for `seconds`, however many steps that allows.

    A solver's gradients can explode, whatever their length is cut to: then it learns more slowly.
    """
    params = parameters(task, candidate) | {"random_state": 0} | changes
    estimator = DynamicsRegressor(**params | {"budget": seconds, "max_epochs": 10**6})
    try:
        return estimator.fit(X)
    except TrainingError as problem:
        rate = estimator.learning_rate / 10
        print(f"{task}, {candidate}: {problem}; again with {rate:g}", file=sys.stderr)
        return estimator.set_params(learning_rate=rate).fit(X)
