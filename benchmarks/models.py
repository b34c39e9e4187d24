"""Briefly trained models at the paper's sizes, and the queries on which they are timed."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from latent_morph.estimators.latent import LatentODEBase
from latent_morph.experiments.latent import timed_query
from latent_morph.experiments.problem import Problem, Request
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.flows import METHODS
from latent_morph.series import SeriesBatch

# Relative error that solvers, and dense output of closed forms, may have.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Setting:
    """A task: its data, latent size and the network of the solvers, as in the paper."""

    dataset: str
    latent_dim: int
    units: int
    layers: int
    n_times: int = 100


SETTINGS = {
    "periodic 100": Setting("periodic", 10, units=100, layers=2),
    "periodic 1000": Setting("periodic", 10, units=100, layers=2, n_times=1000),
    "activity": Setting("activity", 15, units=500, layers=3),
    "ecg": Setting("ecg", 15, units=500, layers=3),
}

# Name of a candidate: the ODE, and its options. "morph" may interpolate within the tolerance of
# the adaptive solvers; "morph-exact" may not.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "morph": ("morph", {"dense_output": TOLERANCE}),
    "morph-exact": ("morph", {}),
    "morph-paper": ("morph", {"inn": "paper", "spectrum": "real"}),
    "linear": ("linear", {}),
    **{name: (name, {}) for name in ("euler", "midpoint", "rk4", "dopri5", "dopri8")},
}


@cache
def load_problem(dataset: str, n_times: int, n_cases: int | None) -> Problem:
    """Loads the data, once."""
    return TASKS[dataset].load(Request(n_times=n_times, n_cases=n_cases))


def train_estimator(
    setting: Setting, candidate: str, *, seconds: float, n_cases: int | None = None
) -> LatentODEBase:
    """Trains an estimator of the paper's latent size for `seconds`, with the default encoder."""
    ode, options = CANDIDATES[candidate]
    if ode in METHODS:
        options = options | {"units": setting.units, "layers": setting.layers}
    data = load_problem(setting.dataset, setting.n_times, n_cases)
    params = get_learner(setting.dataset).parameters("default", ode) | {
        "ode": ode,
        "ode_options": options or None,
        "latent_dim": setting.latent_dim,
        "batch_size": 50,
        "budget": seconds,
        "validation_fraction": 0.0,
        "random_state": 0,
    }
    return get_learner(setting.dataset).estimator(**params).fit(data.train_X, data.train_y)


def make_query(
    estimator: LatentODEBase, setting: Setting, *, n_cases: int | None = None
) -> tuple[SeriesBatch, Tensor, Tensor]:
    """Makes a batch of 50 test series, their initial states (50, D), and query times.

    Query times are (50, T), or (T,) if they are the same for all series, which every ODE can
    exploit.
    """
    batch, times = timed_query(estimator, load_problem(setting.dataset, setting.n_times, n_cases))
    with torch.inference_mode():
        z0 = estimator.model_.eval().encoder(batch).mean
    query_times = times[0] if (times == times[0]).all() else times
    return batch, z0.clone(), query_times
