"""An ODE learned directly from trajectories: states with zeros appended, rolled out."""

from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.flows import Flow
from latent_morph.models.linear_fit import finite_differences
from latent_morph.series import SeriesBatch

# Powers that differences between trajectories may fade by.
_FADES = np.geomspace(0.25, 16.0, 49)

# From this share of rows on, to pick them out costs more than to compute the others as well.
_NEARLY_ALL = 0.98


class Rollout(NamedTuple):
    """Roll-outs and what they are held against.

    Attributes:
        states: (M, T, C) roll-outs, several for each trajectory.
        target: (M, T, C) what was observed.
        mask: (M, T, C) where: observed, and after the start of the roll-out.
        n_own: The first so many start where their trajectory does.
        velocity: The field and the finite differences of the data, each (P, C), and (P,) of which
            trajectory; or None.
    """

    states: Tensor
    target: Tensor
    mask: Tensor
    n_own: int
    velocity: tuple[Tensor, Tensor, Tensor] | None


@final
class DynamicsModel(nn.Module):
    """A flow on states with zeros appended, asked only for the states.

    In training a trajectory counts several times: rolled out from its start, and from points
    chosen at random on it. Every point of a trajectory is the start of the rest of it, and a model
    that appends zeros does not know that by itself. It is what makes new starts work.

    Args:
        flow: On n_channels + augment dimensions.
        n_channels: C.
        restarts: Further starts of each trajectory in every step of training.
        start_noise: Standard deviation of the noise on starts in training, in scaled units.
        start_spread: Standard deviation of shifts of whole roll-outs in training, in scaled units:
            the start is moved and so is what follows, by less and less up to nothing at the end.
        spread_fade: How fast they fade: of the shift, the share of the time that is left, to this
            power, is left too.
        with_velocity: Whether training compares the field with the data's finite differences.
    """

    def __init__(
        self,
        flow: Flow,
        n_channels: int,
        *,
        restarts: int = 0,
        start_noise: float = 0.0,
        start_spread: float = 0.0,
        spread_fade: float = 1.0,
        with_velocity: bool = False,
    ) -> None:
        super().__init__()
        self.flow = flow
        self.n_channels = n_channels
        self.restarts = restarts
        self.start_noise = start_noise
        self.start_spread = start_spread
        self.spread_fade = spread_fade
        self.with_velocity = with_velocity

    def lift(self, states: Tensor) -> Tensor:
        """(..., C) to (..., D): zeros appended."""
        return nn.functional.pad(states, (0, self.flow.latent_dim - self.n_channels))

    def roll_out(self, starts: Tensor, elapsed: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Starts (..., C) and times since then, (T,) or (..., T), to states (..., T, C)."""
        return self.flow(self.lift(starts), elapsed, wanted=wanted)[..., : self.n_channels]

    def field(self, states: Tensor) -> Tensor:
        """The velocity of states (..., C) that start there."""
        return self.flow.field(self.lift(states))[..., : self.n_channels]

    def forward(
        self,
        batch: SeriesBatch,
        times: Tensor | None = None,
        *,
        wanted: Tensor | None = None,
        sample: bool = False,
        generator: torch.Generator | None = None,
    ) -> Rollout:
        """Rolls each trajectory out from its own start and, if `sample`, from random points of it.

        Args:
            batch: Scaled trajectories; a roll-out starts at a row in which all was observed.
            times: Has no effect: trajectories are compared at their own times.
            wanted: As `times`.
            sample: Restarts and noise on starts, as in training.
            generator: Source of both.
        """
        target, times, mask = batch.values, batch.times, batch.mask
        row = first_complete(batch)
        if sample and self.restarts:
            many = 1 + self.restarts
            target, mask = target.repeat(many, 1, 1), mask.repeat(many, 1, 1)
            times = times.repeat(many, 1)
            row = torch.cat([row, self._random_rows(batch, generator)])
        case = torch.arange(len(row), device=row.device)
        starts = target[case, row]
        elapsed = times - times[case, row].unsqueeze(1)
        if sample and self.start_noise:
            starts = starts + self.start_noise * _noise(starts, generator)
        if sample and self.start_spread:
            shift = self.start_spread * _noise(starts, generator)
            left = 1 - elapsed / elapsed[:, -1:].clamp(min=1e-12)
            starts = starts + shift
            share = left.clamp(0, 1).pow(self.spread_fade).to(shift).unsqueeze(-1)
            target = torch.addcmul(target, share, shift.unsqueeze(1))
        after = torch.arange(batch.n_times, device=batch.device) > row.unsqueeze(1)
        mask = mask & after.unsqueeze(-1)
        rows = mask.any(-1)
        elapsed = torch.where(rows, elapsed, 0.0)  # to stay where one is costs no solver a step
        nearly_all = int(rows.count_nonzero()) > _NEARLY_ALL * rows.numel()
        states = self.roll_out(starts, elapsed, None if nearly_all else rows)
        velocity = self._velocities(batch) if sample and self.with_velocity else None
        return Rollout(states, target, mask, len(batch), velocity)

    def _random_rows(self, batch: SeriesBatch, generator: torch.Generator | None) -> Tensor:
        """(restarts * N,) rows to start from: complete ones that are not the last observed."""
        complete = batch.mask.all(-1)
        last = batch.observed.long().cumsum(1).argmax(1)
        complete &= torch.arange(batch.n_times, device=batch.device) < last.unsqueeze(1)
        complete[:, 0] |= ~complete.any(1)  # nothing follows any start: any row will do
        chosen = torch.multinomial(
            complete.float(), self.restarts, replacement=True, generator=generator
        )
        return chosen.mT.flatten()

    def _velocities(self, batch: SeriesBatch) -> tuple[Tensor, Tensor, Tensor]:
        states, velocity, case = finite_differences(batch)
        return self.field(states), velocity, case


def _noise(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device).to(like)


def first_complete(batch: SeriesBatch) -> Tensor:
    """(N,) the first row of each trajectory in which every channel was observed."""
    return batch.mask.all(-1).long().argmax(1)


def measured_fade(batch: SeriesBatch, weight: Tensor | None = None) -> float:
    """How fast trajectories that start apart come together, as a power; see `DynamicsModel`.

    What a trajectory is away from the mean of all, after each share of its time, is held against
    what it was away at its start, times the share of the time that is left to some power; of a
    range of powers the one of the least squared error is taken, and 1 where nothing tells.

    Args:
        batch: Trajectories that all go for the same goal.
        weight: (N,) how much each counts; all alike by default.
    """
    shares = np.linspace(0.0, 1.0, 65)
    complete = batch.mask.all(-1)
    paths, counts = [], []
    for case in range(len(batch)):
        times = batch.times[case][complete[case]].double().cpu().numpy()
        values = batch.values[case][complete[case]].double().cpu().numpy()
        if len(times) and times[-1] > times[0]:
            share = (times - times[0]) / (times[-1] - times[0])
            paths.append([np.interp(shares, share, channel) for channel in values.T])
            counts.append(1.0 if weight is None else float(weight[case]))
    if not paths:
        return 1.0
    states = np.array(paths)  # (N, C, shares)
    away = states - np.average(states, axis=0, weights=counts)
    left = (1 - shares) ** _FADES[:, np.newaxis]
    # The squared error of each power, but for what all of them have in common.
    along = np.einsum("n,ncs,nc->s", counts, away, away[..., 0])
    size = np.einsum("n,nc->", counts, away[..., 0] ** 2)
    error = size * (left**2).sum(1) - 2 * left @ along
    tells = size > 1e-24 * np.square(states).sum()  # and is more than rounding
    return float(_FADES[error.argmin()]) if tells else 1.0
