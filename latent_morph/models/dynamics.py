"""An ODE learned directly from trajectories: states with zeros appended, rolled out."""

from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.flows import Flow
from latent_morph.series import SeriesBatch

# Powers by which differences between trajectories may fade.
_FADES = np.geomspace(0.25, 16.0, 49)

# From this fraction of rows on, selecting them costs more than computing all.
_NEARLY_ALL = 0.98


class Rollout(NamedTuple):
    """Roll-outs and what they are compared with.

    Attributes:
        states: (M, T, C) roll-outs.
        target: (M, T, C) the observations.
        mask: (M, T, C) where to compare: observed, and after the start of the roll-out.
    """

    states: Tensor
    target: Tensor
    mask: Tensor


class Starts(NamedTuple):
    """Where roll-outs start, and what should follow.

    Attributes:
        states: (M, C).
        elapsed: (M, T) times since the start.
        target: (M, T, C) the observations.
        mask: (M, T, C) what was observed after the start.
    """

    states: Tensor
    elapsed: Tensor
    target: Tensor
    mask: Tensor


@final
class DynamicsModel(nn.Module):
    """A flow on states with zeros appended, queried only for the states.

    Args:
        flow: On n_channels or more dimensions.
        n_channels: C.
    """

    def __init__(self, flow: Flow, n_channels: int) -> None:
        super().__init__()
        self.flow = flow
        self.n_channels = n_channels

    def lift(self, states: Tensor) -> Tensor:
        """(..., C) to (..., D): zeros appended."""
        return nn.functional.pad(states, (0, self.flow.latent_dim - self.n_channels))

    def roll_out(
        self, starts: Tensor, elapsed: Tensor, query_mask: Tensor | None = None
    ) -> Tensor:
        """Starts (..., C) and times since then, (T,) or (..., T), to states (..., T, C)."""
        lifted = self.lift(starts)
        return self.flow(lifted, elapsed, query_mask=query_mask)[..., : self.n_channels]

    def field(self, states: Tensor) -> Tensor:
        """The velocity of states (..., C) that start there."""
        return self.flow.field(self.lift(states))[..., : self.n_channels]

    def follow(self, starts: Starts) -> Rollout:
        """Rolls out from `starts` to every row that is compared with something."""
        rows = starts.mask.any(-1)
        # Zero elapsed time costs a solver no step.
        elapsed = torch.where(rows, starts.elapsed, 0.0)
        nearly_all = int(rows.count_nonzero()) > _NEARLY_ALL * rows.numel()
        states = self.roll_out(starts.states, elapsed, None if nearly_all else rows)
        return Rollout(states, starts.target, starts.mask)

    def forward(self, batch: SeriesBatch) -> Rollout:
        """Rolls each trajectory out from its first complete row."""
        return self.follow(starts_at(batch, first_complete(batch)))


def starts_at(batch: SeriesBatch, row: Tensor) -> Starts:
    """Roll-outs of each trajectory from the rows (k N,), k of them for each of N trajectories.

    The first N rows belong to the N trajectories, then again, and so on.
    """
    repeats = len(row) // len(batch)
    target, mask = batch.values.repeat(repeats, 1, 1), batch.mask.repeat(repeats, 1, 1)
    times = batch.times.repeat(repeats, 1)
    case = torch.arange(len(row), device=row.device)
    after = torch.arange(batch.n_times, device=row.device) > row.unsqueeze(1)
    return Starts(
        states=target[case, row],
        elapsed=times - times[case, row].unsqueeze(1),
        target=target,
        mask=mask & after.unsqueeze(-1),
    )


def first_complete(batch: SeriesBatch) -> Tensor:
    """(N,) the first row of each trajectory in which every channel was observed."""
    return batch.mask.all(-1).long().argmax(1)


def random_rows(batch: SeriesBatch, repeats: int, generator: torch.Generator | None) -> Tensor:
    """(repeats * N,) rows to start from: complete ones that are not the last observed."""
    complete = batch.mask.all(-1)
    last = batch.observed.long().cumsum(1).argmax(1)
    complete &= torch.arange(batch.n_times, device=batch.device) < last.unsqueeze(1)
    # Without such a row the last one is taken: nothing follows it, so that it adds no error.
    complete[:, -1] |= ~complete.any(1)
    chosen = torch.multinomial(complete.float(), repeats, replacement=True, generator=generator)
    return chosen.mT.flatten()


def measure_fade(batch: SeriesBatch, weight: Tensor | None = None) -> float:
    """How fast trajectories that start apart come together, as a power.

    The deviation of a trajectory from the mean of all, after a fraction s of its time, is compared
    with its deviation at the start times (1 - s) to some power. Of a range of powers that of the
    least squared error is returned, and 1 where the data say nothing.

    Args:
        batch: Trajectories that all end at the same goal.
        weight: (N,) how much each counts; all alike by default.
    """
    fractions = np.linspace(0.0, 1.0, 65)
    complete = batch.mask.all(-1)
    paths, weights = [], []
    for case in range(len(batch)):
        times = batch.times[case][complete[case]].double().cpu().numpy()
        values = batch.values[case][complete[case]].double().cpu().numpy()
        if len(times) and times[-1] > times[0]:
            passed = (times - times[0]) / (times[-1] - times[0])
            paths.append([np.interp(fractions, passed, channel) for channel in values.T])
            weights.append(1.0 if weight is None else float(weight[case]))
    if not paths:
        return 1.0
    states = np.array(paths)  # (N, C, fractions)
    deviation = states - np.average(states, axis=0, weights=weights)
    remaining = (1 - fractions) ** _FADES[:, np.newaxis]
    # The squared error of each power, but for what all of them have in common.
    correlation = np.einsum("n,ncs,nc->s", weights, deviation, deviation[..., 0])
    size = np.einsum("n,nc->", weights, deviation[..., 0] ** 2)
    error = size * (remaining**2).sum(1) - 2 * remaining @ correlation
    if size <= 1e-24 * np.square(states).sum():  # nothing but rounding
        return 1.0
    return float(_FADES[error.argmin()])
