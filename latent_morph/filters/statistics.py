"""Statistics: what a clinician or an engineer would tabulate of each channel of a series."""

import torch
from torch import Tensor, nn

from latent_morph.filters.interpolant import Interpolant, interpolate

# Times in which the weight of a value in a decayed mean falls to 1 / e, as fractions of the span.
DECAYS = (1 / 2, 1 / 8, 1 / 32)
KINDS = (
    "count",
    "mean",
    "std",
    "min",
    "max",
    "first",
    "last",
    "slope",
    "age",
    *(f"decayed mean {i}" for i in range(len(DECAYS))),
)


class Statistics(nn.Module):
    """Statistics of the observed values of each channel, in the units of the data.

    Args:
        n_channels: C.
    """

    decay_times: Tensor
    fill: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        n_features = len(KINDS) * n_channels
        self.register_buffer("decay_times", torch.ones(len(DECAYS), dtype=torch.float64))
        # In place of statistics of a channel that a series does not have.
        self.register_buffer("fill", torch.zeros(n_features, dtype=torch.float64))

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Maps series (N, T, C), (N, T), (N, T, C) to features (N, F)."""
        features = self.compute(values, times, mask, rows)
        return torch.where(features.isnan(), self.fill, features)

    def compute(
        self, values: Tensor, times: Tensor, mask: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Returns the features (N, F), NaN for a channel without an observation."""
        return self.compute_at(interpolate(values, times, mask, rows), values, mask)

    def compute_at(self, interpolant: Interpolant, values: Tensor, mask: Tensor) -> Tensor:
        """Returns the features (N, F) of series whose interpolant is known already."""
        time = interpolant.times.to(values.dtype).unsqueeze(-1)
        end = interpolant.span.to(values.dtype).unsqueeze(1)
        count = mask.sum(1).to(values.dtype)
        total = torch.where(count > 0, count, torch.nan)

        def mean(x: Tensor) -> Tensor:
            return torch.where(mask, x, 0.0).sum(1) / total

        centre, centre_time = mean(values), mean(time)
        deviation, lag = values - centre.unsqueeze(1), time - centre_time.unsqueeze(1)
        time_variance = mean(lag.square())
        # Equal times have a variance of rounding errors.
        rounding = 100 * torch.finfo(time.dtype).eps * end
        has_slope = time_variance > rounding.square()
        slope = torch.where(
            has_slope, mean(lag * deviation) / torch.where(has_slope, time_variance, 1.0), 0.0
        )
        known = count > 0
        least = torch.where(mask, values, torch.inf).amin(1)
        greatest = torch.where(mask, values, -torch.inf).amax(1)
        latest = torch.where(mask, time, -torch.inf).amax(1)
        statistics = [
            mean(deviation.square()).sqrt(),
            least,
            greatest,
            interpolant.values[:, 0],
            interpolant.values[:, -1],
            slope,
            end - latest,
        ]
        for decay_time in self.decay_times:
            # Relative to the latest observation, so that not all weights vanish.
            age = latest.unsqueeze(1) - time
            weight = torch.where(mask, (-age.clamp(min=0) / decay_time).exp(), 0.0)
            statistics.append((weight * values).sum(1) / weight.sum(1))
        some = [torch.where(known, x, torch.nan) for x in (centre, *statistics)]
        return torch.cat([count, *some], dim=1)

    def fit(self, span: float) -> None:
        """Sets the decay times by the longest span of training series."""
        self.decay_times = torch.tensor(DECAYS).to(self.decay_times) * span

    def names(self) -> list[str]:
        """Returns the names of the features."""
        n_channels = len(self.fill) // len(KINDS)
        return [f"x{channel} {kind}" for kind in KINDS for channel in range(n_channels)]
