"""SeriesScaler: puts values and times of a batch on common scales learned from training cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latent_morph.checks import check_choice
from latent_morph.series.batch import SeriesBatch

SCALES = ("standard", "shared", "log", "none")
# Of "log": the smallest part of a channel's values, which is no longer told from zero.
_SMALL = 0.01


class SeriesScaler:
    """Standardises each channel over its observed values and measures time in spans.

    Nothing about a batch being transformed matters except, for `origin="case"`, where each of its
    cases starts.

    Args:
        values: "standard" subtracts the mean and divides by the standard deviation of each
            channel; "shared" divides by one number for all channels, so that angles and the ratios
            of lengths stay; "log" first replaces each value by its signed logarithm, so that a
            channel's small values count as much as its large ones; "none" leaves values alone.
        origin: "case" lets every case start at time 0. "absolute" counts from the earliest time
            seen in `fit`, for data in which it matters *when* a series starts.

    Attributes:
        mean_: (C,) float64, 0 for a channel never observed.
        scale_: (C,) float64, 1 for a channel constant or never observed.
        threshold_: (C,) float64, of "log": values well above it are seen by their logarithm, those
            below it linearly; asinh(value / threshold) is both. None otherwise.
        time_scale_: The longest time from the origin to the end of a case, or 1.0 if that is 0.
        start_: The origin of "absolute" times; 0.0 for "case".
    """

    mean_: Tensor
    scale_: Tensor
    threshold_: Tensor | None
    time_scale_: float
    start_: float

    def __init__(self, values: str = "standard", origin: str = "case") -> None:
        self.values = check_choice("values", values, SCALES)
        self.origin = check_choice("origin", origin, ("case", "absolute"))

    def fit(
        self, batch: SeriesBatch, *, center: Tensor | None = None, weight: Tensor | None = None
    ) -> SeriesScaler:
        """Learns the scales from (N, T, C); give it training cases only.

        Args:
            batch: The cases.
            center: (C,) the point that is to become the origin, in place of the mean.
            weight: (N,) positive: how often each case counts; once by default.
        """
        if not isinstance(batch, SeriesBatch):
            raise TypeError(f"batch is of type {type(batch).__name__}; wanted a SeriesBatch")
        if batch.n_cases == 0:
            raise ValueError("batch has no cases; wanted at least one")
        if weight is None:
            weight = torch.ones(batch.n_cases, dtype=torch.float64)
        elif weight.shape != (batch.n_cases,) or not bool((weight > 0).all()):
            raise ValueError(f"weight must be {batch.n_cases} positive numbers, one a case")
        share = weight.to(batch.device, torch.float64).view(-1, 1, 1).expand(batch.shape)
        self.threshold_ = (
            _small_values(batch.values, batch.mask, share) if self.values == "log" else None
        )
        if self.values == "none":
            self.mean_ = torch.zeros(batch.n_channels, dtype=torch.float64)
            self.scale_ = torch.ones(batch.n_channels, dtype=torch.float64)
        else:
            bent = self._bent(batch.values.double())
            self.mean_, self.scale_ = _moments(bent, batch.mask, share)
        if self.values == "shared":
            self.scale_ = self.scale_.square().mean().sqrt().expand(batch.n_channels).clone()
        if center is not None:
            self.mean_ = self._bent(center.double())
        first, last = batch.times[:, 0], batch.times[:, -1]  # padding repeats the last real time
        self.start_ = 0.0 if self.origin == "case" else float(first.min())
        span = last - (first if self.origin == "case" else self.start_)
        self.time_scale_ = float(span.max()) or 1.0
        return self

    def transform(self, batch: SeriesBatch) -> SeriesBatch:
        """Scales (N, T, C) to the same shape, with 0 wherever `mask` is False."""
        self._check_channels(batch.n_channels)
        return SeriesBatch(
            values=self.transform_values(batch.values).masked_fill(~batch.mask, 0.0),
            times=self.scale_times(batch.times, batch.times[:, 0]),
            mask=batch.mask,
            lengths=batch.lengths,
        )

    def transform_values(self, values: Tensor) -> Tensor:
        """Scales values (..., C)."""
        self._check_channels(values.shape[-1])
        shifted = self._bent(values) - self._like(self.mean_, values)
        return shifted / self._like(self.scale_, values)

    def inverse_values(self, values: Tensor) -> Tensor:
        """Takes scaled values (..., C) back to the units of the data."""
        self._check_channels(values.shape[-1])
        bent = values * self._like(self.scale_, values) + self._like(self.mean_, values)
        if self.threshold_ is None:
            return bent
        return bent.sinh() * self._like(self.threshold_, values)

    def inverse_velocity(self, values: Tensor, velocity: Tensor) -> Tensor:
        """Takes velocities (..., C) at scaled `values` (..., C) back to the units of the data."""
        self._check_channels(values.shape[-1])
        speed = velocity * self._like(self.scale_, values) / self.time_scale_
        if self.threshold_ is None:
            return speed
        bent = values * self._like(self.scale_, values) + self._like(self.mean_, values)
        return speed * bent.cosh() * self._like(self.threshold_, values)

    def inverse_scale(self, deviation: Tensor) -> Tensor:
        """Takes standard deviations (..., C) of scaled values back to the units of the data."""
        self._check_channels(deviation.shape[-1])
        if self.threshold_ is not None:
            raise ValueError(
                "a deviation of logarithms has no fixed size in the units of the data"
            )
        return deviation * self._like(self.scale_, deviation)

    def scale_times(self, times: Tensor, starts: Tensor) -> Tensor:
        """Scales raw times as `transform` does.

        Args:
            times: (Q,) shared by all cases or (N, Q).
            starts: (N,) raw time of the first row of each case; unused for "absolute".

        Returns:
            (N, Q) float64, or (Q,) for shared times on the "absolute" scale.
        """
        self._check_fitted()
        times = torch.as_tensor(times).to(torch.float64)
        if self.origin == "absolute":
            return (times - self.start_) / self.time_scale_
        starts = torch.as_tensor(starts).to(times)
        if times.ndim == 2 and len(times) != len(starts):
            raise ValueError(f"times has {len(times)} rows; wanted {len(starts)}, as starts has")
        return (times - starts.unsqueeze(-1)) / self.time_scale_

    def state(self) -> dict[str, Any]:
        """Everything needed by `from_state`, in plain numbers, strings and lists."""
        self._check_fitted()
        return {
            "values": self.values,
            "origin": self.origin,
            "mean": self.mean_.tolist(),
            "scale": self.scale_.tolist(),
            "time_scale": self.time_scale_,
            "start": self.start_,
            "threshold": None if self.threshold_ is None else self.threshold_.tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> SeriesScaler:
        """Rebuilds a fitted scaler from what `state` gave."""
        absent = {"values", "origin", "mean", "scale", "time_scale", "start"} - set(state)
        if absent:
            raise ValueError(f"state lacks {sorted(absent)}; wanted what SeriesScaler.state gives")
        scaler = cls(state["values"], state["origin"])
        scaler.mean_ = torch.tensor(state["mean"], dtype=torch.float64)
        scaler.scale_ = torch.tensor(state["scale"], dtype=torch.float64)
        scaler.time_scale_ = float(state["time_scale"])
        scaler.start_ = float(state["start"])
        small = state.get("threshold")  # files written before there was one have none
        scaler.threshold_ = None if small is None else torch.tensor(small, dtype=torch.float64)
        return scaler

    def _bent(self, values: Tensor) -> Tensor:
        """The signed logarithm, or the values themselves where none is wanted."""
        if self.threshold_ is None:
            return values
        return (values / self._like(self.threshold_, values)).asinh()

    @staticmethod
    def _like(constant: Tensor, values: Tensor) -> Tensor:
        return constant.to(device=values.device, dtype=values.dtype)

    def _check_fitted(self) -> None:
        if not hasattr(self, "time_scale_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("this SeriesScaler is not fitted; call fit first")

    def _check_channels(self, n_channels: int) -> None:
        self._check_fitted()
        if n_channels != len(self.mean_):
            raise ValueError(f"got {n_channels} channels; wanted {len(self.mean_)}, as in fit")


def _moments(values: Tensor, mask: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """(N, T, C) thrice -> mean and standard deviation (C,) over what is observed, in float64."""
    n_channels = values.shape[-1]
    channel = torch.arange(n_channels, device=values.device).expand_as(mask)[mask]
    seen, share = values[mask].double(), share[mask]
    count = torch.bincount(channel, weights=share, minlength=n_channels)
    count = torch.where(count > 0, count, 1.0)
    mean = torch.bincount(channel, weights=share * seen, minlength=n_channels) / count
    squares = share * (seen - mean[channel]).square()
    scale = (torch.bincount(channel, weights=squares, minlength=n_channels) / count).sqrt()
    constant = scale <= 1e-12 * mean.abs()  # what rounding of the mean leaves of a constant
    return mean.cpu(), scale.masked_fill(constant, 1.0).cpu()


def _small_values(values: Tensor, mask: Tensor, share: Tensor) -> Tensor:
    """(N, T, C) thrice -> (C,) the low quantile of the absolute values that are not zero."""
    small = []
    for channel in range(values.shape[-1]):
        there = mask[..., channel] & (values[..., channel] != 0)
        seen, order = values[..., channel][there].double().abs().sort()
        below = share[..., channel][there][order].cumsum(0)
        above = seen[below > _SMALL * below[-1]] if len(seen) else seen
        small.append(float(above[0]) if len(above) else 1.0)
    return torch.tensor(small, dtype=torch.float64)
