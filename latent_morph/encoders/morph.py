"""MorphEncoder: linear flows with jumps at observations, in closed form, and a bijection."""

import math
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.bijections import make_inn
from latent_morph.checks import check_count
from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.nn import dropout, mlp
from latent_morph.recurrence import damped_rotation, linear_recurrence


@final
class MorphEncoder(Encoder):
    """Layers of states that follow a linear flow between rows and jump at observations.

    Between rows a layer's modes decay and rotate, z' = (a + ib) z with a < 0, which is solved
    exactly for any gap; an observation adds to them. Such a recurrence needs neither solver nor
    gates and takes a few operations per row. Each layer runs in both directions of time and ends
    with a gated nonlinearity. A bijection maps the last states, as in a `MorphFlow`.

    Args:
        n_channels: C.
        latent_dim: D.
        hidden_dim: Size of the states.
        layers: Number of layers.
        modes: Number of modes of a layer in each direction of time.
        dropout: Fraction of each layer's update that is dropped in training.
        pool: Number of consecutive observations that are encoded together. For long series: the
            recurrence has fewer steps by this factor, and rows of a group share a state.
        warp_blocks: Coupling blocks of the bijection; 0 for none.
    """

    def __init__(
        self,
        n_channels: int,
        latent_dim: int,
        hidden_dim: int = 64,
        *,
        layers: int = 3,
        modes: int = 16,
        dropout: float = 0.2,
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
        self.posterior = mlp(hidden_dim + 4 * modes, 2 * latent_dim, width=hidden_dim)

    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        if self.pool == 1:
            tokens = _make_row_tokens(values, times, mask)
        else:
            tokens = _make_pooled_tokens(values, times, mask, self.pool)
        observed = tokens.observed.to(values.dtype).t().unsqueeze(-1)  # (K, N, 1)
        gaps = _compute_gaps(tokens.times).to(values.dtype).t().contiguous()  # (K, N)
        rows = self.embed(tokens.features.transpose(0, 1).contiguous())
        for layer in self.layers:
            rows, modes = layer(rows, observed, gaps)
        rows = self.warp(rows)

        # The posterior depends on observed rows only, so that queried rows do not change it.
        first, last = _find_first_and_last(tokens.observed)
        lead_time = tokens.times.gather(1, first.unsqueeze(1)).squeeze(1).abs().to(values.dtype)
        start = self.layers[-1].propagate(_select_row(modes, first)[:, 1], lead_time)  # type: ignore[operator]
        end = _select_row(modes, last)[:, 0].flatten(1)
        mean_row = (rows * observed).sum(0) / observed.sum(0).clamp(min=1)
        summary = torch.cat([mean_row, torch.cat([start, end], 1) * observed.amax(0)], dim=-1)
        mean, raw_std = self.posterior(summary).chunk(2, dim=-1)
        states = rows.transpose(0, 1)
        if tokens.token_of_row is not None:
            # Not `take_along_dim`, which would fix the sizes of an exported program.
            token = tokens.token_of_row.unsqueeze(-1).expand(-1, -1, states.shape[-1])
            states = states.gather(1, token)
        return Encoding(mean, F.softplus(raw_std) + 1e-4, states)


class _Tokens(NamedTuple):
    """The steps of the recurrence.

    Attributes:
        features: (N, K, F).
        observed: (N, K), False for tokens without an observation, which must change nothing.
        times: (N, K), non-decreasing.
        token_of_row: (N, T) the token of each row; None if tokens are rows.
    """

    features: Tensor
    observed: Tensor
    times: Tensor
    token_of_row: Tensor | None


def _make_row_tokens(values: Tensor, times: Tensor, mask: Tensor) -> _Tokens:
    """Makes one token per row: its values, its mask, and the time since the last observation."""
    observed = mask.any(-1)
    mask_values = mask.to(values.dtype)
    age = _compute_time_since_observed(times, observed).to(values.dtype).unsqueeze(-1)
    features = torch.cat([values * mask_values, mask_values, age], dim=-1)
    return _Tokens(features, observed, times, None)


def _make_pooled_tokens(values: Tensor, times: Tensor, mask: Tensor, pool: int) -> _Tokens:
    """Makes one token per `pool` observed rows, of the features of all of them."""
    features, observed, _, _ = _make_row_tokens(values, times, mask)
    n_cases, n_times = observed.shape
    # At least two, since exported programs treat an axis of size 1 differently. The last one
    # collects rows without an observation.
    n_tokens = n_times // pool + 2
    count = observed.sum(1, keepdim=True)
    rank = (observed.cumsum(1) - 1).clamp(min=0)
    case = torch.arange(n_cases, device=rank.device).unsqueeze(1).expand(-1, n_times)
    index = case, torch.where(observed, rank // pool, n_tokens - 1), rank % pool
    grouped = features.new_zeros(n_cases, n_tokens, pool, features.shape[-1])
    grouped = grouped.index_put(index, features)
    ends = times.new_zeros(n_cases, n_tokens, pool).index_put(index, times)[..., -1]
    # Tokens beyond the last observation have its time.
    last = torch.where(observed, times, -torch.inf).amax(1, keepdim=True)
    last = torch.where(count > 0, last, 0.0)
    token = torch.arange(n_tokens, device=rank.device)
    return _Tokens(
        features=grouped.flatten(2),
        observed=token * pool < count,
        times=torch.where((token + 1) * pool <= count, ends, last),
        token_of_row=rank // pool,
    )


class _Layer(nn.Module):
    """Modes in both directions of time, driven by the rows, and a gated residual update."""

    no_weight_decay: ClassVar[tuple[str, ...]] = ("log_rates", "frequencies")

    def __init__(self, hidden_dim: int, n_modes: int, dropout: float) -> None:
        super().__init__()
        self.n_modes = n_modes
        # Decay times from the whole span to a hundredth of it, and 0 to 15 rotations per span.
        log_rates = torch.linspace(0.0, math.log(100.0), n_modes)
        self.log_rates = nn.Parameter(log_rates.repeat(2, 1))
        self.frequencies = nn.Parameter(torch.pi * torch.linspace(0.0, 30.0, n_modes).repeat(2, 1))
        self.norm = nn.LayerNorm(hidden_dim)
        self.drive = nn.Linear(hidden_dim, 4 * n_modes)
        self.read = nn.Linear(4 * n_modes, hidden_dim)
        self.gate = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = dropout

    def forward(self, rows: Tensor, observed: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Maps (K, N, H), (K, N, 1), (K, N) to updated rows and the modes (K, N, 2, P, 2)."""
        normed = self.norm(rows)
        inputs = (self.drive(normed) * observed).unflatten(-1, (2, self.n_modes, 2))
        modes = linear_recurrence(self.log_rates.exp(), self.frequencies, gaps, inputs)
        update = self.read(modes.flatten(2)) * F.silu(self.gate(normed))
        return rows + dropout(update, self.dropout, training=self.training), modes

    def propagate(self, modes: Tensor, elapsed: Tensor) -> Tensor:
        """Returns backward modes (N, P, 2) after elapsed times (N,): (N, 2 P)."""
        cos, sin = damped_rotation(self.log_rates[1].exp(), self.frequencies[1], elapsed)
        re, im = modes.unbind(-1)
        return torch.cat([cos * re - sin * im, sin * re + cos * im], dim=-1)


# The next functions have no axis of size T - 1: exported programs treat a size of 1 differently.


def _compute_gaps(times: Tensor) -> Tensor:
    """Returns (N, T) the time since the previous row, 0 for the first."""
    return times - torch.cat([times[:, :1], times], dim=1)[:, : times.shape[1]]


def _compute_time_since_observed(times: Tensor, observed: Tensor) -> Tensor:
    """Returns (N, T) the time since the last earlier observation, 0 if there is none."""
    n_earlier = observed.cumsum(1) - observed.long()
    # Times of observations in their order, from index 1 on; index 0 is for unobserved rows.
    index = torch.where(observed, n_earlier + 1, 0)
    observed_times = torch.zeros_like(torch.cat([times[:, :1], times], dim=1))
    observed_times = observed_times.scatter(1, index, times)
    return torch.where(n_earlier > 0, times - observed_times.gather(1, n_earlier), 0.0)


def _find_first_and_last(observed: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (N,) the first and (N,) the last observed token of (N, K), 0 if there is none."""
    position = torch.arange(observed.shape[1], device=observed.device)
    return observed.int().argmax(1), torch.where(observed, position, 0).amax(1)


def _select_row(modes: Tensor, index: Tensor) -> Tensor:
    """Selects one row per series: (K, N, 2, P, 2) to (N, 2, P, 2)."""
    where = index.view(1, -1, 1, 1, 1).expand(1, -1, *modes.shape[2:])
    return modes.gather(0, where).squeeze(0)
