"""DynamicsModel: an ODE of observed states, augmented with zeros, and its roll-outs."""

from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.flows import Flow
from latent_morph.series import SeriesBatch

# Candidates for the power by which differences between trajectories fade.
_FADE_POWERS = np.geomspace(0.25, 16.0, 49)

# If more than this fraction of rows is queried, computing all of them is faster.
_MAX_QUERY_FRACTION = 0.98


class Rollout(NamedTuple):
    """Roll-outs and their targets.

    Attributes:
        states: (M, T, C) roll-outs.
        target: (M, T, C) the observations.
        mask: (M, T, C) what was observed after the start.
    """

    states: Tensor
    target: Tensor
    mask: Tensor


class Starts(NamedTuple):
    """Starts of roll-outs and their targets.

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
    """A flow on states with zeros appended, of which only the states are returned.

    Args:
        flow: Of at least n_channels dimensions.
        n_channels: C.
    """

    def __init__(self, flow: Flow, n_channels: int) -> None:
        super().__init__()
        self.flow = flow
        self.n_channels = n_channels

    def lift(self, states: Tensor) -> Tensor:
        """Appends zeros: (..., C) to (..., D)."""
        return nn.functional.pad(states, (0, self.flow.latent_dim - self.n_channels))

    def roll_out(
        self, starts: Tensor, elapsed: Tensor, query_mask: Tensor | None = None
    ) -> Tensor:
        """Maps starts (..., C) and elapsed times (T,) or (..., T) to states (..., T, C)."""
        lifted = self.lift(starts)
        return self.flow(lifted, elapsed, query_mask=query_mask)[..., : self.n_channels]

    def field(self, states: Tensor) -> Tensor:
        """Returns the velocity (..., C) of trajectories at their starts (..., C)."""
        return self.flow.field(self.lift(states))[..., : self.n_channels]

    def follow(self, starts: Starts) -> Rollout:
        """Rolls out from `starts` to every row with a target."""
        rows = starts.mask.any(-1)
        # An elapsed time of zero costs a solver nothing.
        elapsed = torch.where(rows, starts.elapsed, 0.0)
        is_full = int(rows.count_nonzero()) > _MAX_QUERY_FRACTION * rows.numel()
        states = self.roll_out(starts.states, elapsed, None if is_full else rows)
        return Rollout(states, starts.target, starts.mask)

    def forward(self, batch: SeriesBatch) -> Rollout:
        """Rolls each trajectory out from its first complete row."""
        return self.follow(starts_at(batch, first_complete(batch)))


def starts_at(batch: SeriesBatch, row: Tensor) -> Starts:
    """Returns roll-outs from rows (k N,), k per trajectory: N rows in order, repeated k times."""
    repeats = len(row) // len(batch)
    target, mask = batch.values.repeat(repeats, 1, 1), batch.mask.repeat(repeats, 1, 1)
    times = batch.times.repeat(repeats, 1)
    case = torch.arange(len(row), device=row.device)
    is_after = torch.arange(batch.n_times, device=row.device) > row.unsqueeze(1)
    return Starts(
        states=target[case, row],
        elapsed=times - times[case, row].unsqueeze(1),
        target=target,
        mask=mask & is_after.unsqueeze(-1),
    )


def first_complete(batch: SeriesBatch) -> Tensor:
    """Returns (N,) the first row of each trajectory in which every channel was observed."""
    return batch.mask.all(-1).long().argmax(1)


def random_rows(batch: SeriesBatch, repeats: int, generator: torch.Generator | None) -> Tensor:
    """Draws (repeats * N,) rows to start from: complete ones before the last observed one."""
    complete = batch.mask.all(-1)
    last = batch.observed.long().cumsum(1).argmax(1)
    complete &= torch.arange(batch.n_times, device=batch.device) < last.unsqueeze(1)
    # Without such a row the last one is taken: nothing follows it, so that it adds no error.
    complete[:, -1] |= ~complete.any(1)
    chosen = torch.multinomial(complete.float(), repeats, replacement=True, generator=generator)
    return chosen.mT.flatten()


def measure_fade(batch: SeriesBatch, weight: Tensor | None = None) -> float:
    """Estimates the power by which the differences between trajectories fade.

    The deviation of a trajectory from the mean of all, after a fraction s of its time, is modeled
    as its deviation at the start times (1 - s) to a power. The candidate with the least squared
    error is returned, or 1 if the trajectories do not differ at the start.

    Args:
        batch: Trajectories that all end at the same goal.
        weight: (N,) weight of each trajectory; 1 by default.
    """
    fractions = np.linspace(0.0, 1.0, 65)
    complete = batch.mask.all(-1)
    paths, weights = [], []
    for case in range(len(batch)):
        times = batch.times[case][complete[case]].double().cpu().numpy()
        values = batch.values[case][complete[case]].double().cpu().numpy()
        if len(times) and times[-1] > times[0]:
            elapsed = (times - times[0]) / (times[-1] - times[0])
            paths.append([np.interp(fractions, elapsed, channel) for channel in values.T])
            weights.append(1.0 if weight is None else float(weight[case]))
    if not paths:
        return 1.0
    states = np.array(paths)  # (N, C, fractions)
    deviation = states - np.average(states, axis=0, weights=weights)
    remaining = (1 - fractions) ** _FADE_POWERS[:, np.newaxis]
    # The squared error of each power, up to a constant.
    correlation = np.einsum("n,ncs,nc->s", weights, deviation, deviation[..., 0])
    size = np.einsum("n,nc->", weights, deviation[..., 0] ** 2)
    error = size * (remaining**2).sum(1) - 2 * remaining @ correlation
    if size <= 1e-24 * np.square(states).sum():  # rounding errors only
        return 1.0
    return float(_FADE_POWERS[error.argmin()])
