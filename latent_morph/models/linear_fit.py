"""Least-squares fits of a linear ODE, from which a linear flow can start."""

import torch
from torch import Tensor

from latent_morph.flows import Flow, LinearFlow, MorphFlow
from latent_morph.flows.linear import STABILITY_MARGIN
from latent_morph.series import SeriesBatch

# Largest growth rate to start with, in e-folds over the longest trajectory: noise can make a fit
# diverge, from which training does not recover.
_MAX_GROWTH = 1.0

_Mode = tuple[float, float, Tensor, Tensor]  # rate, frequency, and the vectors of its plane


def finite_differences(batch: SeriesBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Computes states and velocities at the midpoints between adjacent complete rows.

    Returns:
        (P, C) states, (P, C) velocities, and (P,) the case of each.
    """
    complete = batch.mask.all(-1)
    is_pair = complete[:, 1:] & complete[:, :-1]
    before, after = batch.values[:, :-1][is_pair], batch.values[:, 1:][is_pair]
    gap = (batch.times[:, 1:] - batch.times[:, :-1])[is_pair].unsqueeze(-1).to(before)
    return (before + after) / 2, (after - before) / gap, is_pair.nonzero()[:, 0]


def fit_matrix(states: Tensor, velocity: Tensor, weight: Tensor | None = None) -> Tensor:
    """Returns A (C, C) of velocity = A state by ridge regression, in float64.

    Args:
        states: (P, C).
        velocity: (P, C).
        weight: (P,) weight of each pair; 1 by default.
    """
    y, v = states.double(), velocity.double()
    weighted = y.mT if weight is None else weight.double() * y.mT
    gram = weighted @ y
    ridge = 1e-3 * gram.diagonal().mean().clamp(min=1e-12)
    return torch.linalg.solve(gram + ridge * torch.eye(len(gram)).to(gram), weighted @ v).mT


def initialize_linear(linear: LinearFlow, matrix: Tensor) -> None:
    """Initializes a linear flow on D dimensions, approximately, as z' = A z in the first C.

    Complex pairs of A become pairs of the flow. Real modes become real modes or, if there are too
    few of these, slow pairs together with an unused dimension. A flow of real spectrum takes the
    decay rate of a pair and loses its rotation. Modes of the other dimensions remain.

    If D is 2, the direction of rotation is decided here: neither eigenvectors with positive pivots
    nor coupling networks can reverse it later.

    Args:
        linear: Changed in place.
        matrix: (C, C) with C <= D.
    """
    modes = _compute_modes(matrix.cpu().double())
    pair_modes = [mode for mode in modes if mode[1] != 0]
    if linear.n_pairs < len(pair_modes):
        modes = [part for mode in modes for part in _split_pair(mode)]
        pair_modes = []
    real_modes = [mode for mode in modes if mode[1] == 0]
    size, n_pairs = linear.latent_dim, linear.n_pairs
    unused_axes = list(torch.eye(size, dtype=torch.float64)[len(matrix) :])

    def pad(vector: Tensor) -> Tensor:
        return torch.cat([vector, vector.new_zeros(size - len(vector))])

    rates = linear.rates.detach().to("cpu", torch.float64, copy=True)
    frequencies = linear.frequencies.detach().to("cpu", torch.float64, copy=True)
    first: list[Tensor] = []
    second: list[Tensor] = []
    singles: list[Tensor] = []
    while real_modes and len(singles) < linear.n_real:
        rate, _, vector, _ = real_modes.pop(0)
        rates[n_pairs + len(singles)] = rate
        singles.append(pad(vector))
    for k in range(n_pairs):
        if pair_modes:
            rate, frequency, real, imaginary = pair_modes.pop(0)
            pair = pad(real), pad(imaginary)
            rates[k], frequencies[k] = rate, frequency
        elif real_modes:
            rate, _, vector, _ = real_modes.pop(0)
            rates[k] = rate
            frequencies[k] = 0.1 * frequencies[k]
            if unused_axes:
                pair = pad(vector), unused_axes.pop(0)
            else:
                other = real_modes.pop(0)
                rates[k] = (rate + other[0]) / 2
                pair = pad(vector), pad(other[2])
        else:
            pair = unused_axes.pop(0), unused_axes.pop(0)
        first.append(pair[0])
        second.append(pair[1])
    singles += unused_axes  # these keep their rates
    _assign_modes(
        linear, rates, frequencies, torch.stack([*first, *second, *singles], 1), len(matrix)
    )


def linear_base(flow: Flow) -> LinearFlow | None:
    """Returns the linear flow of a closed form, or None."""
    base = flow.base if isinstance(flow, MorphFlow) else flow
    return base if isinstance(base, LinearFlow) else None


def _compute_modes(matrix: Tensor) -> list[_Mode]:
    """Returns eigenvalues a + ib with b >= 0, slowest decay first, and vectors of their planes."""
    values, vectors = torch.linalg.eig(matrix)
    size = float(values.abs().max().clamp(min=1e-12))
    modes: list[_Mode] = []
    for k in values.real.argsort(descending=True).tolist():
        rate, frequency = float(values[k].real), float(values[k].imag)
        if frequency < -1e-9 * size:
            continue  # the conjugate of another one
        vector = vectors[:, k]
        if frequency <= 1e-9 * size:
            modes.append((rate, 0.0, vector.real / vector.real.norm(), vector.real))
            continue
        # For a + ib, x' = A x rotates Re v towards -Im v.
        real, imaginary = vector.real, -vector.imag
        modes.append(
            (rate, frequency, real / vector.abs().norm(), imaginary / vector.abs().norm())
        )
    return modes


def _split_pair(mode: _Mode) -> list[_Mode]:
    """Returns two real modes in place of a pair."""
    rate, frequency, first, second = mode
    if frequency == 0:
        return [mode]
    return [(rate, 0.0, first / first.norm(), first), (rate, 0.0, second / second.norm(), second)]


@torch.no_grad()
def _assign_modes(
    linear: LinearFlow, rates: Tensor, frequencies: Tensor, vectors: Tensor, n_known: int
) -> None:
    """Assigns eigenvalues and, if they are L U with positive pivots, eigenvectors."""
    # The slowest decay of a stable flow is an e-fold in ten times the longest trajectory.
    rates = rates.clamp(max=-0.1 if linear.stable else _MAX_GROWTH)
    if linear.stable:
        linear.rate_parameter.copy_((-rates - STABILITY_MARGIN).sqrt())
    else:
        linear.rate_parameter.copy_(rates)
    linear.frequencies.copy_(frequencies)
    if linear.eigenvectors == "identity":
        return
    n = linear.n_pairs
    signs, lower, upper = _factor_eigenvectors(vectors, n_known, n)
    if lower is None or upper is None:
        return
    # Columns u, v that rotate by b are columns u, -v that rotate by -b.
    linear.frequencies.copy_(frequencies * signs[:n] * signs[n : 2 * n])
    linear.lower.copy_(lower.tril(-1))
    linear.upper.copy_(upper.triu(1) + upper.diagonal().log().diag())


def _factor_eigenvectors(
    vectors: Tensor, n_known: int, n_pairs: int
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns signs of the columns, and L and U of the signed matrix, or None if a pivot is zero.

    The two vectors of a pair may be rotated in their plane, and columns with a part outside the
    first `n_known` coordinates are arbitrary, since states have zeros there. Either choice can
    make pivots vanish. Several random choices are tried, and that with the largest smallest pivot
    is returned.
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
    """Eliminates without pivoting: returns signs, L, and U with a non-negative diagonal."""
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
