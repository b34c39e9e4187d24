"""Where a model's time goes, part by part, and how often a vector field was evaluated."""

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
    """Milliseconds a call over repeats: mean, standard deviation and median.

    On a shared machine a single call can take ten times as long as the others: compare medians.
    """

    mean_ms: float
    std_ms: float
    median_ms: float

    @classmethod
    def of(cls, milliseconds: Sequence[float]) -> "Timing":
        """From one figure a repeat."""
        return cls(*(float(found(milliseconds)) for found in (np.mean, np.std, np.median)))


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], *, repeats: int, in_a_row: int | None = None
) -> dict[str, Timing]:
    """Times the candidates in turn, round after round, so that a busy machine hurts all alike.

    Each round starts with another one: what follows a large candidate finds its caches cold.

    Args:
        candidates: What to time, by name.
        repeats: Rounds.
        in_a_row: For what real use does many times in a row, such as a step of training: time so
            many calls together, after one that warms the caches and is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for call in candidates.values():
        call()  # the first call pays for imports, caches and allocations
    order = list(candidates.items())
    for _ in range(repeats):
        order.append(order.pop(0))
        for name, call in order:
            if in_a_row is not None:
                call()
            begin = _now()
            for _ in range(in_a_row or 1):
                call()
            taken[name].append(1e3 * (_now() - begin) / (in_a_row or 1))
    return {name: Timing.of(ms) for name, ms in taken.items()}


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # a GPU's work is only queued when a call returns
    return time.perf_counter()


@torch.inference_mode()
def time_parts(
    model: LatentODE, batch: SeriesBatch, times: Tensor, *, repeats: int = 5
) -> dict[str, Timing]:
    """Times of the parts of a forward pass: a scaled batch, decoded at `times` (N, Q)."""
    model.eval()
    z0 = model.encoder(batch).mean
    trajectory = model.flow(z0, times)
    return interleaved(
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

    def call(model: LatentODE) -> Callable[[], Any]:
        z0 = model.eval().encoder(batch).mean
        return lambda: model.flow(z0, times)

    return interleaved({name: call(model) for name, model in models.items()}, repeats=repeats)


@torch.inference_mode()
def field_evaluations(model: LatentODE, batch: SeriesBatch, times: Tensor) -> int | None:
    """Evaluations of the vector field in one integration of the batch; None without a solver."""
    z0 = model.eval().encoder(batch).mean
    return evaluations_in(model.flow, lambda: model.flow(z0, times))


def evaluations_in(module: nn.Module, call: Callable[[], Any]) -> int | None:
    """How often `call` evaluates the vector fields of solvers in `module`; None without any."""
    solvers = [part for part in module.modules() if isinstance(part, SolverFlow)]
    if not solvers:
        return None
    before = sum(solver.field_evaluations for solver in solvers)
    call()
    return sum(solver.field_evaluations for solver in solvers) - before
