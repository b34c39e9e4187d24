"""MorphEncoder: the encoder in closed form, linear flow with jumps, seen through a bijection."""

import math
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.bijections import make_inn
from latent_morph.checks import check_count
from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.encoders.recurrence import damped_rotation, linear_recurrence
from latent_morph.nn import dropout, mlp


@final
class MorphEncoder(Encoder):
    """Layers of states that flow linearly between rows and jump at observations.

    Between rows a layer's modes decay and rotate, z' = (a + ib) z with a < 0, which is solved
    exactly for any gap; an observation adds to them. Such a recurrence needs no solver and no
    gates, so that all of time costs a few operations per row. Both directions of time run
    together; between layers is a gated nonlinearity, and the last states are seen through a
    bijection, as the trajectories of a `MorphFlow` are.

    Args:
        n_channels: C.
        latent_dim: D.
        hidden_dim: Size of the states.
        layers: How many.
        modes: Of a layer, in each direction of time.
        dropout: Fraction of each layer's update that is left out in training.
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

    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        if self.pool == 1:
            tokens = _tokens_of_rows(values, times, mask)
        else:
            tokens = _pooled_tokens(values, times, mask, self.pool)
        observed = tokens.observed.to(values.dtype).t().unsqueeze(-1)  # (K, N, 1)
        gaps = _gaps(tokens.times).to(values.dtype).t().contiguous()  # (K, N)
        rows = self.embed(tokens.features.transpose(0, 1).contiguous())
        for layer in self.layers:
            rows, modes = layer(rows, observed, gaps)
        rows = self.warp(rows)

        # Only rows where something was observed speak of z0: a queried row must not move it.
        first, last = _first_and_last(tokens.observed)
        lead = tokens.times.gather(1, first.unsqueeze(1)).squeeze(1).abs().to(values.dtype)
        start = self.layers[-1].carry(_select_row(modes, first)[:, 1], lead)  # type: ignore[operator]
        end = _select_row(modes, last)[:, 0].flatten(1)
        mean_row = (rows * observed).sum(0) / observed.sum(0).clamp(min=1)
        known = torch.cat([mean_row, torch.cat([start, end], 1) * observed.amax(0)], dim=-1)
        mean, spread = self.posterior(known).chunk(2, dim=-1)
        states = rows.transpose(0, 1)
        if tokens.of_row is not None:
            # `take_along_dim` would fix the sizes of an exported program.
            token = tokens.of_row.unsqueeze(-1).expand(-1, -1, states.shape[-1])
            states = states.gather(1, token)
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


def _tokens_of_rows(values: Tensor, times: Tensor, mask: Tensor) -> _Tokens:
    observed = mask.any(-1)
    seen = mask.to(values.dtype)
    stale = _time_since_observed(times, observed).to(seen).unsqueeze(-1)
    return _Tokens(torch.cat([values * seen, seen, stale], dim=-1), observed, times, None)


def _pooled_tokens(values: Tensor, times: Tensor, mask: Tensor, pool: int) -> _Tokens:
    """Groups of `pool` observed rows: their values, masks, and gaps before each."""
    features, observed, _, _ = _tokens_of_rows(values, times, mask)
    n_cases, n_times = observed.shape
    # Never one token, which an exported program would have to tell from several; the last is a
    # place for rows where nothing was observed.
    n_tokens = n_times // pool + 2
    count = observed.sum(1, keepdim=True)
    place = (observed.cumsum(1) - 1).clamp(min=0)
    case = torch.arange(n_cases, device=place.device).unsqueeze(1).expand(-1, n_times)
    index = case, torch.where(observed, place // pool, n_tokens - 1), place % pool
    grouped = features.new_zeros(n_cases, n_tokens, pool, features.shape[-1])
    grouped = grouped.index_put(index, features)
    ends = times.new_zeros(n_cases, n_tokens, pool).index_put(index, times)[..., -1]
    # Beyond the last observation time stands still.
    last = torch.where(observed, times, -torch.inf).amax(1, keepdim=True)
    last = torch.where(count > 0, last, 0.0)
    token = torch.arange(n_tokens, device=place.device)
    return _Tokens(
        features=grouped.flatten(2),
        observed=token * pool < count,
        times=torch.where((token + 1) * pool <= count, ends, last),
        of_row=place // pool,
    )


class _Layer(nn.Module):
    """Modes in both directions of time, driven by the rows, then a gated residual update."""

    no_weight_decay: ClassVar[tuple[str, ...]] = ("log_rates", "frequencies")

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
        inputs = (self.drive(normed) * observed).unflatten(-1, (2, self.n_modes, 2))
        modes = linear_recurrence(self.log_rates.exp(), self.frequencies, gaps, inputs)
        update = self.read(modes.flatten(2)) * F.silu(self.gate(normed))
        return rows + dropout(update, self.dropout, training=self.training), modes

    def carry(self, modes: Tensor, lead: Tensor) -> Tensor:
        """Modes (N, P, 2) that run backward, carried on for `lead` (N,), to time 0: (N, 2 P)."""
        cos, sin = damped_rotation(self.log_rates[1].exp(), self.frequencies[1], lead)
        re, im = modes.unbind(-1)
        return torch.cat([cos * re - sin * im, sin * re + cos * im], dim=-1)


# In these no axis has a size of T - 1, which an exported program would have to tell from 1.


def _gaps(times: Tensor) -> Tensor:
    """(N, T) the time since the row before, 0 for the first."""
    return times - torch.cat([times[:, :1], times], dim=1)[:, : times.shape[1]]


def _time_since_observed(times: Tensor, observed: Tensor) -> Tensor:
    """(N, T) time since an earlier row was observed, 0 before the first: how stale the past is."""
    n_earlier = observed.cumsum(1) - observed.long()
    # The times of observations, in their order, from place 1 on; place 0 stands for none.
    place = torch.where(observed, n_earlier + 1, 0)
    times_of = torch.zeros_like(torch.cat([times[:, :1], times], dim=1)).scatter(1, place, times)
    return torch.where(n_earlier > 0, times - times_of.gather(1, n_earlier), 0.0)


def _first_and_last(observed: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) twice: the first and the last observed token (N, K), 0 where there is none."""
    position = torch.arange(observed.shape[1], device=observed.device)
    return observed.int().argmax(1), torch.where(observed, position, 0).amax(1)


def _select_row(modes: Tensor, index: Tensor) -> Tensor:
    """(K, N, 2, P, 2) at one row for each series: (N, 2, P, 2)."""
    where = index.view(1, -1, 1, 1, 1).expand(1, -1, *modes.shape[2:])
    return modes.gather(0, where).squeeze(0)
