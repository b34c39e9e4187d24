"""SeriesScaler: puts values and times of a batch on common scales learned from training cases."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from latent_morph.checks import check_choice
from latent_morph.series import SeriesBatch


class SeriesScaler:
    """Standardises each channel over its observed values and measures time in spans.

    Nothing about a batch being transformed matters except, for `origin="case"`, where each of its
    cases starts.

    Args:
        values: "standard" subtracts the mean and divides by the standard deviation of each
            channel; "none" leaves values alone.
        origin: "case" lets every case start at time 0. "absolute" counts from the earliest time
            seen in `fit`, for data in which it matters *when* a series starts.

    Attributes:
        mean_: (C,) float64, 0 for a channel never observed.
        scale_: (C,) float64, 1 for a channel constant or never observed.
        time_scale_: The longest time from the origin to the end of a case, or 1.0 if that is 0.
        start_: The origin of "absolute" times; 0.0 for "case".
    """

    mean_: Tensor
    scale_: Tensor
    time_scale_: float
    start_: float

    def __init__(self, values: str = "standard", origin: str = "case") -> None:
        self.values = check_choice("values", values, ("standard", "none"))
        self.origin = check_choice("origin", origin, ("case", "absolute"))

    def fit(self, batch: SeriesBatch) -> SeriesScaler:
        """Learns the scales from (N, T, C); give it training cases only."""
        if not isinstance(batch, SeriesBatch):
            raise TypeError(f"batch is of type {type(batch).__name__}; wanted a SeriesBatch")
        if batch.n_cases == 0:
            raise ValueError("batch has no cases; wanted at least one")
        if self.values == "standard":
            self.mean_, self.scale_ = _moments(batch.values, batch.mask)
        else:
            self.mean_ = torch.zeros(batch.n_channels, dtype=torch.float64)
            self.scale_ = torch.ones(batch.n_channels, dtype=torch.float64)
        first, last = batch.times[:, 0], batch.times[:, -1]  # padding repeats the last real time
        self.start_ = 0.0 if self.origin == "case" else float(first.min())
        span = last - (first if self.origin == "case" else self.start_)
        self.time_scale_ = float(span.max()) or 1.0
        return self

    def transform(self, batch: SeriesBatch) -> SeriesBatch:
        """Scales (N, T, C) to the same shape, with 0 wherever `mask` is False."""
        self._check_channels(batch.n_channels)
        scaled = (batch.values - self._like(self.mean_, batch.values)) / self._like(
            self.scale_, batch.values
        )
        return SeriesBatch(
            values=scaled.masked_fill(~batch.mask, 0.0),
            times=self.scale_times(batch.times, batch.times[:, 0]),
            mask=batch.mask,
            lengths=batch.lengths,
        )

    def inverse_values(self, values: Tensor) -> Tensor:
        """Takes scaled values (..., C) back to the units of the data."""
        self._check_channels(values.shape[-1])
        return values * self._like(self.scale_, values) + self._like(self.mean_, values)

    def inverse_scale(self, deviation: Tensor) -> Tensor:
        """Takes standard deviations (..., C) of scaled values back to the units of the data."""
        self._check_channels(deviation.shape[-1])
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
        return scaler

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


def _moments(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(N, T, C) twice -> mean and standard deviation (C,) over what is observed, in float64."""
    n_channels = values.shape[-1]
    channel = torch.arange(n_channels, device=values.device).expand_as(mask)[mask]
    seen = values[mask].double()
    count = torch.bincount(channel, minlength=n_channels).clamp(min=1)
    mean = torch.bincount(channel, weights=seen, minlength=n_channels) / count
    squares = (seen - mean[channel]).square()
    scale = (torch.bincount(channel, weights=squares, minlength=n_channels) / count).sqrt()
    constant = scale <= 1e-12 * mean.abs()  # what rounding of the mean leaves of a constant
    return mean.cpu(), scale.masked_fill(constant, 1.0).cpu()
