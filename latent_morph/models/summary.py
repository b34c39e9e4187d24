"""SeriesSummary: statistics of a whole series, as one vector for a head."""

import torch
from torch import Tensor, nn

from latent_morph.filters import Observations, Statistics
from latent_morph.filters.statistics import KINDS
from latent_morph.nn import dropout
from latent_morph.series import SeriesBatch

# Of decayed counts, per span of the longest training series.
RATES = (2.0, 8.0, 24.0)
# Standardised statistics are clipped there.
LIMIT = 5.0


class SeriesSummary(nn.Module):
    """Maps what one would tabulate of each channel to a few units, with heavy dropout.

    These are the statistics and the counts of a filter bank: the last value and its age, means
    that decay with age, extremes, slope, how often and how long ago was measured. A recurrence
    would have to learn each of them from a few thousand labels.

    Args:
        n_channels: C.
        width: Number of units.
        drop: Fraction of the statistics that is dropped in training.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, n_channels: int, width: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.statistics = Statistics(n_channels)
        self.statistics.fit(1.0)
        self.observations = Observations(n_channels, len(RATES))
        self.observations.rates = torch.tensor(RATES)
        n_features = len(KINDS) * n_channels + len(self.observations.names())
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("factor", torch.ones(n_features))
        self.squeeze = nn.Sequential(nn.Linear(n_features, width), nn.SiLU())

    def fit(self, batch: SeriesBatch, weight: Tensor | None = None) -> None:
        """Learns to standardise the statistics of scaled series, by their weights (N,)."""
        with torch.no_grad():
            features = self.compute(batch.values, batch.times, batch.mask)
        weight = torch.ones(len(features)).to(features) if weight is None else weight.to(features)
        share = weight / weight.sum()
        self.mean = share @ features
        std = (share @ (features - self.mean).square()).sqrt()
        varies = std > 1e-6
        self.factor = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)

    def compute(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Returns the statistics (N, F)."""
        statistics = self.statistics(values, times, mask)
        observations = self.observations(times, mask, mask.any(-1))
        return torch.cat([statistics, observations.to(values.dtype)], dim=1)

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Maps series (N, T, C), (N, T), (N, T, C) to (N, W)."""
        scaled = (self.compute(values, times, mask) - self.mean) * self.factor
        return self.squeeze(
            dropout(scaled.clamp(-LIMIT, LIMIT), self.drop, training=self.training)
        )
