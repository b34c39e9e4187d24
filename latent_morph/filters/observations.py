"""Observations: what the mask alone says of a series, when and how often was measured."""

import torch
from torch import Tensor, nn

from latent_morph.filters.interpolant import measure_times


class Observations(nn.Module):
    """Counts of observations, the age of the last one, and counts that decay with their age.

    A decayed count is the state of a mode without rotation that jumps by 1 at each observation.

    Args:
        n_channels: C.
        n_rates: P, of the decayed counts in each direction of time.
    """

    rates: Tensor

    def __init__(self, n_channels: int, n_rates: int = 3) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.register_buffer("rates", torch.ones(n_rates, dtype=torch.float32))

    def forward(self, times: Tensor, mask: Tensor, rows: Tensor) -> Tensor:
        """Maps (N, T), (N, T, C) and the rows that count (N, T) to (N, 2 + C * (2 + 2 * P))."""
        elapsed, end = measure_times(times, rows)
        times = elapsed.to(self.rates.dtype)
        span = end.to(times).unsqueeze(1)
        count = mask.sum(1).to(times)
        last = torch.where(mask, times.unsqueeze(-1), 0.0).amax(1)
        counts = [count]
        for age in (span - times, times):
            decay = (-self.rates * age.unsqueeze(-1)).exp()  # (N, T, P)
            counts.append(torch.einsum("ntp,ntc->npc", decay, mask.to(times)).flatten(1))
        n_rows = mask.any(-1).sum(1, keepdim=True).to(times)
        return torch.cat([n_rows.log1p(), span, span - last, torch.cat(counts, 1).log1p()], dim=1)

    def names(self) -> list[str]:
        """Returns the names of the features."""
        channels = range(self.n_channels)
        return [
            "number of rows",
            "span",
            *(f"x{c} age of the last observation" for c in channels),
            *(f"x{c} count" for c in channels),
            *(
                f"x{c} {direction} decayed count {rate}"
                for direction in ("forward", "backward")
                for rate in range(len(self.rates))
                for c in channels
            ),
        ]
