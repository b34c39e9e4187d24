"""LinearFlow: the exact solution of z' = A z, learned through the eigenvalues of A."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_positive
from latent_morph.flows.base import Flow, at_pairs

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
            return -self.rate_parameter.square() - STABILITY_MARGIN
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
        factors = self._factors()
        if factors is None:
            return z
        lower, upper = factors
        rows = z.reshape(-1, self.latent_dim)
        rows = torch.linalg.solve_triangular(lower.mT, rows, upper=True, left=False)
        rows = torch.linalg.solve_triangular(upper.mT, rows, upper=False, left=False)
        return rows.reshape(z.shape)

    def from_modes(self, modes: Tensor) -> Tensor:
        """R w: back from modal coordinates, (..., D)."""
        factors = self._factors()
        return modes if factors is None else modes @ (factors[0] @ factors[1]).mT

    def _factors(self) -> tuple[Tensor, Tensor] | None:
        if self.eigenvectors == "identity":
            return None
        identity = torch.eye(self.latent_dim).to(self.lower)
        return (
            self.lower.tril(-1) + identity,
            self.upper.triu(1) + self.upper.diagonal().exp().diag(),
        )

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """See `Flow.stepper`: exponentials and rotations of all gaps are computed together."""
        factors = self._exponentials(gaps.detach().to(self.rate_parameter))
        steps = list(zip(*(factor.unbind(0) for factor in factors), strict=True))
        return lambda k, z: self.from_modes(self._evolved(self.to_modes(z), *steps[k]))

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        modes = self.to_modes(z0).unsqueeze(-2)
        return self.from_modes(self._evolved(modes, *self._exponentials(elapsed)))

    def _part(self, z0: Tensor, elapsed: Tensor, wanted: Tensor) -> Tensor:
        return at_pairs(self.points_from(z0), elapsed, wanted, self.latent_dim)

    def points_from(self, z0: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """The states of chosen series at chosen times, for `at_pairs`; z0 (..., D)."""
        modes = self.to_modes(z0).reshape(-1, self.latent_dim)
        return lambda series, times: self.from_modes(
            self._evolved(modes.index_select(0, series), *self._exponentials(times))
        )

    def _exponentials(self, elapsed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(...) to exp(a t) cos(b t) and exp(a t) sin(b t) of the pairs, exp(a t) of the rest."""
        t = elapsed.unsqueeze(-1)
        growth = (self.rates * t).exp()
        paired, single = growth.split([self.n_pairs, growth.shape[-1] - self.n_pairs], dim=-1)
        angle = self.frequencies * t
        return paired * angle.cos(), paired * angle.sin(), single

    def _evolved(self, modes: Tensor, cos: Tensor, sin: Tensor, growth: Tensor) -> Tensor:
        first, second, single = self._split(modes)
        turned = [
            torch.addcmul(cos * first, sin, second, value=-1),
            torch.addcmul(cos * second, sin, first),
        ]
        if single.shape[-1]:
            turned.append(growth * single)
        return torch.cat(turned, dim=-1)

    def _velocity(self, z: Tensor) -> Tensor:
        first, second, single = self._split(self.to_modes(z))
        pair_rates, single_rates = self.rates.split([self.n_pairs, single.shape[-1]])
        modes = torch.cat(
            [
                pair_rates * first - self.frequencies * second,
                self.frequencies * first + pair_rates * second,
                single_rates * single,
            ],
            dim=-1,
        )
        return self.from_modes(modes)

    def _split(self, modes: Tensor) -> tuple[Tensor, ...]:
        n = self.n_pairs
        return modes.split([n, n, self.latent_dim - 2 * n], dim=-1)
