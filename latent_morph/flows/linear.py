"""LinearFlow: the exact solution of z' = A z, with A learned through its eigenvalues."""

import math
from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_positive
from latent_morph.flows.base import Flow, evaluate_masked

SPECTRA = ("complex", "real")
EIGENVECTORS = ("learned", "identity")
STABILITY_MARGIN = 1e-3


@final
class LinearFlow(Flow):
    """z' = A z with A = R diag(lambda) R^-1, so z(t) = R exp(lambda t) R^-1 z0.

    `spectrum="real"` has one real eigenvalue per dimension: growth and decay only. `"complex"`
    has pairs a +- ib, each exp(a t) times a rotation by b t in real arithmetic, and one real
    eigenvalue if the dimension is odd. Only pairs oscillate: no change of coordinates adds an
    oscillation. Eigenvectors and coupling networks preserve orientation here, so that in two
    dimensions training can reverse the rotation only by taking b through zero. Pairs therefore
    start with alternating signs of b.

    Args:
        latent_dim: D.
        spectrum: `"complex"` or `"real"`.
        eigenvectors: `"learned"`: R = L U with triangular factors of positive diagonals, which is
            always invertible. `"identity"`: R is the identity.
        stable: Real parts are -s^2 - 1e-3 with learned s, so that every trajectory converges to
            the origin.
        horizon: The time span of interest. Frequencies start at +-k pi / horizon, decay rates at
            multiples of 1 / horizon.
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
        self.n_real = latent_dim - 2 * self.n_pairs
        n_rates = self.n_pairs + self.n_real
        steps = torch.arange(1, n_rates + 1) / horizon
        # Complex pairs start as pure rotations, real modes as decays, so that no mode grows.
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
        self._frozen_basis: Basis | None = None

    @property
    def rates(self) -> Tensor:
        """The real parts of the eigenvalues: one per pair, then one per real mode."""
        if self.stable:
            return -STABILITY_MARGIN - self.rate_parameter.square()
        return self.rate_parameter

    def max_rate(self) -> float:
        """Returns the largest absolute value among rates and frequencies, per unit of time."""
        with torch.no_grad():
            return float(torch.cat([self.rates, self.frequencies]).abs().max())

    def matrix(self) -> Tensor:
        """Returns A, (D, D)."""
        return self._velocity(torch.eye(self.latent_dim).to(self.rate_parameter)).mT

    def basis(self) -> "Basis":
        """Returns the eigenvectors, computed from the present weights unless frozen."""
        if self._frozen_basis is not None:
            return self._frozen_basis
        if self.eigenvectors == "identity":
            return Basis()
        below = self.lower.tril(-1)
        upper = torch.diagonal_scatter(self.upper.triu(1), self.upper.diagonal().exp())
        return Basis(torch.addmm(upper, below, upper), below, upper)

    @torch.no_grad()
    def freeze(self) -> None:
        """Fixes the eigenvectors and their inverse at the present weights, for export.

        Exported programs cannot solve triangular systems. Later changes of the weights, of their
        dtype or their device do not reach a frozen basis.
        """
        matrix = self.basis().matrix
        if matrix is not None:
            inverse = matrix.double().inverse().to(matrix)
            self._frozen_basis = Basis(matrix, inverse=inverse)

    def propagate(self, modes: Tensor, elapsed: Tensor) -> Tensor:
        """Returns modes (..., D) after times (...); their leading axes broadcast."""
        columns = modes.movedim(-1, 0)
        elapsed = elapsed.view(*[1] * (columns.ndim - 1 - elapsed.ndim), *elapsed.shape)
        return self._apply_rotation(columns, *self._compute_exponentials(elapsed)).movedim(0, -1)

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """See `Flow.stepper`; exponentials of all gaps are computed together."""
        factors = self._compute_exponentials(gaps.detach().to(self.rate_parameter))
        steps = list(zip(*(factor.unbind(1) for factor in factors), strict=True))
        basis = self.basis()

        def step(k: int, z: Tensor) -> Tensor:
            columns = self._apply_rotation(basis.to_modes(z).movedim(-1, 0), *steps[k])
            return basis.from_modes(columns.movedim(0, -1))

        return step

    # The next two methods have coordinates on the first axis; see `Basis`.

    def _compute_exponentials(self, elapsed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns exp(a t) cos(b t) and exp(a t) sin(b t) per pair, exp(a t) per real mode.

        Times (...) give (n, ...) each.
        """
        axes = [1] * elapsed.ndim
        growth = (self.rates.view(-1, *axes) * elapsed).exp()
        paired, real = growth.split([self.n_pairs, self.n_real])
        angle = self.frequencies.view(-1, *axes) * elapsed
        return paired * angle.cos(), paired * angle.sin(), real

    def _apply_rotation(self, modes: Tensor, cos: Tensor, sin: Tensor, growth: Tensor) -> Tensor:
        """Multiplies modes (D, ...) by what `_compute_exponentials` returns."""
        first, second, real = modes.split([self.n_pairs, self.n_pairs, self.n_real])
        parts = [
            torch.addcmul(cos * first, sin, second, value=-1),
            torch.addcmul(cos * second, sin, first),
        ]
        if self.n_real:
            parts.append(growth * real)
        return torch.cat(parts)

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        basis = self.basis()
        modes = basis.to_modes(z0).unsqueeze(-2)
        return basis.from_modes(self.propagate(modes, elapsed))

    def _masked_trajectory(self, z0: Tensor, elapsed: Tensor, query_mask: Tensor) -> Tensor:
        basis = self.basis()
        modes = basis.to_modes(z0).reshape(-1, self.latent_dim).mT
        return evaluate_masked(
            lambda series, times: basis.from_modes(self.propagate(modes[:, series].mT, times)),
            elapsed,
            query_mask,
        )

    def _velocity(self, z: Tensor) -> Tensor:
        basis = self.basis()
        sizes = [self.n_pairs, self.n_pairs, self.n_real]
        first, second, real = basis.to_modes(z).split(sizes, dim=-1)
        paired, single = self.rates.split([self.n_pairs, self.n_real])
        frequencies = self.frequencies
        velocity = [
            paired * first - frequencies * second,
            paired * second + frequencies * first,
            single * real,
        ]
        return basis.from_modes(torch.cat(velocity, dim=-1))


