"""Modes of a linear ODE: into them, through time and out of them, and the derivative by hand.

Coordinates are the first axis. Modes are laid out as all first halves of the pairs, all second
halves, then the real ones: the halves are then whole blocks of memory, and a change of coordinates
is one product with all points as columns.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from latent_morph.by_hand import ByHand, Kept


class Eigenvectors(NamedTuple):
    """A matrix R = L U; the columns of R are the modes.

    Attributes:
        below: (D, D) what L has below its diagonal of ones.
        upper: (D, D) U.
    """

    below: Tensor
    upper: Tensor

    @classmethod
    def of(cls, lower: Tensor, upper: Tensor) -> "Eigenvectors":
        """From parameters (D, D); the diagonal of U is the exponential of what is there."""
        diagonal = upper.diagonal().exp()
        return cls(lower.tril(-1), torch.diagonal_scatter(upper.triu(1), diagonal))

    def solved(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """L^-1 z and R^-1 z for columns z (D, N)."""
        half = torch.linalg.solve_triangular(self.below, z, upper=False, unitriangular=True)
        return half, torch.linalg.solve_triangular(self.upper, half, upper=True)

    def product(self) -> Tensor:
        """R."""
        return torch.addmm(self.upper, self.below, self.upper)

    def to_modes(self, z: Tensor) -> Tensor:
        """R^-1 z for z (D, ...)."""
        return self.solved(z.reshape(z.shape[0], -1))[1].view(z.shape)

    def from_modes(self, modes: Tensor) -> Tensor:
        """R w for modes w (D, ...)."""
        return torch.mm(self.product(), modes.reshape(modes.shape[0], -1)).view(modes.shape)


def exponentials(
    rates: Tensor, frequencies: Tensor, elapsed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """exp(a t) cos(b t) and exp(a t) sin(b t) of the pairs, exp(a t) of the real modes.

    Args:
        rates: a, first of the pairs, then of the real modes.
        frequencies: b of the pairs.
        elapsed: (...) times.

    Returns:
        Each of (n, ...).
    """
    n_pairs, n_rates = frequencies.shape[0], rates.shape[0]
    ones = [1] * elapsed.ndim
    growth = (rates.view(-1, *ones) * elapsed).exp()
    paired, single = growth.split_with_sizes((n_pairs, n_rates - n_pairs))
    angle = frequencies.view(-1, *ones) * elapsed
    return paired * angle.cos(), paired * angle.sin(), single


def turned(modes: Tensor, cos: Tensor, sin: Tensor, growth: Tensor) -> Tensor:
    """Modes (D, ...) times what `exponentials` gave."""
    first, second, single = halves(modes, cos.shape[0])
    parts = [
        torch.addcmul(cos * first, sin, second, value=-1),
        torch.addcmul(cos * second, sin, first),
    ]
    if single.shape[0]:
        parts.append(growth * single)
    return torch.cat(parts)


def halves(modes: Tensor, n_pairs: int) -> Sequence[Tensor]:
    """The first halves of the pairs, the second ones, and the real modes."""
    return modes.split_with_sizes((n_pairs, n_pairs, modes.shape[0] - 2 * n_pairs))


def met(modes: Tensor, elapsed: Tensor, series: Tensor | None) -> tuple[Tensor, Tensor]:
    """Modes (D, N) and times so that each meets its own: see `trajectory`."""
    if series is not None:
        return modes.index_select(1, series), elapsed
    if elapsed.ndim == 1:
        return modes.unsqueeze(1), elapsed.unsqueeze(1)
    return modes.unsqueeze(2), elapsed


def trajectory(
    rates: Tensor,
    frequencies: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    elapsed: Tensor,
    series: Tensor | None = None,
) -> ByHand:
    """Where starts are after some time: (D, N) to (D, M).

    The M columns are one for each of `elapsed`, or if that is shared, for each time and start.

    Args:
        rates: See `exponentials`.
        frequencies: See `exponentials`.
        lower: See `Eigenvectors.of`.
        upper: See `Eigenvectors.of`.
        elapsed: (T,) shared by all, (N, T), or with `series` (M,).
        series: (M,) the start that each of `elapsed` is for.
    """
    weights = rates, frequencies, lower, upper
    followed = partial(_followed, elapsed=elapsed, series=series)
    return ByHand(
        run=lambda z, kept: followed(z, *weights, kept=kept),
        gradients=_gradients,
        plain=followed,
        weights=weights,
    )


class _Trace(NamedTuple):
    """What the derivative needs, and after it `series` if there is one."""

    elapsed: Tensor

    below: Tensor
    upper: Tensor
    product: Tensor
    half: Tensor
    modes: Tensor
    after: Tensor
    cos: Tensor
    sin: Tensor
    growth: Tensor


def _followed(
    z: Tensor,
    rates: Tensor,
    frequencies: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    elapsed: Tensor,
    series: Tensor | None,
    kept: Kept | None = None,
) -> Tensor:
    vectors = Eigenvectors.of(lower, upper)
    half, modes = vectors.solved(z)
    begin, times = met(modes, elapsed, series)
    factors = exponentials(rates, frequencies, times)
    after = turned(begin, *factors)
    product = vectors.product()
    if kept is not None:
        trace = _Trace(elapsed, *vectors, product, half, modes, after, *factors)
        kept.append(trace if series is None else (*trace, series))
    return torch.mm(product, after.view(after.shape[0], -1))


def _gradients(g: Tensor, kept: Kept) -> list[Tensor]:
    elapsed, below, upper, product, half, modes, after, cos, sin, growth, *rest = kept.pop()
    g_product = torch.mm(g, after.view(g.shape).t())
    g_after = torch.mm(product.t(), g).view(after.shape)
    first, second, single = halves(after, cos.shape[0])
    g_first, g_second, g_single = halves(g_after, cos.shape[0])
    # A pair that grows moves along itself, and one that turns across itself.
    along = torch.addcmul(g_first * first, g_second, second)
    across = torch.addcmul(g_second * first, g_first, second, value=-1)
    g_begin = [
        torch.addcmul(cos * g_first, sin, g_second),
        torch.addcmul(cos * g_second, sin, g_first, value=-1),
    ]
    if single.shape[0]:
        along = torch.cat([along, g_single * single])
        g_begin.append(growth * g_single)
    g_modes = torch.cat(g_begin)
    if rest:
        times, (series,) = elapsed, rest
        g_modes = torch.zeros_like(modes).index_add_(1, series, g_modes)
    elif elapsed.ndim == 1:
        times = elapsed.repeat_interleave(modes.shape[1])
        g_modes = g_modes.sum(1)
    else:
        times = elapsed.reshape(-1)
        g_modes = g_modes.sum(2)
    times = times.to(along)
    # Through the two solutions, and then together with the product of the same factors.
    g_half = torch.linalg.solve_triangular(upper.t(), g_modes, upper=False)
    g_z = torch.linalg.solve_triangular(below.t(), g_half, upper=True, unitriangular=True)
    g_upper = torch.addmm(g_product, below.t(), g_product)
    g_upper = g_upper.addmm_(g_half, modes.t(), alpha=-1).triu_()
    g_upper.diagonal().mul_(upper.diagonal())
    g_lower = torch.mm(g_product, upper.t()).addmm_(g_z, half.t(), alpha=-1).tril_(-1)
    return [
        g_z,
        along.flatten(1).mv(times),
        across.flatten(1).mv(times),
        g_lower,
        g_upper,
    ]
