"""Decoder and heads: from latent states to channels, and to class logits."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_positive
from latent_morph.nn import mlp

HEADS = ("trajectory+context", "trajectory")


class Emission(NamedTuple):
    """A normal distribution over channels: mean (..., C) and standard deviation (C,)."""

    mean: Tensor
    std: Tensor


class Decoder(nn.Module):
    """Maps latent states (..., D) to an `Emission`.

    Args:
        latent_dim: D.
        n_channels: C.
        width: Hidden units.
        depth: Hidden layers; 0 is linear.
        noise_std: Standard deviation of the observation noise in scaled units, or `"learned"` for
            one per channel.
    """

    def __init__(
        self,
        latent_dim: int,
        n_channels: int,
        *,
        width: int = 64,
        depth: int = 1,
        noise_std: float | str = "learned",
    ) -> None:
        super().__init__()
        self.network = mlp(latent_dim, n_channels, width=width, depth=depth)
        if isinstance(noise_std, str):
            check_choice("noise_std", noise_std, ["learned"])
            self.log_std = nn.Parameter(torch.zeros(n_channels))
            # At much less than a thousandth of a standard deviation the likelihood diverges.
            self.min_log_std = -7.0
        else:
            level = torch.full((n_channels,), check_positive("noise_std", noise_std))
            self.register_buffer("log_std", level.log())
            self.min_log_std = -float("inf")

    def forward(self, z: Tensor) -> Emission:
        """Decodes z (..., D)."""
        return Emission(self.network(z), self.log_std.clamp(min=self.min_log_std).exp())


class PointHead(nn.Module):
    """Class logits per time point, from z(t) and, if `head` has context, the encoder's state.

    `present` is unused; heads have one signature.

    Args:
        latent_dim: D.
        state_dim: S.
        n_classes: K.
        head: A name from `HEADS`.
        summary_dim: W, the size of the summary of a row, 0 if there is none.
        width: Hidden units.
    """

    def __init__(
        self,
        latent_dim: int,
        state_dim: int,
        n_classes: int,
        *,
        head: str,
        summary_dim: int = 0,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.uses_context = check_choice("head", head, HEADS) == "trajectory+context"
        n_inputs = latent_dim + (state_dim if self.uses_context else 0) + summary_dim
        self.network = mlp(n_inputs, n_classes, width=width)

    def forward(
        self, trajectory: Tensor, states: Tensor, present: Tensor, summary: Tensor | None = None
    ) -> Tensor:
        """(N, T, D), (N, T, S), (N, T), (N, T, W) -> logits (N, T, K)."""
        rows = _join_features(trajectory, states if self.uses_context else None)
        if summary is not None:
            rows = torch.cat([rows, summary], dim=-1)
        return self.network(rows)


class SeriesHead(nn.Module):
    """Class logits per series, from features of its rows, pooled by mean and maximum.

    Arguments are those of `PointHead`, but that a summary is of the whole series.
    """

    def __init__(
        self,
        latent_dim: int,
        state_dim: int,
        n_classes: int,
        *,
        head: str,
        summary_dim: int = 0,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.uses_context = check_choice("head", head, HEADS) == "trajectory+context"
        n_inputs = latent_dim + (state_dim if self.uses_context else 0)
        self.row = nn.Sequential(nn.Linear(n_inputs, width), nn.SiLU())
        self.network = mlp(2 * width + summary_dim, n_classes, width=width)

    def forward(
        self, trajectory: Tensor, states: Tensor, present: Tensor, summary: Tensor | None = None
    ) -> Tensor:
        """(N, T, D), (N, T, S), (N, T), (N, W) -> logits (N, K)."""
        rows = self.row(_join_features(trajectory, states if self.uses_context else None))
        mask = present.unsqueeze(-1)
        mean = (rows * mask).sum(1) / mask.sum(1)
        maximum = rows.masked_fill(~mask, float("-inf")).amax(1)
        pooled = [mean, maximum] if summary is None else [mean, maximum, summary]
        return self.network(torch.cat(pooled, dim=-1))


def _join_features(trajectory: Tensor, states: Tensor | None) -> Tensor:
    return trajectory if states is None else torch.cat([trajectory, states], dim=-1)
