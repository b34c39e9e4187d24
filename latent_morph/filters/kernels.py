"""Kernels: weights at nine taps in time, applied to mixtures of the channels, and pooled."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor, nn

from latent_morph.filters.biases import draw_biases, spread_rows
from latent_morph.filters.interpolant import SLACK, Interpolant, resample

N_TAPS = 9
N_KERNELS = 84  # choices of three out of nine taps
N_GROUPS = 6  # of kernels with a mixture of channels each, if there are several channels
# Kernels see the first part of a series that is so many times as long as what their taps cover,
# about the longest training series: a single absurd time would fill the memory otherwise.
MAX_SPANS = 8
POOLS = ("share above bias", "position above bias", "share of change above bias")
_MAX_MIXED = 9


class Kernels(nn.Module):
    """The 84 kernels of MiniRocket, with taps at multiples of several time lags.

    Of the nine taps three have the weight 2 and six have -1, so that a constant gives 0. The taps
    read the interpolants of the channels, which are constant beyond the ends of a series. With
    several channels, each group of kernels reads the sum of a random subset of them.

    Pooled are the share of the time in which an output is above a bias; where in the series that
    is, from -1/8 to 1/8: the mean over time of the distance from the middle, where the output is
    above; and the share of the time in which the change of the output to the next grid point is
    above a bias.

    A. Dempster, D. F. Schmidt, G. I. Webb: MiniRocket, a very fast (almost) deterministic
    transform for time series classification. KDD 2021.

    Args:
        n_channels: C.
        n_lags: L.
        n_biases: B, per kernel and lag.
    """

    step: Tensor
    lags: Tensor
    mixtures: Tensor
    weights: Tensor
    biases: Tensor
    change_biases: Tensor

    def __init__(self, n_channels: int, n_lags: int, n_biases: int) -> None:
        super().__init__()
        n_groups = 1 if n_channels == 1 else N_GROUPS
        per_group = N_KERNELS // n_groups
        self.register_buffer("step", torch.ones((), dtype=torch.float64))
        self.register_buffer("lags", torch.ones(n_lags, dtype=torch.int64))
        for name, shape in (
            ("mixtures", (n_lags, n_channels, n_groups)),
            ("weights", (n_lags, n_groups, N_TAPS, per_group)),
            ("biases", (n_lags, n_biases, N_KERNELS)),
            ("change_biases", (n_lags, n_biases, N_KERNELS)),
        ):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float32))

    def draw(self, step: float, lags: Tensor, varies: Tensor, generator: torch.Generator) -> None:
        """Sets the step of the grid and the lags, in steps, and draws mixtures of channels.

        Args:
            step: Time between grid points.
            lags: (L,).
            varies: (C,) bool, the channels to mix; all of them if there is none.
            generator: Source of randomness.
        """
        self.step = torch.tensor(step, dtype=torch.float64)
        self.lags = lags
        n_lags, n_channels, n_groups = self.mixtures.shape
        shape = n_lags, n_groups, 1
        # The number of channels mixed is log-uniform, as in MiniRocket.
        most = varies.sum().clamp(max=_MAX_MIXED) + 1.0
        n_mixed = (most ** torch.rand(shape, generator=generator, dtype=torch.float32)).long()
        draws = torch.rand(n_lags, n_groups, n_channels, generator=generator, dtype=torch.float32)
        rank = torch.where(varies, draws, 2.0).argsort(-1).argsort(-1)
        self.mixtures = (rank < n_mixed).to(self.mixtures.dtype).transpose(1, 2)
        chosen = torch.tensor(list(combinations(range(N_TAPS), 3)))
        kernels = torch.full((N_KERNELS, N_TAPS), -1.0, dtype=self.weights.dtype)
        kernels = kernels.scatter(1, chosen, 2.0)
        order = torch.rand(n_lags, N_KERNELS, generator=generator, dtype=torch.float32).argsort(-1)
        self.weights = kernels[order].unflatten(1, (n_groups, -1)).transpose(2, 3).contiguous()

    def sample(self, interpolant: Interpolant, n_points: int) -> list[Tensor]:
        """Returns outputs and their changes (R, 168) of each lag at some points of the grid."""
        grid, inside = self._resample(interpolant)
        drawn = spread_rows(inside, n_points)
        samples = []
        for i in range(len(self.lags)):
            outputs = self.outputs(grid, i)
            samples.append(torch.cat([outputs, _changes(outputs)], dim=-1)[drawn])
        return samples

    def fit(self, samples: Sequence[Tensor], generator: torch.Generator) -> None:
        """Draws biases among outputs and their changes (R, 168) of each lag."""
        n_biases = self.biases.shape[1]
        for i, sample in enumerate(samples):
            biases = draw_biases(sample, n_biases, generator)
            self.biases[i], self.change_biases[i] = biases.chunk(2, dim=1)

    def outputs(self, grid: Tensor, i: int) -> Tensor:
        """Returns outputs (N, G, 84) of the kernels with lag i on a grid (N, G, C)."""
        last = grid.shape[1] - 1
        point = torch.arange(grid.shape[1], device=grid.device)
        tap = torch.arange(N_TAPS, device=grid.device) - N_TAPS // 2
        index = (point.unsqueeze(1) + tap * self.lags[i]).clamp(0, last)
        mixed = (grid @ self.mixtures[i]).movedim(-1, 0)  # (groups, N, G)
        taps = mixed[:, :, index]  # (groups, N, G, 9)
        return (taps @ self.weights[i].unsqueeze(1)).movedim(0, 2).flatten(2)

    def forward(self, interpolant: Interpolant) -> Tensor:
        """Returns the pooled outputs (N, 3 * L * B * 84), in the order of `POOLS`."""
        grid, inside = self._resample(interpolant)
        n_points = inside.sum(1, keepdim=True)
        point = torch.arange(grid.shape[1], device=grid.device)
        # Whole numbers, so that what is always above has no rounding error.
        counted = torch.stack([inside.long(), inside * (2 * point - (n_points - 1))], dim=1)
        counted = counted.to(grid.dtype)  # (N, 2, G)
        pooled, changes = [], []
        for i in range(len(self.lags)):
            outputs = self.outputs(grid, i)
            pooled += [counted @ (outputs > bias).to(grid.dtype) for bias in self.biases[i]]
            outputs = _changes(outputs)
            changes += [
                counted[:, :1] @ (outputs > bias).to(grid.dtype) for bias in self.change_biases[i]
            ]
        above, offsets = torch.stack(pooled, dim=1).unbind(2)  # (N, L * B, 84)
        n_points = n_points.to(grid.dtype)
        shares = above.flatten(1) / n_points
        positions = offsets.flatten(1) / (2 * n_points * (n_points - 1).clamp(min=1))
        return torch.cat([shares, positions, torch.cat(changes, 2).squeeze(1) / n_points], dim=1)

    def names(self) -> list[str]:
        """Returns the names of the features."""
        n_lags, n_biases, _ = self.biases.shape
        return [
            f"lag {lag} kernel {kernel}: {pool} {bias}"
            for pool in POOLS
            for lag in range(n_lags)
            for bias in range(n_biases)
            for kernel in range(N_KERNELS)
        ]

    def count_points(self, span: Tensor) -> Tensor:
        """Returns the number of grid points for spans (N,).

        It is one more than lie within a span: the last point is beyond the end of the series,
        unless that is too long to be seen as a whole.
        """
        longest = MAX_SPANS * (N_TAPS - 1) * self.lags.amax(0)
        # The minimum of floating point numbers: an absurd span has no whole number.
        steps = torch.minimum(span.double() / self.step + SLACK, longest.double())
        return steps.floor().long() + 2

    def _resample(self, interpolant: Interpolant) -> tuple[Tensor, Tensor]:
        # All series have ended at the last point, so that none depends on the others.
        n_points = self.count_points(interpolant.span).amax(0)
        # Not int(), which an exported program cannot do.
        return resample(interpolant, self.step, n_points.item())  # type: ignore[arg-type]


def _changes(outputs: Tensor) -> Tensor:
    """Returns the changes of outputs (N, G, K) to the next grid point, 0 for the last point."""
    following = torch.cat([outputs[:, 1:], outputs[:, -1:]], dim=1)
    return following - outputs