class Basis(NamedTuple):
    """The eigenvectors of a linear flow, the columns of R = (I + below) upper.

    Modal coordinates are ordered as the first coordinates of all pairs, their second coordinates,
    then the real modes. Methods take and return (..., D), but coordinates are first in memory:
    splitting then takes contiguous blocks, and a change of coordinates is one matrix product.

    Attributes:
        matrix: (D, D) R, or None for the identity.
        below: (D, D) strictly lower triangular.
        upper: (D, D) upper triangular.
        inverse: (D, D) R^-1 if frozen; less accurate than solving.
    """

    matrix: Tensor | None = None
    below: Tensor | None = None
    upper: Tensor | None = None
    inverse: Tensor | None = None

    def to_modes(self, z: Tensor) -> Tensor:
        """Returns the modal coordinates R^-1 z, (..., D)."""
        if self.inverse is not None:
            return _multiply(self.inverse, z)
        if self.below is None or self.upper is None:
            return z
        solve = torch.linalg.solve_triangular
        columns = z.movedim(-1, 0)
        modes = solve(
            self.below, columns.reshape(len(columns), -1), upper=False, unitriangular=True
        )
        return solve(self.upper, modes, upper=True).view(columns.shape).movedim(0, -1)

    def from_modes(self, modes: Tensor) -> Tensor:
        """Returns R w for modal coordinates w, (..., D)."""
        return modes if self.matrix is None else _multiply(self.matrix, modes)


def _multiply(matrix: Tensor, z: Tensor) -> Tensor:
    """Multiplies each of z (..., D) by a matrix (D, D)."""
    columns = z.movedim(-1, 0)
    return (matrix @ columns.reshape(len(matrix), -1)).view(columns.shape).movedim(0, -1)
