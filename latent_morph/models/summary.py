"""Summaries for a head: statistics of a whole series, or filters at each of its rows."""

import abc

import torch
from torch import Tensor, nn

from latent_morph.filters import Observations, PointBank, Statistics
from latent_morph.filters.statistics import KINDS
from latent_morph.nn import dropout
from latent_morph.series import SeriesBatch

# Of decayed counts, per span of the longest training series.
RATES = (2.0, 8.0, 24.0)
# Of decayed means at rows, per span.
POINT_RATES = (2.0, 6.0, 18.0, 54.0)
# Standardised statistics are clipped there.
LIMIT = 5.0
# Series whose features are computed at a time.
PART = 256


class Summary(nn.Module, abc.ABC):
    """Maps features that need no training to a few units, with dropout.

    Args:
        n_features: F.
        width: Number of units.
        drop: Fraction of the features that is dropped in training.
    """

    mean: Tensor
    factor: Tensor

    def __init__(self, n_features: int, width: int, drop: float) -> None:
        super().__init__()
        self.drop = drop
        self.register_buffer("mean", torch.zeros(n_features))
        self.register_buffer("factor", torch.ones(n_features))
        self.squeeze = nn.Sequential(nn.Linear(n_features, width), nn.SiLU())

    @abc.abstractmethod
    def compute(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Returns the features (N, F) of series, or (N, T, F) of their rows."""

    def fit(self, batch: SeriesBatch, weight: Tensor | None = None) -> None:
        """Learns to standardise the features of scaled series, by their weights (N,)."""
        weight = torch.ones(len(batch)).to(batch.values) if weight is None else weight
        # In parts, since rows have many features.
        parts = [slice(start, start + PART) for start in range(0, len(batch), PART)]
        total = torch.zeros((), dtype=torch.float64)
        sums = torch.zeros(2, *self.mean.shape, dtype=torch.float64)
        for part in parts:
            features, share = self._compute_rows(batch[part].trim(), weight[part])
            total = total + share.sum()
            sums = sums + torch.stack([share @ features, share @ features.square()])
        mean, square = sums / total
        std = (square - mean.square()).clamp(min=0).sqrt()
        varies = std > 1e-5 * mean.abs() + 1e-6
        factor = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
        self.mean, self.factor = mean.to(self.mean), factor.to(self.factor)

    def _compute_rows(self, batch: SeriesBatch, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Returns features (R, F) and their weights (R,), without the padding, float64."""
        with torch.no_grad():
            features = self.compute(batch.values, batch.times, batch.mask)
        if features.ndim == 3:
            features = features[batch.present]
            weight = weight.repeat_interleave(batch.lengths)
        return features.double().cpu(), weight.double().cpu()

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Maps series (N, T, C), (N, T), (N, T, C) to (N, W), or (N, T, W) for their rows."""
        with torch.no_grad():
            scaled = (self.compute(values, times, mask) - self.mean) * self.factor
            scaled = scaled.clamp(-LIMIT, LIMIT)
        return self.squeeze(dropout(scaled, self.drop, training=self.training))


class SeriesSummary(Summary):
    """Maps what one would tabulate of each channel to a few units.

    These are the statistics and the counts of a filter bank: the last value and its age, means
    that decay with age, extremes, slope, how often and how long ago was measured. A recurrence
    would have to learn each of them from a few thousand labels.

    Args:
        n_channels: C.
        width: Number of units.
        drop: Fraction of the statistics that is dropped in training.
    """

    def __init__(self, n_channels: int, width: int, drop: float) -> None:
        statistics, observations = Statistics(n_channels), Observations(n_channels, len(RATES))
        n_features = len(KINDS) * n_channels + len(observations.names())
        super().__init__(n_features, width, drop)
        statistics.fit(1.0)
        observations.rates = torch.tensor(RATES)
        self.statistics, self.observations = statistics, observations

    def compute(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Returns the statistics (N, F)."""
        statistics = self.statistics(values, times, mask)
        observations = self.observations(times, mask, mask.any(-1))
        return torch.cat([statistics, observations.to(values.dtype)], dim=1)


class PointSummary(Summary):
    """Maps what filters say at each row, of past and future, to a few units.

    These are the features of `PointBank`: each channel's value, its means that decay with age in
    both directions of time, and statistics of the series.

    Args:
        n_channels: C.
        width: Number of units.
        drop: Fraction of the features that is dropped in training.
    """

    def __init__(self, n_channels: int, width: int, drop: float) -> None:
        bank = PointBank(n_channels)
        super().__init__(len(bank.names()), width, drop)
        bank.rates = torch.tensor(POINT_RATES)
        bank.statistics.fit(1.0)
        self.bank = bank

    def compute(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Returns the features of all rows (N, T, F)."""
        return self.bank(values, times, mask)
