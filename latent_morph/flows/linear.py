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
        return self._to_modes(z.movedim(-1, 0), self._upper()).movedim(0, -1)

    def from_modes(self, modes: Tensor) -> Tensor:
        """R w: back from modal coordinates, (..., D)."""
        return self._from_modes(modes.movedim(-1, 0), self._upper()).movedim(0, -1)

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """See `Flow.stepper`: exponentials and rotations of all gaps are computed together."""
        factors = self._exponentials(gaps.detach().to(self.rate_parameter))
        steps = list(zip(*(factor.unbind(1) for factor in factors), strict=True))

        upper = self._upper()

        def step(k: int, z: Tensor) -> Tensor:
            modes = self._to_modes(z.movedim(-1, 0), upper)
            return self._from_modes(self._evolved(modes, *steps[k]), upper).movedim(0, -1)

        return step

    def coordinates(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """The trajectory with the coordinates as first axis, as it comes out of the products.

        Args:
            z0: (N, D).
            elapsed: (T,) shared by all series, or (N, T).

        Returns:
            (D, T, N) for shared times, (D, N, T) for times of each series.
        """
        upper = self._upper()
        modes = self._to_modes(z0.mT, upper)
        shared = elapsed.ndim == 1
        return self._at(
            modes.unsqueeze(1 if shared else 2),
            elapsed.unsqueeze(1) if shared else elapsed,
            upper,
        )

    def coordinates_from(self, z0: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """For `at_pairs`: chosen series (M,) at chosen times (M,), to (D, M); z0 (N, D)."""
        upper = self._upper()
        modes = self._to_modes(z0.mT, upper)
        return lambda series, times: self._at(modes.index_select(1, series), times, upper)

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        return as_trajectory(self.coordinates(*flattened(z0, elapsed)), z0, elapsed)

    def _part(self, z0: Tensor, elapsed: Tensor, wanted: Tensor) -> Tensor:
        return at_pairs(self.coordinates_from(flattened(z0, elapsed)[0]), elapsed, wanted)

    # Inside, coordinates are the first axis: halves of pairs are then whole blocks of memory,
    # and a change of coordinates is one product with all points as columns.

    def _at(self, modes: Tensor, elapsed: Tensor, upper: Tensor | None) -> Tensor:
        """Modes (D, ...) after `elapsed` (...), which broadcast, in coordinates (D, ...)."""
        return self._from_modes(self._evolved(modes, *self._exponentials(elapsed)), upper)

    def _to_modes(self, z: Tensor, upper: Tensor | None) -> Tensor:
        if upper is None:
            return z
        columns = torch.linalg.solve_triangular(
            self.lower, z.reshape(len(z), -1), upper=False, unitriangular=True
        )
        return torch.linalg.solve_triangular(upper, columns, upper=True).view(z.shape)

    def _from_modes(self, modes: Tensor, upper: Tensor | None) -> Tensor:
        if upper is None:
            return modes
        vectors = torch.addmm(upper, self.lower.tril(-1), upper)  # L has ones on its diagonal
        return torch.mm(vectors, modes.reshape(len(modes), -1)).view(modes.shape)

    def _upper(self) -> Tensor | None:
        """U: what is above the diagonal, and the exponential of what is on it; None for R = 1."""
        if self.eigenvectors == "identity":
            return None
        return torch.diagonal_scatter(self.upper.triu(1), self.upper.diagonal().exp())

    def _exponentials(self, elapsed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(...) to exp(a t) cos(b t) and exp(a t) sin(b t) of the pairs, exp(a t) of the rest."""
        ones = [1] * elapsed.ndim
        growth = (self.rates.view(-1, *ones) * elapsed).exp()
        paired, single = growth.split([self.n_pairs, len(growth) - self.n_pairs])
        angle = self.frequencies.view(-1, *ones) * elapsed
        return paired * angle.cos(), paired * angle.sin(), single

    def _evolved(self, modes: Tensor, cos: Tensor, sin: Tensor, growth: Tensor) -> Tensor:
        first, second, single = self._split(modes)
        turned = [
            torch.addcmul(cos * first, sin, second, value=-1),
            torch.addcmul(cos * second, sin, first),
        ]
        if len(single):
            turned.append(growth * single)
        return torch.cat(turned)

    def _velocity(self, z: Tensor) -> Tensor:
        upper = self._upper()
        first, second, single = self._split(self._to_modes(z.movedim(-1, 0), upper))
        ones = [1] * (z.ndim - 1)
        rates, turns = self.rates.view(-1, *ones), self.frequencies.view(-1, *ones)
        pair_rates, single_rates = rates.split([self.n_pairs, len(single)])
        modes = torch.cat(
            [
                pair_rates * first - turns * second,
                turns * first + pair_rates * second,
                single_rates * single,
            ]
        )
        return self._from_modes(modes, upper).movedim(0, -1)

    def _split(self, modes: Tensor) -> tuple[Tensor, ...]:
        n = self.n_pairs
        return modes.split([n, n, self.latent_dim - 2 * n])


def flattened(z0: Tensor, elapsed: Tensor) -> tuple[Tensor, Tensor]:
    """All batch axes as one: z0 (..., D) and times (T,) or (..., T) to (N, D), (T,) or (N, T)."""
    if elapsed.ndim > 1:
        elapsed = elapsed.expand(*z0.shape[:-1], -1).reshape(-1, elapsed.shape[-1])
    return z0.reshape(-1, z0.shape[-1]), elapsed


def as_trajectory(coordinates: Tensor, z0: Tensor, elapsed: Tensor) -> Tensor:
    """What `LinearFlow.coordinates` gives, (D, T, N) or (D, N, T), as (..., T, D)."""
    path = coordinates.permute(2, 1, 0) if elapsed.ndim == 1 else coordinates.permute(1, 2, 0)
    return path.reshape(*z0.shape[:-1], *path.shape[1:])
