"""LinearFlow: the exact solution of z' = A z, learned through the eigenvalues of A."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_positive
from latent_morph.flows.base import Flow, at_pairs
from latent_morph.flows.modes import Eigenvectors, exponentials, halves, met, trajectory, turned

SPECTRA = ("complex", "real")
EIGENVECTORS = ("learned", "identity")
STABILITY_MARGIN = 1e-3


@final
class LinearFlow(Flow):
    """z' = A z with A = R diag(lambda) R^-1, so z(t) = R exp(lambda t) R^-1 z0.

    `spectrum="real"` has one real eigenvalue a dimension: growth and decay only. `"complex"` has
    pairs a +- ib, that is exp(a t) times a rotation by b t, in real arithmetic; an odd dimension
    leaves one real eigenvalue over. Only pairs can oscillate, and no change of coordinates adds an
    oscillation to a flow that has none. Nor can one that keeps orientation, as eigenvectors and
    coupling networks do here, turn a single rotation round: in two dimensions training has to find
    the sense of rotation by taking b through zero. Pairs therefore start with alternating senses.

    Args:
        latent_dim: D.
        spectrum: `"complex"` or `"real"`.
        eigenvectors: `"learned"`: R = L U, triangular factors with positive diagonals, invertible
            whatever the optimiser does. `"identity"`: the coordinates are the modes.
        stable: Real parts are -(s^2) - 1e-3 for a learned s: every trajectory ends at the origin.
        horizon: The time span of interest. The pairs start at half-waves of it (+-k pi / horizon),
            the decays at multiples of 1 / horizon.
    """

    def __init__(
        self,
        latent_dim: int,
        *,
        spectrum: str = "complex",
        eigenvectors: str = "learned",
        stable: bool = False,
        horizon: float = 1.0,
    ) -> None:
        super().__init__(latent_dim)
        check_choice("spectrum", spectrum, SPECTRA)
        check_choice("eigenvectors", eigenvectors, EIGENVECTORS)
        check_positive("horizon", horizon)
        self.spectrum, self.eigenvectors, self.stable = spectrum, eigenvectors, bool(stable)
        self.n_pairs = latent_dim // 2 if spectrum == "complex" else 0
        n_rates = latent_dim - self.n_pairs
        steps = torch.arange(1, n_rates + 1) / horizon
        # Complex pairs start as pure rotations, real modes as decays: nothing starts explosive.
        if stable:
            start = steps.sqrt()
        elif spectrum == "complex":
            start = torch.zeros(n_rates)
        else:
            start = -steps / n_rates
        self.rate_parameter = nn.Parameter(start)
        k = torch.arange(1, self.n_pairs + 1)
        self.frequencies = nn.Parameter(k * (-1.0) ** (k - 1) * (math.pi / horizon))
        if eigenvectors == "learned":
            self.lower = nn.Parameter(torch.zeros(latent_dim, latent_dim))
            self.upper = nn.Parameter(torch.zeros(latent_dim, latent_dim))

    @property
    def rates(self) -> Tensor:
        """Real parts of the eigenvalues: one a pair, then one a real mode."""
        if self.stable:
            slowest = self.rate_parameter.new_full((), -STABILITY_MARGIN)
            return torch.addcmul(slowest, self.rate_parameter, self.rate_parameter, value=-1)
        return self.rate_parameter

    def fastest(self) -> float:
        """The largest absolute value among rates and frequencies, in radians a unit of time."""
        with torch.no_grad():
            return float(torch.cat([self.rates, self.frequencies]).abs().max())

    def matrix(self) -> Tensor:
        """The generator A, (D, D)."""
        return self._velocity(torch.eye(self.latent_dim).to(self.rate_parameter)).mT

    def to_modes(self, z: Tensor) -> Tensor:
        """R^-1 z: coordinates in which the modes do not mix, (..., D).

        Laid out as all first halves of the pairs, all second halves, then the real modes.
        """
        vectors = self._vectors()
        return z if vectors is None else vectors.to_modes(z.movedim(-1, 0)).movedim(0, -1)

    def from_modes(self, modes: Tensor) -> Tensor:
        """R w: back from modal coordinates, (..., D)."""
        vectors = self._vectors()
        if vectors is None:
            return modes
        return vectors.from_modes(modes.movedim(-1, 0)).movedim(0, -1)

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """See `Flow.stepper`: exponentials and rotations of all gaps are computed together."""
        times = gaps.detach().to(self.rate_parameter)
        factors = exponentials(self.rates, self.frequencies, times)
        steps = list(zip(*(factor.unbind(1) for factor in factors), strict=True))
        vectors = self._vectors()

        def step(k: int, z: Tensor) -> Tensor:
            columns = z.movedim(-1, 0)
            if vectors is None:
                return turned(columns, *steps[k]).movedim(0, -1)
            modes = turned(vectors.to_modes(columns), *steps[k])
            return vectors.from_modes(modes).movedim(0, -1)

        return step

    def after(self, elapsed: Tensor, series: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """What carries starts as columns, (D, N), through time, to states as columns (D, M).

        Args:
            elapsed: (T,) shared by all starts, for T * N states; (N, T), for N * T states; or with
                `series` (M,).
            series: (M,) the start that each of `elapsed` is for.
        """
        rates, frequencies = self.rates, self.frequencies
        if self.eigenvectors == "learned":
            return trajectory(
                rates, frequencies, self.lower, self.upper, elapsed=elapsed, series=series
            )

        def turn(z: Tensor) -> Tensor:
            begin, times = met(z, elapsed, series)
            return turned(begin, *exponentials(rates, frequencies, times)).flatten(1)

        return turn

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        starts, times = flattened(z0, elapsed)
        return as_trajectory(self.after(times)(starts.mT), z0, elapsed)

    def _part(self, z0: Tensor, elapsed: Tensor, wanted: Tensor) -> Tensor:
        starts = flattened(z0, elapsed)[0].mT
        return at_pairs(lambda series, times: self.after(times, series)(starts), elapsed, wanted)

    def _vectors(self) -> Eigenvectors | None:
        """R, or None where it is the identity."""
        if self.eigenvectors == "identity":
            return None
        return Eigenvectors.of(self.lower, self.upper)

    def _velocity(self, z: Tensor) -> Tensor:
        vectors, columns = self._vectors(), z.movedim(-1, 0)
        modes = columns if vectors is None else vectors.to_modes(columns)
        first, second, single = halves(modes, self.n_pairs)
        ones = [1] * (z.ndim - 1)
        rates, turns = self.rates.view(-1, *ones), self.frequencies.view(-1, *ones)
        pair_rates, single_rates = rates.split([self.n_pairs, len(single)])
        moving = torch.cat(
            [
                pair_rates * first - turns * second,
                turns * first + pair_rates * second,
                single_rates * single,
            ]
        )
        moving = moving if vectors is None else vectors.from_modes(moving)
        return moving.movedim(0, -1)


def flattened(z0: Tensor, elapsed: Tensor) -> tuple[Tensor, Tensor]:
    """All batch axes as one: z0 (..., D) and times (T,) or (..., T) to (N, D), (T,) or (N, T)."""
    if elapsed.ndim > 1:
        elapsed = elapsed.expand(*z0.shape[:-1], -1).reshape(-1, elapsed.shape[-1])
    return z0.reshape(-1, z0.shape[-1]), elapsed


def as_trajectory(states: Tensor, z0: Tensor, elapsed: Tensor) -> Tensor:
    """What `LinearFlow.after` leads to, (D, T * N) or (D, N * T), as (..., T, D)."""
    n_times = elapsed.shape[-1]
    if elapsed.ndim == 1:
        path = states.unflatten(1, (n_times, -1)).permute(2, 1, 0)
    else:
        path = states.unflatten(1, (-1, n_times)).permute(1, 2, 0)
    return path.reshape(*z0.shape[:-1], *path.shape[1:])
