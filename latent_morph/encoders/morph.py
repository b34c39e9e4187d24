"""MorphEncoder: the encoder in closed form, linear flow with jumps, seen through a bijection."""

import math
from typing import NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.bijections import make_inn
from latent_morph.checks import check_count
from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.encoders.recurrence import pushed_modes, turns
from latent_morph.nn import dropout, mlp
from latent_morph.series import SeriesBatch


@final
class MorphEncoder(Encoder):
    """Layers of states that flow linearly between rows and jump at observations.

    Between rows a layer's modes decay and rotate, z' = (a + ib) z with a < 0, which is solved
    exactly for any gap; an observation adds to them. Such a recurrence needs no solver and no
    gates, so that all of time costs a few operations a row. Both directions of time run together;
    between layers stands a gated nonlinearity, and the last states are seen through a bijection,
    as the trajectories of a `MorphFlow` are.

    Args:
        n_channels: C.
        latent_dim: D.
        hidden_dim: Size of the states.
        layers: How many.
        modes: Of a layer, in each direction of time.
        dropout: Share of each layer's update that is left out in training.
        pool: Observations that are taken in together. For long series: the recurrence has that
            many times fewer steps, and rows share the state of their group.
        warp_blocks: Coupling blocks of the bijection; 0 for none.
    """

    def __init__(
        self,
        n_channels: int,
        latent_dim: int,
        *,
        hidden_dim: int = 64,
        layers: int = 3,
        modes: int = 16,
        dropout: float = 0.1,
        pool: int = 1,
        warp_blocks: int = 1,
    ) -> None:
        super().__init__(n_channels, latent_dim, hidden_dim)
        self.pool = check_count("pool", pool)
        self.embed = nn.Linear(pool * (2 * n_channels + 1), hidden_dim)
        check_count("modes", modes)
        stack = [_Layer(hidden_dim, modes, dropout) for _ in range(check_count("layers", layers))]
        self.layers = nn.ModuleList(stack)
        self.warp = (
            make_inn(hidden_dim, blocks=warp_blocks, width=hidden_dim // 2 + 1)
            if warp_blocks
            else nn.Identity()
        )
        n_known = hidden_dim + 4 * modes
        self.posterior = mlp(n_known, 2 * latent_dim, width=hidden_dim)

    def _encode(self, batch: SeriesBatch) -> Encoding:
        tokens = _each_row(batch) if self.pool == 1 else _pooled(batch, self.pool)
        observed = tokens.observed.to(batch.values.dtype).t().unsqueeze(-1)  # (K, N, 1)
        gaps = F.pad(tokens.times.diff(dim=1), (1, 0)).to(observed).t().contiguous()  # (K, N)
        rows = self.embed(tokens.features.transpose(0, 1).contiguous())
        for layer in self.layers:
            rows, modes = layer(rows, observed, gaps)
        rows = self.warp(rows)

        # Only rows where something was observed speak of z0: a queried row must not move it.
        first, last = _span(tokens.observed)
        lead = tokens.times.gather(1, first.unsqueeze(1)).squeeze(1).abs().to(observed)
        start = self.layers[-1].carried(_row(modes, first)[:, 1], lead)  # type: ignore[operator]
        ending = _row(modes, last)[:, 0].flatten(1)
        mean_row = (rows * observed).sum(0) / observed.sum(0).clamp(min=1)
        known = torch.cat([mean_row, torch.cat([start, ending], 1) * observed.amax(0)], dim=-1)
        mean, spread = self.posterior(known).chunk(2, dim=-1)
        states = rows.transpose(0, 1)
        if tokens.of_row is not None:
            states = states.take_along_dim(tokens.of_row.unsqueeze(-1), dim=1)
        return Encoding(mean, F.softplus(spread) + 1e-4, states)


class _Tokens(NamedTuple):
    """What the recurrence steps through.

    Attributes:
        features: (N, K, F).
        observed: (N, K) False for tokens that must change nothing.
        times: (N, K) never falling.
        of_row: (N, T) the token that speaks for each row; None if they are the rows themselves.
    """

    features: Tensor
    observed: Tensor
    times: Tensor
    of_row: Tensor | None


def _each_row(batch: SeriesBatch) -> _Tokens:
    seen = batch.mask.to(batch.values.dtype)
    since = _since_last_observation(batch).to(seen).unsqueeze(-1)
    features = torch.cat([batch.values * seen, seen, since], dim=-1)
    return _Tokens(features, batch.observed, batch.times, None)


def _pooled(batch: SeriesBatch, pool: int) -> _Tokens:
    """Groups of `pool` observed rows: their values, masks, and gaps before each."""
    counts = batch.observed.sum(1, keepdim=True)
    n_tokens = max(1, -(-int(counts.max()) // pool))
    # Observed rows first and in order; one more row, of nothing, fills the last group.
    order = batch.observed.int().argsort(dim=1, descending=True, stable=True)
    place = torch.arange(n_tokens * pool, device=counts.device)
    rows = order.gather(1, place.clamp(max=batch.n_times - 1).expand(len(batch), -1))
    there = place < counts
    each = rows.unsqueeze(-1)
    seen = (batch.mask.take_along_dim(each, dim=1) & there.unsqueeze(-1)).to(batch.values.dtype)
    values = batch.values.take_along_dim(each, dim=1) * seen
    # Beyond the last observation time stands still.
    times = torch.where(there, batch.times.gather(1, rows), -torch.inf).cummax(1).values
    times = torch.where(times.isfinite(), times, 0.0)
    gaps = F.pad(times.diff(dim=1), (1, 0)).to(seen).unsqueeze(-1)
    features = torch.cat([values, seen, gaps], dim=-1).unflatten(1, (n_tokens, pool)).flatten(2)
    of_row = (batch.observed.cumsum(1) - 1).clamp(min=0) // pool
    return _Tokens(features, there[:, ::pool], times[:, pool - 1 :: pool], of_row)


class _Layer(nn.Module):
    """Modes in both directions of time, driven by the rows, then a gated residual update."""

    def __init__(self, hidden_dim: int, n_modes: int, dropout: float) -> None:
        super().__init__()
        self.n_modes = n_modes
        # From a memory of the whole span to one of a hundredth; from no turn to as many.
        octaves = torch.linspace(0.0, math.log(100.0), n_modes)
        self.log_rates = nn.Parameter(octaves.repeat(2, 1))
        self.frequencies = nn.Parameter(torch.pi * torch.linspace(0.0, 30.0, n_modes).repeat(2, 1))
        self.norm = nn.LayerNorm(hidden_dim)
        self.drive = nn.Linear(hidden_dim, 4 * n_modes)
        self.read = nn.Linear(4 * n_modes, hidden_dim)
        self.gate = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = dropout

    def forward(self, rows: Tensor, observed: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """(K, N, H), (K, N, 1), (K, N) to rows, and the modes (K, N, 2, P, 2)."""
        normed = self.norm(rows)
        pushes = (self.drive(normed) * observed).unflatten(-1, (2, self.n_modes, 2))
        modes = pushed_modes(self.log_rates.exp(), self.frequencies, gaps, pushes)
        update = self.read(modes.flatten(2)) * F.silu(self.gate(normed))
        return rows + dropout(update, self.dropout, training=self.training), modes

    def carried(self, modes: Tensor, lead: Tensor) -> Tensor:
        """Modes (N, P, 2) that run backwards, flowed on for `lead` (N,), to time 0: (N, 2 P)."""
        cos, sin = turns(self.log_rates[1].exp(), self.frequencies[1], lead)
        re, im = modes.unbind(-1)
        return torch.cat([cos * re - sin * im, sin * re + cos * im], dim=-1)


def _since_last_observation(batch: SeriesBatch) -> Tensor:
    """(N, T) time since an earlier row was observed, 0 before the first: how stale the past is."""
    seen_at = torch.where(batch.observed, batch.times, -torch.inf).cummax(1).values
    before = F.pad(seen_at[:, :-1], (1, 0), value=-torch.inf)
    return torch.where(before.isfinite(), batch.times - before, 0.0)


def _span(observed: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) twice: the first and the last observed token (N, K), 0 where there is none."""
    first = observed.int().argmax(1)
    last = observed.shape[1] - 1 - observed.flip(1).int().argmax(1)
    return first, last


def _row(states: Tensor, index: Tensor) -> Tensor:
    """(T, N, ...) at one row for each series: (N, ...)."""
    return states[index, torch.arange(states.shape[1], device=states.device)]
