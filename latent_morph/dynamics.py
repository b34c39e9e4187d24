"""An ODE learned directly from trajectories: states with zeros appended, rolled out."""

from collections.abc import Callable
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.flows import Flow, LinearFlow, MorphFlow
from latent_morph.objectives import Loss
from latent_morph.series import SeriesBatch

# Growth that a linear fit may start with, in e-folds over the longest trajectory: noise can make
# it look explosive, and from there no training returns.
_FASTEST_GROWTH = 1.0

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


class RolloutLoss:
    """The error of roll-outs, an average over values, plus that of the velocities.

    Roll-outs from a trajectory's own start and those from other points of it weigh the same.

    Args:
        loss: "mae" or "mse".
        velocity_weight: Of the error of the velocities against 1 for that of the states.
    """

    def __init__(self, loss: str = "mae", *, velocity_weight: float = 0.0) -> None:
        self.error: Callable[[Tensor], Tensor] = torch.abs if loss == "mae" else torch.square
        self.velocity_weight = velocity_weight

    def __call__(
        self, output: Rollout, *_: object, case_weight: Tensor | None = None, **__: object
    ) -> Loss:
        """The loss of a batch; nothing but the roll-outs and their weights matters.

        Args:
            output: The roll-outs.
            case_weight: (N,) how much each trajectory counts; all alike by default.
        """
        # What is masked is no miss, before it is squared: it may be large.
        error = self.error((output.states - output.target) * output.mask)
        share = output.mask
        if case_weight is not None:
            factor = case_weight.repeat(len(error) // output.n_own).view(-1, 1, 1)
            error, share = factor * error, factor * share
        rest = error.shape[0] - output.n_own
        if not rest:
            parts = {"rollout": _mean(error, share)}
            total = parts["rollout"]
        else:
            sizes = (output.n_own, rest)
            errors, shares = error.split_with_sizes(sizes), share.split_with_sizes(sizes)
            parts = dict(zip(("rollout", "restarts"), map(_mean, errors, shares), strict=True))
            total = 0.5 * (parts["rollout"] + parts["restarts"])
        if output.velocity is not None:
            found, wanted, case = output.velocity
            error = self.error(found - wanted)
            if case_weight is None:
                parts["velocity"] = error.mean()
            else:
                factor = case_weight[case]
                parts["velocity"] = (factor @ error).mean() / factor.sum()
            total = total + self.velocity_weight * parts["velocity"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})


def _mean(error: Tensor, share: Tensor) -> Tensor:
    """Of the errors, each of which counts by its share; zero where none does."""
    count = share.sum(dtype=error.dtype)
    return error.sum() / count.clamp(min=torch.finfo(error.dtype).tiny)


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


def finite_differences(batch: SeriesBatch) -> tuple[Tensor, Tensor, Tensor]:
    """States and velocities halfway between complete rows that are neighbours, and their case.

    Returns:
        (P, C), (P, C) and (P,).
    """
    complete = batch.mask.all(-1)
    both = complete[:, 1:] & complete[:, :-1]
    before, after = batch.values[:, :-1][both], batch.values[:, 1:][both]
    gap = (batch.times[:, 1:] - batch.times[:, :-1])[both].unsqueeze(-1).to(before)
    return (before + after) / 2, (after - before) / gap, both.nonzero()[:, 0]


def fitted_matrix(states: Tensor, velocity: Tensor, weight: Tensor | None = None) -> Tensor:
    """(C, C) the A of velocity = A state by least squares, lightly regularised, in float64.

    Args:
        states: (P, C).
        velocity: (P, C).
        weight: (P,) how much each counts; all alike by default.
    """
    y, v = states.double(), velocity.double()
    weighted = y.mT if weight is None else weight.double() * y.mT
    gram = weighted @ y
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram)).to(gram), weighted @ v).mT


def start_from(linear: LinearFlow, matrix: Tensor) -> None:
    """Lets a linear flow on D dimensions start as z' = A z in the first C of them, if it can.

    A's complex pairs become pairs of the flow, its real modes real modes or, where there are none
    left, slow pairs together with a dimension that A says nothing about. A flow of real spectrum
    keeps the decay of a pair and loses its turning. Dimensions beyond C keep what they started
    with. What cannot be had exactly is approximated: this is a start, not a result.

    In two dimensions without further ones the sense of rotation is settled here, once and for all:
    neither eigenvectors with positive pivots nor coupling networks can turn it round later.

    Args:
        linear: Changed in place.
        matrix: (C, C) with C <= D.
    """
    modes = _modes(matrix.double())
    turning = [mode for mode in modes if mode[1] != 0]
    if linear.n_pairs < len(turning):
        modes = [part for mode in modes for part in _without_turning(mode)]
        turning = []
    straight = [mode for mode in modes if mode[1] == 0]
    size, n_pairs = linear.latent_dim, linear.n_pairs
    spare = list(torch.eye(size, dtype=torch.float64)[len(matrix) :])

    def wide(vector: Tensor) -> Tensor:
        return torch.cat([vector, vector.new_zeros(size - len(vector))])

    rates = linear.rates.detach().double()
    frequencies = linear.frequencies.detach().double()
    first: list[Tensor] = []
    second: list[Tensor] = []
    singles: list[Tensor] = []
    single_rates: list[float] = []
    n_singles = size - 2 * n_pairs
    while straight and len(singles) < n_singles:
        rate, _, vector, _ = straight.pop(0)
        singles.append(wide(vector))
        single_rates.append(rate)
    for k in range(n_pairs):
        if turning:
            rate, frequency, real, imaginary = turning.pop(0)
            pair = wide(real), wide(imaginary)
            rates[k], frequencies[k] = rate, frequency
        elif straight:
            rate, _, vector, _ = straight.pop(0)
            rates[k] = rate
            frequencies[k] = 0.1 * frequencies[k]
            if spare:
                pair = wide(vector), spare.pop(0)
            else:
                other = straight.pop(0)
                rates[k] = (rate + other[0]) / 2
                pair = wide(vector), wide(other[2])
        else:
            pair = spare.pop(0), spare.pop(0)
        first.append(pair[0])
        second.append(pair[1])
    while len(singles) < n_singles:
        single_rates.append(float(rates[n_pairs + len(singles)]))
        singles.append(spare.pop(0))
    for k, rate in enumerate(single_rates):
        rates[n_pairs + k] = rate
    _assign(linear, rates, frequencies, torch.stack([*first, *second, *singles], 1), len(matrix))


