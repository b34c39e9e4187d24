"""GRUODEEncoder: a GRU update at every observation, and a flow between observations."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.encoders.base import Encoder, Encoding, find_first_time
from latent_morph.flows import Flow, FlowRecipe
from latent_morph.nn import mlp


@final
class GRUODEEncoder(Encoder):
    """A recurrent network that runs over a series backward in time and, by default, forward.

    In each direction a hidden state follows a flow between rows and is updated by a GRU, from
    values and mask, at rows with an observation. The posterior over z0 is computed from the states
    after the last observation of each direction; the backward state flows on to time 0 first.
    Rubanova et al. (2019) have the backward direction only.

    Args:
        n_channels: C.
        latent_dim: D.
        recipe: Builds the flow of the hidden state, given its size.
        hidden_dim: Size of the hidden state of one direction.
        bidirectional: Run forward in time as well.
    """

    def __init__(
        self,
        n_channels: int,
        latent_dim: int,
        recipe: FlowRecipe,
        *,
        hidden_dim: int = 64,
        bidirectional: bool = True,
    ) -> None:
        n_sweeps = 2 if bidirectional else 1
        super().__init__(n_channels, latent_dim, n_sweeps * hidden_dim)
        n_inputs = 2 * n_channels  # values and mask
        self.backward_sweep = _Sweep(n_inputs, hidden_dim, recipe(hidden_dim))
        self.forward_sweep = (
            _Sweep(n_inputs, hidden_dim, recipe(hidden_dim)) if bidirectional else None
        )
        self.posterior = mlp(self.state_dim, 2 * latent_dim, width=hidden_dim)

    def _encode(self, values: Tensor, times: Tensor, mask: Tensor) -> Encoding:
        # Time-major, so that each step of a sweep reads contiguous memory.
        mask_values = mask.to(values.dtype)
        rows = torch.cat([values * mask_values, mask_values], dim=-1).transpose(0, 1)
        is_observed = mask.any(-1)
        observed = is_observed.to(rows.dtype).t().unsqueeze(-1)
        gaps = times.diff(dim=1).to(rows).t()

        # Backward, row k follows row k + 1; time 0 follows the first row.
        no_gap = observed.new_zeros(1, len(values))
        ends, states = [], []
        last, path = self.backward_sweep(
            rows.flip(0), observed.flip(0), torch.cat([no_gap, gaps.flip(0)])
        )
        lead_time = find_first_time(times, is_observed).abs().to(rows)
        ends.append(self.backward_sweep.drift(last, lead_time))
        states.append(path.flip(0))
        if self.forward_sweep is not None:
            last, path = self.forward_sweep(rows, observed, torch.cat([no_gap, gaps]))
            ends.append(last)
            states.append(path)
        mean, raw_std = self.posterior(torch.cat(ends, dim=-1)).chunk(2, dim=-1)
        return Encoding(
            mean, F.softplus(raw_std) + 1e-4, torch.cat(states, dim=-1).transpose(0, 1)
        )


class _Sweep(nn.Module):
    """One direction of time: the flow over each gap, then a GRU update at observed rows."""

    def __init__(self, n_inputs: int, hidden_dim: int, flow: Flow) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.flow = flow
        self.from_input = nn.Linear(n_inputs, 3 * hidden_dim)
        self.from_state = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, rows: Tensor, observed: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Runs over all rows in the given order.

        Args:
            rows: (T, N, I).
            observed: (T, N, 1), 0 or 1.
            gaps: (T, N) time since the previous row.

        Returns:
            (N, H) the state after the last observation and (T, N, H) the state at every row.
            Unobserved rows before the first observation or after the last one, which queries may
            add, do not affect the former.
        """
        state = rows.new_zeros(rows.shape[1], self.hidden_dim)
        # The state stays zero until the first observation.
        has_begun = observed.squeeze(-1).cummax(0).values
        gaps = gaps * F.pad(has_begun[:-1], (0, 0, 1, 0))
        path = []
        step = self.flow.stepper(gaps)
        inputs = self.from_input(rows).split([2 * self.hidden_dim, self.hidden_dim], dim=-1)
        for k, (gates, candidate, is_observed) in enumerate(zip(*inputs, observed, strict=True)):
            state = step(k, state)
            state = state + is_observed * self._compute_update(gates, candidate, state)
            path.append(state)
        states = torch.stack(path)
        last = len(rows) - 1 - observed.flip(0).argmax(0)
        return states.take_along_dim(last.unsqueeze(0), 0).squeeze(0), states

    def drift(self, state: Tensor, gap: Tensor) -> Tensor:
        """Moves each state (N, H) by its own elapsed time (N,)."""
        return self.flow(state, gap.unsqueeze(-1)).squeeze(-2)

    def _compute_update(self, gates: Tensor, candidate: Tensor, state: Tensor) -> Tensor:
        """Returns the GRU's change of the state, from its inputs to gates (N, 2H), (N, H)."""
        n = self.hidden_dim
        state_gates, state_candidate = self.from_state(state).split([2 * n, n], dim=-1)
        reset, update = torch.sigmoid(gates + state_gates).split(n, dim=-1)
        return update * (torch.tanh(torch.addcmul(candidate, reset, state_candidate)) - state)
