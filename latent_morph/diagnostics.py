"""Timings of a model and its parts, and counts of vector field evaluations."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.flows import SolverFlow
from latent_morph.models import LatentODE
from latent_morph.series import SeriesBatch


class Timing(NamedTuple):
    """Milliseconds per call over repeats: mean, standard deviation and median.

    On a shared machine a single call can take ten times as long as the others: compare medians.
    """

    mean_ms: float
    std_ms: float
    median_ms: float

    @classmethod
    def from_samples(cls, milliseconds: Sequence[float]) -> "Timing":
        """Summarises one measurement per repeat."""
        return cls(*(float(statistic(milliseconds)) for statistic in (np.mean, np.std, np.median)))


def time_interleaved(
    candidates: Mapping[str, Callable[[], Any]], *, repeats: int, batch_calls: int | None = None
) -> dict[str, Timing]:
    """Times the candidates in turn, round by round, so that other load affects all of them.

    The order rotates from round to round, as a candidate that follows a large one starts with cold
    caches.

    Args:
        candidates: Calls to time, by name.
        repeats: Number of rounds.
        batch_calls: For calls that are repeated in practice, such as training steps: time this
            many calls together, after one call that warms the caches and is not counted.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()  # the first call pays for imports, caches and allocations
    order = list(candidates.items())
    for _ in range(repeats):
        order.append(order.pop(0))
        for name, call in order:
            if batch_calls is not None:
                call()
            start = _read_clock()
            for _ in range(batch_calls or 1):
                call()
            samples[name].append(1e3 * (_read_clock() - start) / (batch_calls or 1))
    return {name: Timing.from_samples(ms) for name, ms in samples.items()}


def _read_clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # GPU work is only queued when a call returns
    return time.perf_counter()


@torch.inference_mode()
def time_parts(
    model: LatentODE, batch: SeriesBatch, times: Tensor, *, repeats: int = 5
) -> dict[str, Timing]:
    """Times the parts of a forward pass on a scaled batch, decoded at `times` (N, Q).

    Trajectories start where the encoder has them, without the shift by static facts.
    """
    model.eval()
    z0 = model.encoder(batch).mean
    trajectory = model.flow(z0, times)
    return time_interleaved(
        {
            "encoder": lambda: model.encoder(batch),
            "integration": lambda: model.flow(z0, times),
            "decoder": lambda: model.decoder(trajectory),
        },
        repeats=repeats,
    )


@torch.inference_mode()
def time_integrations(
    models: Mapping[str, LatentODE], batch: SeriesBatch, times: Tensor, *, repeats: int = 10
) -> dict[str, Timing]:
    """Times the generative ODE of several trained models on the same batch, interleaved."""

    def make_call(model: LatentODE) -> Callable[[], Any]:
        z0 = model.eval().encoder(batch).mean
        return lambda: model.flow(z0, times)

    return time_interleaved(
        {name: make_call(model) for name, model in models.items()}, repeats=repeats
    )


@torch.inference_mode()
def count_field_evaluations(model: LatentODE, batch: SeriesBatch, times: Tensor) -> int | None:
    """Counts field evaluations in one integration of the batch; None without a solver."""
    z0 = model.eval().encoder(batch).mean
    return count_evaluations(model.flow, lambda: model.flow(z0, times))


def count_evaluations(module: nn.Module, call: Callable[[], Any]) -> int | None:
    """Counts how often `call` evaluates the fields of solvers in `module`; None without any."""
    solvers = [part for part in module.modules() if isinstance(part, SolverFlow)]
    if not solvers:
        return None
    before = sum(solver.field_evaluations for solver in solvers)
    call()
    return sum(solver.field_evaluations for solver in solvers) - before
