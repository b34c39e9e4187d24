"""SeriesScaler: scales values and times by statistics of the training cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latent_morph.checks import check_choice
from latent_morph.series.batch import SeriesBatch

SCALES = ("standard", "shared", "log", "robust", "none")
# Of "log": the quantile of a channel's absolute values below which the transform is linear.
_THRESHOLD_QUANTILE = 0.01
# Of "robust": values are nearly unchanged up to so many scales, and logarithmic beyond.
_ROBUST_RANGE = 3.0
_NORMAL_IQR = 1.349  # interquartile range of a standard normal distribution


class SeriesScaler:
    """Standardises each channel over its observed values, and scales times by the longest span.

    A channel that was never observed in `fit` is taken as missing later, and one that was constant
    stays so: nothing is known of what other values mean.

    `transform` uses nothing of the batch itself except, for `origin="case"`, the first time of
    each case. The methods for tensors are plain arithmetic, so `torch.export` can trace them.

    Args:
        values: "standard" subtracts the mean and divides by the standard deviation of each
            channel; "shared" divides all channels by the same number, which preserves angles and
            ratios of lengths; "log" first takes the signed logarithm of each value, so that small
            values of a channel count as much as large ones; "robust" subtracts the median, divides
            by the interquartile range (of a normal distribution: its standard deviation) and
            compresses what lies more than about three of these away, so that a few absurd values
            neither set the scale nor dominate; "none" leaves values unchanged.
        origin: "case" lets every case start at time 0. "absolute" counts from the earliest time
            in `fit`, for data in which it matters *when* a series starts.

    Attributes:
        mean_: (C,) float64, the median for "robust"; 0 for a channel never observed.
        scale_: (C,) float64, 1 for a channel that is constant or never observed.
        threshold_: (C,) float64 for "log", else None. asinh(value / threshold) is logarithmic far
            above the threshold and linear below it.
        time_scale_: The longest time from the origin to the end of a case, or 1.0 if that is 0.
        start_: The origin of "absolute" times; 0.0 for "case".
        seen_: (C,) bool, channels that were observed at all.
        varies_: (C,) bool, channels of at least two different values.
    """

    mean_: Tensor
    scale_: Tensor
    threshold_: Tensor | None
    time_scale_: float
    start_: float
    seen_: Tensor
    varies_: Tensor

    def __init__(self, values: str = "standard", origin: str = "case") -> None:
        self.values = check_choice("values", values, SCALES)
        self.origin = check_choice("origin", origin, ("case", "absolute"))

    def fit(
        self, batch: SeriesBatch, *, center: Tensor | None = None, weight: Tensor | None = None
    ) -> SeriesScaler:
        """Learns the scales from training cases.

        Args:
            batch: (N, T, C).
            center: (C,) the point to map to the origin, in place of the mean.
            weight: (N,) positive weight of each case; 1 by default.
        """
        if not isinstance(batch, SeriesBatch):
            raise TypeError(f"batch must be a SeriesBatch, got {type(batch).__name__}")
        if batch.n_cases == 0:
            raise ValueError("batch must have at least one case, got none")
        if weight is None:
            weight = torch.ones(batch.n_cases)
        elif weight.shape != (batch.n_cases,) or not bool((weight > 0).all()):
            raise ValueError(
                f"weight must be {batch.n_cases} positive numbers, one per case, got {weight}"
            )
        weights = weight.to(batch.device, torch.float64).view(-1, 1, 1).expand(batch.shape)
        values = batch.values.double()
        self.seen_ = batch.mask.flatten(0, 1).any(0).cpu()
        self.varies_ = _varies(values, batch.mask).cpu()
        self.threshold_ = (
            _low_quantile(values, batch.mask, weights) if self.values == "log" else None
        )
        if self.values == "none":
            self.mean_ = torch.zeros(batch.n_channels, dtype=torch.float64)
            self.scale_ = torch.ones(batch.n_channels, dtype=torch.float64)
        else:
            self.mean_, self.scale_ = _mean_and_std(
                self._log_transform(values), batch.mask, weights
            )
        if self.values == "robust":
            self.mean_, self.scale_ = _median_and_iqr(values, batch.mask, weights, self.scale_)
        if self.values == "shared":
            self.scale_ = self.scale_.square().mean().sqrt().expand(batch.n_channels).clone()
        if center is not None:
            self.mean_ = self._log_transform(center.double())
        first, last = batch.times[:, 0], batch.times[:, -1]  # padding repeats the last real time
        self.start_ = 0.0 if self.origin == "case" else float(first.min())
        span = last - (first if self.origin == "case" else self.start_)
        self.time_scale_ = float(span.max()) or 1.0
        return self

    def transform(self, batch: SeriesBatch) -> SeriesBatch:
        """Scales (N, T, C) to the same shape, with 0 wherever `mask` is False; facts stay."""
        self._check_channels("batch", batch.n_channels)
        values, mask = self.transform_observed(batch.values, batch.mask)
        return SeriesBatch(
            values=values,
            times=self.scale_times(batch.times, batch.times[:, 0]),
            mask=mask,
            lengths=batch.lengths,
            static=batch.static,
        )

    def transform_observed(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Scales values (N, T, C) where the mask is True; returns them and what counts."""
        scaled = self.transform_values(values)
        if self.values == "none":
            return torch.where(mask, scaled, 0.0), mask
        mask = mask & self.seen_.to(mask.device)
        return torch.where(mask & self.varies_.to(mask.device), scaled, 0.0), mask

    def transform_values(self, values: Tensor) -> Tensor:
        """Scales values (..., C)."""
        self._check_channels("values", values.shape[-1])
        centred = self._log_transform(values) - self.mean_.to(values)
        scaled = centred / self.scale_.to(values)
        return _compress(scaled) if self.values == "robust" else scaled

    def inverse_values(self, values: Tensor) -> Tensor:
        """Converts scaled values (..., C) to the units of the data."""
        self._check_channels("values", values.shape[-1])
        if self.values == "robust":
            values = (values / _ROBUST_RANGE).sinh() * _ROBUST_RANGE
        unscaled = values * self.scale_.to(values) + self.mean_.to(values)
        if self.threshold_ is None:
            return unscaled
        return unscaled.sinh() * self.threshold_.to(values)

    def inverse_velocity(self, values: Tensor, velocity: Tensor) -> Tensor:
        """Converts velocities (..., C) at scaled `values` (..., C) to the units of the data."""
        self._check_channels("velocity", velocity.shape[-1])
        return self.inverse_deviation(values, velocity) / _as_tensor(self.time_scale_).to(values)

    def inverse_deviation(self, values: Tensor, deviation: Tensor) -> Tensor:
        """Converts small deviations (..., C) from scaled `values` (..., C) to units of the data.

        On a curved scale they are multiplied by its slope at these values.
        """
        self._check_channels("values", values.shape[-1])
        scale = self.scale_.to(values)
        if self.values == "robust":
            return deviation * scale * (values / _ROBUST_RANGE).cosh()
        if self.threshold_ is None:
            return deviation * scale
        slope = (values * scale + self.mean_.to(values)).cosh() * self.threshold_.to(values)
        return deviation * scale * slope

    def scale_times(self, times: Tensor, starts: Tensor) -> Tensor:
        """Scales raw times as `transform` does.

        Args:
            times: (Q,) shared by all cases, or (N, Q).
            starts: (N,) raw time of the first row of each case; unused for "absolute".

        Returns:
            (N, Q) float64, or (Q,) for shared times on the "absolute" scale.
        """
        self._check_fitted()
        times = torch.as_tensor(times).to(torch.float64)
        time_scale = _as_tensor(self.time_scale_).to(times)
        if self.origin == "absolute":
            return (times - _as_tensor(self.start_).to(times)) / time_scale
        starts = torch.as_tensor(starts).to(times)
        # Not len(), which would fix the number of cases in an exported program.
        if times.ndim == 2 and times.shape[0] != starts.shape[0]:
            raise ValueError(
                f"times must have {starts.shape[0]} rows, one per start, got {times.shape[0]}"
            )
        return (times - starts.unsqueeze(-1)) / time_scale

    def state(self) -> dict[str, Any]:
        """Returns all that `from_state` needs, as plain numbers, strings and lists."""
        self._check_fitted()
        return {
            "values": self.values,
            "origin": self.origin,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "time_scale": self.time_scale_,
            "start": self.start_,
            "threshold": None if self.threshold_ is None else self.threshold_.tolist(),
            "seen": self.seen_.tolist(),
            "varies": self.varies_.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SeriesScaler:
        """Rebuilds a fitted scaler from its `state`."""
        absent = {"values", "origin", "mean", "scale", "time_scale", "start"} - set(state)
        if absent:
            raise ValueError(f"state must have the keys {sorted(absent)}, got {sorted(state)}")
        scaler = cls(state["values"], state["origin"])
        scaler.mean_ = _as_tensor(state["mean"])
        scaler.scale_ = _as_tensor(state["scale"])
        scaler.time_scale_ = float(state["time_scale"])
        scaler.start_ = float(state["start"])
        # Older files lack these keys.
        threshold = state.get("threshold")
        scaler.threshold_ = None if threshold is None else _as_tensor(threshold)
        every = [True] * len(scaler.mean_)
        scaler.seen_ = torch.tensor(state.get("seen", every), dtype=torch.bool)
        scaler.varies_ = torch.tensor(state.get("varies", every), dtype=torch.bool)
        return scaler

    def _log_transform(self, values: Tensor) -> Tensor:
        """Signed logarithm of values (..., C) for "log", else the values themselves."""
        if self.threshold_ is None:
            return values
        return (values / self.threshold_.to(values)).asinh()

    def _check_fitted(self) -> None:
        if not hasattr(self, "time_scale_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("this SeriesScaler is not fitted; call fit first")

    def _check_channels(self, name: str, n_channels: int) -> None:
        self._check_fitted()
        if n_channels != len(self.mean_):
            raise ValueError(f"{name} must have {len(self.mean_)} channels, got {n_channels}")


def _as_tensor(numbers: float | list[float]) -> Tensor:
    """Float64, in exported programs too: ONNX rounds Python floats to single precision."""
    return torch.tensor(numbers, dtype=torch.float64)


def _varies(values: Tensor, mask: Tensor) -> Tensor:
    """Returns (C,) whether a channel (N, T, C) has different observed values."""
    least = torch.where(mask, values, torch.inf).flatten(0, 1).amin(0)
    return (least < torch.where(mask, values, -torch.inf).flatten(0, 1).amax(0)) & least.isfinite()


def _mean_and_std(values: Tensor, mask: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of the observed values; all arguments are (N, T, C)."""
    n_channels = values.shape[-1]
    channel = torch.arange(n_channels, device=values.device).expand_as(mask)[mask]
    observed, weights = values[mask], weights[mask]
    total = torch.bincount(channel, weights=weights, minlength=n_channels)
    total = torch.where(total > 0, total, 1.0)
    mean = torch.bincount(channel, weights=weights * observed, minlength=n_channels) / total
    squares = weights * (observed - mean[channel]).square()
    std = (torch.bincount(channel, weights=squares, minlength=n_channels) / total).sqrt()
    is_constant = std <= 1e-12 * mean.abs()  # rounding of the mean leaves a constant this std
    return mean.cpu(), std.masked_fill(is_constant, 1.0).cpu()


def _compress(scaled: Tensor) -> Tensor:
    return (scaled / _ROBUST_RANGE).asinh() * _ROBUST_RANGE


def _median_and_iqr(
    values: Tensor, mask: Tensor, weights: Tensor, std: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted median and scaled interquartile range (C,) of the observed values.

    A channel of which half the values are equal has `std` (C,) as its scale.
    """
    median, scale = torch.zeros_like(std), std.clone()
    for channel in range(values.shape[-1]):
        observed = mask[..., channel]
        sizes, order = values[..., channel][observed].sort()
        if not len(sizes):
            continue
        cumulative = weights[..., channel][observed][order].cumsum(0)
        levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64, device=sizes.device)
        index = torch.searchsorted(cumulative, levels * cumulative[-1])
        low, median[channel], high = sizes[index.clamp(max=len(sizes) - 1)]
        if high - low > 1e-12 * sizes[index].abs().max():
            scale[channel] = (high - low) / _NORMAL_IQR
    return median, scale


def _low_quantile(values: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Weighted quantile (C,) of the nonzero absolute values, 1 if a channel has none."""
    quantiles = torch.ones(values.shape[-1], dtype=torch.float64)
    for channel in range(values.shape[-1]):
        nonzero = mask[..., channel] & (values[..., channel] != 0)
        sizes, order = values[..., channel][nonzero].abs().sort()
        cumulative = weights[..., channel][nonzero][order].cumsum(0)
        if len(sizes):
            quantiles[channel] = sizes[cumulative > _THRESHOLD_QUANTILE * cumulative[-1]][0]
    return quantiles
