"""A linear ODE by least squares, for a flow with a linear base to start from."""

import torch
from torch import Tensor

from latent_morph.flows import Flow, LinearFlow, MorphFlow
from latent_morph.series import SeriesBatch

# Growth that a linear fit may start with, in e-folds over the longest trajectory: noise can make
# it look explosive, and from there no training returns.
_MAX_GROWTH = 1.0

_Mode = tuple[float, float, Tensor, Tensor]  # rate, frequency, and the vectors that span it


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


def fit_matrix(states: Tensor, velocity: Tensor, weight: Tensor | None = None) -> Tensor:
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


def initialize_linear(linear: LinearFlow, matrix: Tensor) -> None:
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
    modes = _eigenmodes(matrix.cpu().double())
    turning = [mode for mode in modes if mode[1] != 0]
    if linear.n_pairs < len(turning):
        modes = [part for mode in modes for part in _split_pair(mode)]
        turning = []
    straight = [mode for mode in modes if mode[1] == 0]
    size, n_pairs = linear.latent_dim, linear.n_pairs
    spare = list(torch.eye(size, dtype=torch.float64)[len(matrix) :])

    def wide(vector: Tensor) -> Tensor:
        return torch.cat([vector, vector.new_zeros(size - len(vector))])

    rates = linear.rates.detach().cpu().double()
    frequencies = linear.frequencies.detach().cpu().double()
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
    _assign_modes(
        linear, rates, frequencies, torch.stack([*first, *second, *singles], 1), len(matrix)
    )


def linear_base(flow: Flow) -> LinearFlow | None:
    """The linear flow behind a closed form, or None."""
    base = flow.base if isinstance(flow, MorphFlow) else flow
    return base if isinstance(base, LinearFlow) else None


def _eigenmodes(matrix: Tensor) -> list[_Mode]:
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


def _split_pair(mode: _Mode) -> list[_Mode]:
    rate, frequency, first, second = mode
    if frequency == 0:
        return [mode]
    return [(rate, 0.0, first / first.norm(), first), (rate, 0.0, second / second.norm(), second)]


@torch.no_grad()
def _assign_modes(
    linear: LinearFlow, rates: Tensor, frequencies: Tensor, vectors: Tensor, n_known: int
) -> None:
    """Writes eigenvalues and, as far as L U with positive pivots allows, eigenvectors."""
    # The slowest decay of a stable flow is an e-fold in ten times the longest trajectory.
    rates = rates.clamp(max=-0.1 if linear.stable else _MAX_GROWTH)
    n = linear.n_pairs
    signs, lower, upper = _factor_eigenvectors(vectors, n_known, n)
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


def _factor_eigenvectors(
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
        signs, lower, upper = _eliminate(mixed)
        smallest = float(upper.diagonal().min())
        if smallest > best[0]:
            best = smallest, (signs, lower, upper)
    return best[1]


def _eliminate(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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