def base_of(flow: Flow) -> LinearFlow | None:
    """The linear flow behind a closed form, or None."""
    base = flow.base if isinstance(flow, MorphFlow) else flow
    return base if isinstance(base, LinearFlow) else None


_Mode = tuple[float, float, Tensor, Tensor]  # rate, frequency, and the vectors that span it


def _modes(matrix: Tensor) -> list[_Mode]:
    """Eigenvalues a + ib with b >= 0, slowest decay first, and unit vectors of their planes."""
    values, vectors = torch.linalg.eig(matrix)
    size = float(values.abs().max().clamp(min=1e-12))
    modes: list[_Mode] = []
    for k in values.real.argsort(descending=True).tolist():
        rate, frequency = float(values[k].real), float(values[k].imag)
        if frequency < -1e-9 * size:
            continue  # the other half of a pair
        vector = vectors[:, k]
        if frequency <= 1e-9 * size:
            modes.append((rate, 0.0, vector.real / vector.real.norm(), vector.real))
            continue
        # x' = A x turns Re v towards -Im v for a + ib.
        real, imaginary = vector.real, -vector.imag
        modes.append(
            (rate, frequency, real / vector.abs().norm(), imaginary / vector.abs().norm())
        )
    return modes


def _without_turning(mode: _Mode) -> list[_Mode]:
    rate, frequency, first, second = mode
    if frequency == 0:
        return [mode]
    return [(rate, 0.0, first / first.norm(), first), (rate, 0.0, second / second.norm(), second)]


@torch.no_grad()
def _assign(
    linear: LinearFlow, rates: Tensor, frequencies: Tensor, vectors: Tensor, n_known: int
) -> None:
    """Writes eigenvalues and, as far as L U with positive pivots allows, eigenvectors."""
    # The slowest decay of a stable flow is an e-fold in ten times the longest trajectory.
    rates = rates.clamp(max=-0.1 if linear.stable else _FASTEST_GROWTH)
    n = linear.n_pairs
    signs, lower, upper = _factored(vectors, n_known, n)
    if linear.stable:
        linear.rate_parameter.copy_((-rates - 1e-3).clamp(min=0).sqrt())
    else:
        linear.rate_parameter.copy_(rates)
    if lower is None or upper is None or linear.eigenvectors == "identity":
        linear.frequencies.copy_(frequencies)
        return
    # Columns u, v that turn by b are columns u, -v that turn by -b.
    linear.frequencies.copy_(frequencies * signs[:n] * signs[n : 2 * n])
    linear.lower.copy_(lower.tril(-1))
    linear.upper.copy_(upper.triu(1) + upper.diagonal().log().diag())


def _factored(
    vectors: Tensor, n_known: int, n_pairs: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Signs of the columns, and L and U of the signed matrix, or None where a pivot vanishes.

    A rotation has no first direction, and columns that reach beyond the first
    `n_known` coordinates may be anything: no state with zeros appended has a part along them. Both
    can make pivots vanish, so both are moved at random, a few draws are tried, and that of the
    largest smallest pivot is taken.
    """
    best: tuple[float, tuple[Tensor, Tensor | None, Tensor | None]]
    best = 1e-3, (torch.ones(len(vectors)).to(vectors), None, None)
    generator = torch.Generator().manual_seed(0)
    free = (vectors[n_known:] != 0).any(0)
    for _ in range(50):
        mixed = vectors.clone()
        draw = torch.randn(vectors.shape, generator=generator, dtype=vectors.dtype)
        mixed += torch.where(free, draw / len(vectors) ** 0.5, 0.0)
        angle = 6.3 * torch.rand(n_pairs, generator=generator, dtype=vectors.dtype)
        first, second = mixed[:, :n_pairs].clone(), mixed[:, n_pairs : 2 * n_pairs].clone()
        mixed[:, :n_pairs] = angle.cos() * first + angle.sin() * second
        mixed[:, n_pairs : 2 * n_pairs] = angle.cos() * second - angle.sin() * first
        signs, lower, upper = _eliminated(mixed)
        smallest = float(upper.diagonal().min())
        if smallest > best[0]:
            best = smallest, (signs, lower, upper)
    return best[1]


def _eliminated(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss without exchanging rows: signs, L and U with a diagonal that is nowhere negative."""
    size = len(vectors)
    lower, upper = torch.eye(size).to(vectors), vectors.clone()
    signs = torch.ones(size).to(vectors)
    for k in range(size):
        if upper[k, k] < 0:
            signs[k] = -1.0
            upper[:, k] *= -1.0
        factors = upper[k + 1 :, k] / upper[k, k].clamp(min=1e-12)
        lower[k + 1 :, k] = factors
        upper[k + 1 :] -= factors.unsqueeze(1) * upper[k]
    return signs, lower, upper.triu()
