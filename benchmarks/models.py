"""Briefly trained models at the paper's sizes, and the query on which each task is timed."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from latent_morph.estimators.base import LatentODEBase
from latent_morph.experiments.presets import preset_parameters
from latent_morph.experiments.runs import timed_query
from latent_morph.experiments.tasks import TASKS, Problem, Request
from latent_morph.flows import METHODS
from latent_morph.series import SeriesBatch

# What a solver is given, a closed form is given too: a relative error of 1e-5.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Setting:
    """A task of the comparison: data, latent size and the solvers' network, as in the paper."""

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

# Name of a candidate: the ODE, and options beyond the task's own. "morph" may interpolate to the
# tolerance that the adaptive solvers have; "morph-exact" may not.
CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "morph": ("morph", {"dense_output": TOLERANCE}),
    "morph-exact": ("morph", {}),
    "morph-paper": ("morph", {"inn": "paper", "spectrum": "real"}),
    "linear": ("linear", {}),
    **{name: (name, {}) for name in ("euler", "midpoint", "rk4", "dopri5", "dopri8")},
}


@cache
def problem(dataset: str, n_times: int, n_cases: int | None) -> Problem:
    """The data, loaded once."""
    return TASKS[dataset].load(Request(n_times=n_times, n_cases=n_cases))


def trained(
    setting: Setting, candidate: str, *, seconds: float, n_cases: int | None = None
) -> LatentODEBase:
    """An estimator at the paper's latent size, trained for `seconds` with the default encoder."""
    ode, options = CANDIDATES[candidate]
    if ode in METHODS:
        options = options | {"units": setting.units, "layers": setting.layers}
    data = problem(setting.dataset, setting.n_times, n_cases)
    params = preset_parameters(setting.dataset, "default", ode) | {
        "ode": ode,
        "ode_options": options or None,
        "latent_dim": setting.latent_dim,
        "batch_size": 50,
        "budget": seconds,
        "validation_fraction": 0.0,
        "random_state": 0,
    }
    return TASKS[setting.dataset].estimator(**params).fit(data.train_X, data.train_y)


def query(
    estimator: LatentODEBase, setting: Setting, *, n_cases: int | None = None
) -> tuple[SeriesBatch, Tensor, Tensor]:
    """A batch of 50 test series, their latent starts (50, D), and the times they are asked at.

    Times that all series share come back as one grid (T,), which every ODE can make use of.
    """
    batch, times = timed_query(estimator, problem(setting.dataset, setting.n_times, n_cases))
    with torch.inference_mode():
        z0 = estimator.model_.eval().encoder(batch).mean
    shared = times[0] if (times == times[0]).all() else times
    return batch, z0.clone(), shared
