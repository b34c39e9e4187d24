"""PointBank: features of every row of a series, from filters in both directions of time."""

from typing import Any, Self

import torch
from torch import Tensor, nn

from latent_morph.filters.bank import measure_gaps, spread_rates
from latent_morph.filters.interpolant import interpolate
from latent_morph.filters.statistics import KINDS, Statistics
from latent_morph.recurrence import linear_recurrence

N_RATES = 4
# Statistics of the whole series that every row is given.
SERIES_KINDS = ("mean", "std", "min", "max", "first", "last")
# Observations that the mean of the series counts for in a decayed mean.
_PRIOR_COUNT = 0.1


class PointBank(nn.Module):
    """Features of each row: values, decayed means of past and future, statistics of the series.

    A decayed mean is the state of two modes without rotation, one that jumps by the value at each
    observation and one that jumps by 1: past values forwards, future values backwards, or both.

    Args:
        n_channels: C.
    """

    rates: Tensor

    def __init__(self, n_channels: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        self.register_buffer("rates", torch.ones(N_RATES, dtype=torch.float32))
        self.statistics = Statistics(n_channels).float()

    @classmethod
    def fit(cls, values: Tensor, times: Tensor, mask: Tensor) -> Self:
        """Builds a bank with the time scales of training series."""
        bank = cls(values.shape[-1])
        gap, span = measure_gaps(times, mask.any(-1))
        bank.rates = spread_rates(N_RATES, gap, span).to(bank.rates.dtype)
        bank.statistics.fit(span)
        return bank

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        """Maps (N, T, C), (N, T), (N, T, C) to features (N, T, F)."""
        interpolant = interpolate(values, times, mask)
        statistics = self.statistics.compute_at(interpolant, values, mask)
        statistics = torch.where(statistics.isnan(), self.statistics.fill, statistics)
        statistics = statistics.unflatten(1, (len(KINDS), -1))
        index = [KINDS.index(kind) for kind in SERIES_KINDS]
        n_times = values.shape[1]
        whole = statistics[:, index].flatten(1).unsqueeze(1).expand(-1, n_times, -1)
        centre = statistics[:, KINDS.index("mean")].unsqueeze(1)  # (N, 1, C)
        # What sums are of: deviations and ones, (N, T, C, 2).
        terms = torch.stack([torch.where(mask, values - centre, 0.0), mask.to(values.dtype)], -1)
        past, future = self._decay(terms, interpolant.times)
        means = []
        for total in (past, future, past + future - terms.unsqueeze(3)):
            deviation, count = total.unbind(-1)  # (N, T, C, K)
            mean = centre.unsqueeze(-1) + deviation / (count + _PRIOR_COUNT)
            means.append(mean.flatten(2))
        return torch.cat([interpolant.values, *means, whole], dim=-1)

    def _decay(self, terms: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
        """Returns decayed sums (N, T, C, K, 2) of the past and of the future, own row included.

        Modes without rotation keep the real and the imaginary part apart, so that one mode sums
        both terms (N, T, C, 2).
        """
        gaps = times - torch.cat([times[:, :1], times], dim=1)[:, : times.shape[1]]
        rates = self.rates.repeat(2, self.n_channels)
        inputs = terms.transpose(0, 1).repeat_interleave(len(self.rates), dim=2)  # (T, N, C K, 2)
        states = linear_recurrence(
            rates,
            torch.zeros_like(rates),
            gaps.t().to(terms),
            torch.stack([inputs, inputs], dim=2),
        )
        past, future = states.transpose(0, 1).unbind(2)
        shape = self.n_channels, len(self.rates)
        return past.unflatten(2, shape), future.unflatten(2, shape)

    def names(self) -> list[str]:
        """Returns the names of the features."""
        channels = range(self.n_channels)
        return [
            *(f"x{c} value" for c in channels),
            *(
                f"x{c} decayed mean {rate} of {side}"
                for side in ("past", "future", "both")
                for c in channels
                for rate in range(N_RATES)
            ),
            *(f"x{c} {kind}" for kind in SERIES_KINDS for c in channels),
        ]

    def numbers_per_row(self) -> int:
        """Estimates the largest number of intermediate numbers per row of a series."""
        return 40 * N_RATES * self.n_channels


class RandomLayer(nn.Module):
    """Features and random rectified units of a few of them each, all standardised.

    Args:
        n_features: F.
        n_units: U.
    """

    mean: Tensor
    factor: Tensor
    weight: Tensor
    bias: Tensor
    unit_mean: Tensor
    unit_factor: Tensor

    # Inputs of a unit; with all of them, units would resemble each other.
    N_INPUTS = 8
    # Standardised features and units are clipped there.
    FEATURE_LIMIT, UNIT_LIMIT = 5.0, 8.0

    def __init__(self, n_features: int, n_units: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_features, dtype=torch.float32))
        self.register_buffer("factor", torch.ones(n_features, dtype=torch.float32))
        self.register_buffer("weight", torch.zeros(n_features, n_units, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(n_units, dtype=torch.float32))
        self.register_buffer("unit_mean", torch.zeros(n_units, dtype=torch.float32))
        self.register_buffer("unit_factor", torch.ones(n_units, dtype=torch.float32))

    @classmethod
    def fit(cls, features: Tensor, n_units: int, generator: torch.Generator) -> Self:
        """Draws units and standardises them on features (R, F)."""
        options: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
        n_features = features.shape[1]
        n_inputs = min(cls.N_INPUTS, n_features)
        layer = cls(n_features, n_units)
        layer.mean, layer.factor = _standardisation(features)
        chosen = torch.rand(n_units, n_features, **options).argsort(1)[:, :n_inputs]
        weights = torch.randn(n_units, n_inputs, **options) / n_inputs**0.5
        layer.weight = layer.weight.t().scatter(1, chosen, weights).t()
        layer.weight = layer.weight.contiguous()
        layer.bias = 0.5 * torch.randn(n_units, **options)
        _, units = layer._activate(features)
        layer.unit_mean, layer.unit_factor = _standardisation(units)
        return layer

    def forward(self, features: Tensor) -> Tensor:
        """Maps features (..., F) to (..., F + U)."""
        scaled, units = self._activate(features)
        units = (units - self.unit_mean) * self.unit_factor
        return torch.cat([scaled, units.clamp(-self.UNIT_LIMIT, self.UNIT_LIMIT)], dim=-1)

    def _activate(self, features: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (features - self.mean) * self.factor
        scaled = scaled.clamp(-self.FEATURE_LIMIT, self.FEATURE_LIMIT)
        return scaled, (scaled @ self.weight + self.bias).relu()


def _standardisation(features: Tensor) -> tuple[Tensor, Tensor]:
    """Returns means and factors (F,), 0 for constant features."""
    mean = features.mean(0)
    std = (features - mean).square().mean(0).sqrt()  # `std` warns if there are no features
    varies = std > 1e-5 * mean.abs() + 1e-9
    return mean, torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
