"""GRUODEEncoder: a GRU update at every observation, any flow between them."""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.flows import Flow, FlowRecipe
from latent_morph.nn import mlp


@final
class GRUODEEncoder(Encoder):
    """Sweeps over a series backwards in time, and forwards too unless told otherwise.

    Each sweep keeps a hidden state that flows between rows for as long as they are apart and is
    updated by a GRU, from values and mask, at rows where something was observed. The
    posterior over z0 is read off the states after each sweep's last observation, the backward one
    carried on to time 0; the layout of Rubanova et al. (2019), whose sweep is backwards only.

    Args:
        n_channels: C.
        latent_dim: D.
        recipe: Builds the flow of the hidden state, from its size.
        hidden_dim: Size of the hidden state of one sweep.
        bidirectional: Sweep forwards as well.
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
        seen = mask.to(values.dtype)
        rows = torch.cat([values * seen, seen], dim=-1).transpose(0, 1)
        is_observed = mask.any(-1)
        observed = is_observed.to(rows.dtype).t().unsqueeze(-1)
        gaps = times.diff(dim=1).to(rows).t()

        # Backward, row k is reached from row k + 1; after the first row time runs on to 0.
        nothing = observed.new_zeros(1, len(values))
        ends, states = [], []
        last, path = self.backward_sweep(
            rows.flip(0), observed.flip(0), torch.cat([nothing, gaps.flip(0)])
        )
        lead = _first_observed(times, is_observed).abs().to(rows)
        ends.append(self.backward_sweep.drift(last, lead))
        states.append(path.flip(0))
        if self.forward_sweep is not None:
            last, path = self.forward_sweep(rows, observed, torch.cat([nothing, gaps]))
            ends.append(last)
            states.append(path)
        mean, spread = self.posterior(torch.cat(ends, dim=-1)).chunk(2, dim=-1)
        return Encoding(mean, F.softplus(spread) + 1e-4, torch.cat(states, dim=-1).transpose(0, 1))


class _Sweep(nn.Module):
    """One pass over the rows: flow for the gap, then a GRU update where something was observed."""

    def __init__(self, n_inputs: int, hidden_dim: int, flow: Flow) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        self.flow = flow
        self.from_input = nn.Linear(n_inputs, 3 * hidden_dim)
        self.from_state = nn.Linear(hidden_dim, 3 * hidden_dim)

    def forward(self, rows: Tensor, observed: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
        """Sweeps over all rows in the order given.

        Args:
            rows: (T, N, I).
            observed: (T, N, 1), 0 or 1.
            gaps: (T, N) the time from the row before.

        Returns:
            (N, H) the state after the last observation and (T, N, H) the state at every row. A
            sweep knows nothing before its first observation and learns nothing after its last:
            rows there, which queries may add, must not move what comes back.
        """
        state = rows.new_zeros(rows.shape[1], self.hidden_dim)
        begun = observed.squeeze(-1).cummax(0).values
        gaps = gaps * F.pad(begun[:-1], (0, 0, 1, 0))
        path = []
        drift = self.flow.stepper(gaps)
        inputs = self.from_input(rows).split([2 * self.hidden_dim, self.hidden_dim], dim=-1)
        for k, (gates, fresh, seen) in enumerate(zip(*inputs, observed, strict=True)):
            state = drift(k, state)
            state = state + seen * self._change(gates, fresh, state)
            path.append(state)
        states = torch.stack(path)
        last = len(rows) - 1 - observed.flip(0).argmax(0)
        return states.take_along_dim(last.unsqueeze(0), 0).squeeze(0), states

    def drift(self, state: Tensor, gap: Tensor) -> Tensor:
        """Flows each state (N, H) for its own time (N,)."""
        return self.flow(state, gap.unsqueeze(-1)).squeeze(-2)

    def _change(self, gates: Tensor, fresh: Tensor, state: Tensor) -> Tensor:
        """What a GRU adds to the state, given what its input adds to the gates (N, 2H), (N, H)."""
        n = self.hidden_dim
        from_gates, from_fresh = self.from_state(state).split([2 * n, n], dim=-1)
        reset, update = torch.sigmoid(gates + from_gates).split(n, dim=-1)
        return update * (torch.tanh(torch.addcmul(fresh, reset, from_fresh)) - state)


def _first_observed(times: Tensor, observed: Tensor) -> Tensor:
    """(N,) the time of the first observation of each series, 0 for a series without any."""
    first = times.gather(1, observed.int().argmax(1, keepdim=True)).squeeze(1)
    return first * observed.any(1)
