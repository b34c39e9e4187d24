"""GRUDecayEncoder: a GRU whose state and last observed values decay while nothing is observed."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.checks import check_count
from latent_morph.encoders.base import Encoder, Encoding, find_first_time
from latent_morph.nn import init_input_weights, mlp


@final
class GRUDecayEncoder(Encoder):
    """A GRU that runs over a series forward in time and, by default, backward.

    A missing value is replaced by the last one of its channel, which decays towards the channel's
    mean, 0 in scaled units. The hidden state decays in the same way between rows. Every channel
    and every unit learns its own rate. The mask is an input too. The posterior over z0 is computed
    from the states after the last observation of each direction, and from the time of the first
    observation, since z0 belongs to time 0.

    The decays are those of GRU-D (Che et al., 2018), with two differences: that network runs
    forward only, and its hidden state decays with the ages of all channels instead of the time
    since the last row with an observation. The latter lets queries, which add rows, change
    nothing.

    Args:
        n_channels: C.
        latent_dim: D.
        hidden_dim: Size of the hidden state of one direction.
        bidirectional: Run backward in time as well.
    """

    def __init__(
        self,
        n_channels: int,
        latent_dim: int,
        hidden_dim: int = 64,
        *,
        bidirectional: bool = True,
    ) -> None:
        check_count("hidden_dim", hidden_dim)
        super().__init__(n_channels, latent_dim, (2 if bidirectional else 1) * hidden_dim)
        self.forward_sweep = _Sweep(n_channels, hidden_dim)
        self.backward_sweep = _Sweep(n_channels, hidden_dim) if bidirectional else None
        self.posterior = mlp(self.state_dim + 1, 2 * latent_dim, width=hidden_dim)

    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        # Time-major, so that each step of a sweep reads contiguous memory.
        rows, row_times, row_mask = (part.transpose(0, 1) for part in (values, times, mask))
        end, path = self.forward_sweep(rows, row_times, row_mask)
        ends, states = [end], [path]
        if self.backward_sweep is not None:
            # Seen backward, the clock runs from minus the last time to minus the first one.
            end, path = self.backward_sweep(rows.flip(0), -row_times.flip(0), row_mask.flip(0))
            ends.append(end)
            states.append(path.flip(0))
        lead_time = find_first_time(times, mask.any(-1)).to(values.dtype).unsqueeze(-1)
        mean, raw_std = self.posterior(torch.cat([*ends, lead_time], dim=-1)).chunk(2, dim=-1)
        return Encoding(
            mean, F.softplus(raw_std) + 1e-4, torch.cat(states, dim=-1).transpose(0, 1)
        )


class _Sweep(nn.Module):
    """One direction of time: decay over each gap, then a GRU update at observed rows."""

    def __init__(self, n_channels: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.value_decay = _Decay(n_channels)
        self.state_decay = _Decay(hidden_dim)
        self.cell = nn.GRUCell(2 * n_channels, hidden_dim)  # values and mask
        init_input_weights(self.cell)

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Runs over all rows in the given order.

        Args:
            values: (T, N, C).
            times: (T, N), non-decreasing.
            mask: (T, N, C).

        Returns:
            (N, H) the state after the last observation and (T, N, H) the state at every row. Rows
            without an observation are not steps of the network: their states are those of the last
            observed row, decayed, so that they affect no other row.
        """
        filled = self.fill_missing(values, times, mask)
        inputs = torch.cat([filled, mask.to(values.dtype)], dim=-1)
        is_observed = mask.any(-1, keepdim=True)
        decays = self.state_decay(_compute_gaps(times, is_observed).to(values.dtype))
        state = values.new_zeros(values.shape[1], self.hidden_dim)
        path = []
        for row, decay, is_step in zip(inputs, decays, is_observed, strict=True):
            decayed = state * decay
            at_row = torch.where(is_step, self.cell(row, decayed), decayed)
            state = torch.where(is_step, at_row, state)
            path.append(at_row)
        return state, torch.stack(path)

    def fill_missing(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Replaces missing values (T, N, C) by the last ones, decayed, or by 0 without any."""
        last = _find_last(mask)
        row = last.clamp(min=0)
        row_times = times.unsqueeze(-1).expand(mask.shape)
        age = (row_times - row_times.gather(0, row)).to(values.dtype)
        filled = values.gather(0, row) * self.value_decay(age)
        # Not by arithmetic with the mask: a value outside it may be of any size.
        return torch.where(mask, values, torch.where(last >= 0, filled, 0.0))


class _Decay(nn.Module):
    """Factors exp(-max(0, rate * age + offset)): what is left of each entry at some age.

    They begin at exp(-age), in units of the span of the training series.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.ones(size))
        self.offsets = nn.Parameter(torch.zeros(size))

    def forward(self, age: Tensor) -> Tensor:
        """Maps ages (..., size) or (..., 1) to factors (..., size) between 0 and 1."""
        return torch.exp(-F.relu(torch.addcmul(self.offsets, age, self.rates)))


def _find_last(observed: Tensor) -> Tensor:
    """Returns the last observed row up to each row of (T, ...), -1 if there is none."""
    row = torch.arange(len(observed), device=observed.device)
    row = row.view(-1, *[1] * (observed.ndim - 1))
    return torch.where(observed, row, -1).cummax(0).values


def _compute_gaps(times: Tensor, observed: Tensor) -> Tensor:
    """Returns (T, N, 1) the time since the last earlier row of (T, N, 1) with an observation.

    Before the first observation it is 0; the state is 0 there and has nothing to decay.
    """
    times = times.unsqueeze(-1)
    earlier = _find_last(observed).roll(1, 0)
    earlier[0] = -1
    gaps = times - times.gather(0, earlier.clamp(min=0))
    return torch.where(earlier >= 0, gaps, 0.0)
