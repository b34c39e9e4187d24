"""Programs for export: modules that wrap fitted models and their scalers, to be traced.

Only closed forms can be exported. Inputs and outputs are in the units of the data, with any number
of series and times, padding and missing values.
"""

import copy

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.encoders import Encoding, MorphEncoder
from latent_morph.flows import Flow, LinearFlow, MorphFlow
from latent_morph.io.export import Program
from latent_morph.models import DynamicsModel, Ensemble, LatentODE, average_logits
from latent_morph.series import SeriesScaler

_SERIES_NOTES = {
    "values": "in the units of the data; NaN and values outside the mask have no effect",
    "times": "in the units of the data, non-decreasing within a series; NaN at its end is padding",
    "mask": "what was observed; a row without any is still a time point",
}


def classifier_program(
    model: LatentODE | Ensemble,
    scaler: SeriesScaler,
    classes: np.ndarray,
    *,
    answer: str = "series",
) -> Program:
    """Returns the program `values, times, mask -> probabilities`, like `predict_proba`.

    Args:
        model: The fitted model.
        scaler: Its scaler.
        classes: (K,) labels.
        answer: "series" for probabilities per series, "points" per time point, with NaN in the
            padding, or "averaged" for the mean over time points.
    """
    return _make_probabilities_program(_Classifier(model, scaler, answer), scaler, classes, answer)


def reconstructor_program(model: LatentODE, scaler: SeriesScaler, noise: Tensor) -> Program:
    """Returns the program `values, times, mask, query_times -> mean, std`, like `reconstruct`.

    Args:
        model: The fitted model.
        scaler: Its scaler.
        noise: (S, D) draws for the mean and the standard deviation; with S = 0 the posterior's
            mean is decoded.
    """
    inputs = _make_series_inputs(len(scaler.mean_)) | {"query_times": (torch.float64, ("N", "Q"))}
    answer = ("N", "Q", len(scaler.mean_))
    notes = {"query_times": "in the units of the data", "n_samples": len(noise)}
    return Program(
        _Reconstructor(model, scaler, noise),
        inputs,
        {"mean": answer, "std": answer},
        _SERIES_NOTES | notes,
    )


def dynamics_program(model: DynamicsModel, scaler: SeriesScaler) -> Program:
    """Returns the program `y0, times -> states`, like `DynamicsRegressor.predict`."""
    size = len(scaler.mean_)
    return Program(
        _Dynamics(model, scaler),
        {"y0": (torch.float64, ("N", size)), "times": (torch.float64, ("T",))},
        {"states": ("N", "T", size)},
        {
            "y0": "states at time 0, in the units of the data",
            "times": "since the start, in the units of the data; in any order",
        },
    )


def features_program(
    model: nn.Module,
    scaler: SeriesScaler | None,
    n_channels: int,
    n_features: int,
    dtype: torch.dtype = torch.float32,
) -> Program:
    """Returns the program `values, times, mask -> features`, like `transform`.

    Args:
        model: Maps values, times and mask to features (N, F).
        scaler: Its scaler; None if it takes series in the units of the data.
        n_channels: C.
        n_features: F.
        dtype: Of the values that the model takes.
    """
    return Program(
        _Features(model, scaler, dtype),
        _make_series_inputs(n_channels),
        {"features": ("N", n_features)},
        _SERIES_NOTES,
    )


def probabilities_program(
    model: nn.Module, scaler: SeriesScaler, classes: np.ndarray, *, answer: str = "series"
) -> Program:
    """Returns the program `values, times, mask -> probabilities` of a model of logits.

    Args:
        model: Maps values, times and mask to logits (N, K), or (N, T, K) of time points.
        scaler: Its scaler.
        classes: (K,) labels.
        answer: As for `classifier_program`.
    """
    return _make_probabilities_program(
        _Probabilities(model, scaler, answer), scaler, classes, answer
    )


def _make_probabilities_program(
    module: nn.Module, scaler: SeriesScaler, classes: np.ndarray, answer: str
) -> Program:
    axes = ("N", "T") if answer == "points" else ("N",)
    return Program(
        module,
        _make_series_inputs(len(scaler.mean_)),
        {"probabilities": (*axes, len(classes))},
        _SERIES_NOTES | {"classes": classes.tolist()},
    )


def _make_series_inputs(
    n_channels: int,
) -> dict[str, tuple[torch.dtype, tuple[str | int, ...]]]:
    return {
        "values": (torch.float64, ("N", "T", n_channels)),
        "times": (torch.float64, ("N", "T")),
        "mask": (torch.bool, ("N", "T", n_channels)),
    }


def _prepare_flow(flow: Flow) -> Flow:
    """Makes a closed form traceable, in place; other flows are refused."""
    linear = flow.base if isinstance(flow, MorphFlow) else flow
    if not isinstance(linear, LinearFlow):
        raise ValueError(
            f"ode must be a closed form to be exported: 'morph', 'morph-real', 'morph-stable' or "
            f"'linear', got a {type(linear).__name__}, whose number of steps depends on the data"
        )
    linear.freeze()
    if isinstance(flow, MorphFlow):
        flow.dense_output = None  # the search for panels depends on the number of times
    return flow


class _SeriesProgram(nn.Module):
    """A program that scales series, or leaves them in the units of the data."""

    def __init__(self, scaler: SeriesScaler | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.scaler = scaler
        self.dtype = dtype

    def prepare(
        self, values: Tensor, times: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns scaled values and times, the mask, and which rows are present (N, T)."""
        present = ~times.isnan()
        mask = mask & present.unsqueeze(-1) & ~values.isnan()
        last = torch.where(present, times, -torch.inf).amax(1, keepdim=True)
        times = torch.where(present, times, last)
        values = torch.where(mask, values, 0.0)
        if self.scaler is not None:
            times = self.scaler.scale_times(times, times[:, 0])
            values, mask = self.scaler.transform_observed(values, mask)
        return values.to(self.dtype), times, mask, present


class _Features(_SeriesProgram):
    def __init__(self, model: nn.Module, scaler: SeriesScaler | None, dtype: torch.dtype) -> None:
        super().__init__(scaler, dtype)
        self.model = copy.deepcopy(model).cpu()

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        values, times, mask, _ = self.prepare(values, times, mask)
        return self.model(values, times, mask)


class _Probabilities(_Features):
    def __init__(self, model: nn.Module, scaler: SeriesScaler, answer: str) -> None:
        super().__init__(model, scaler, torch.float32)
        self.answer = answer

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        values, times, mask, present = self.prepare(values, times, mask)
        return _format_answer(self.model(values, times, mask), present, self.answer)


def _format_answer(logits: Tensor, present: Tensor, answer: str) -> Tensor:
    """Returns probabilities; of time points, with NaN in the padding or averaged."""
    probabilities = logits.softmax(-1)
    mask = present.unsqueeze(-1)
    if answer == "averaged":
        return torch.where(mask, probabilities, 0.0).sum(1) / mask.sum(1)
    return torch.where(mask, probabilities, torch.nan) if answer == "points" else probabilities


class _LatentProgram(_SeriesProgram):
    """A program that scales and encodes series."""

    scaler: SeriesScaler

    def __init__(self, model: LatentODE, scaler: SeriesScaler) -> None:
        super().__init__(scaler, next(model.decoder.parameters()).dtype)
        if not isinstance(model.encoder, MorphEncoder):
            raise ValueError(
                f"encoder must be 'morph' to be exported, got a {type(model.encoder).__name__}"
            )
        self.model = copy.deepcopy(model).cpu()
        self.flow = _prepare_flow(self.model.flow)

    def encode(
        self, values: Tensor, times: Tensor, mask: Tensor
    ) -> tuple[Encoding, Tensor, Tensor]:
        """Returns the encoding, scaled times (N, T) and which rows are present (N, T)."""
        values, times, mask, present = self.prepare(values, times, mask)
        return self.model.encoder._encode(values, times, mask), times, present

    def trajectory(self, z0: Tensor, times: Tensor) -> Tensor:
        """Follows the flow without its checks of values, which cannot be traced."""
        return self.flow._trajectory(z0, times.to(self.dtype))


class _Logits(_LatentProgram):
    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns logits, and which rows are present (N, T)."""
        values, times, mask, present = self.prepare(values, times, mask)
        encoding = self.model.encoder._encode(values, times, mask)
        trajectory = self.trajectory(encoding.mean, times)
        summary = None
        if self.model.summary is not None:
            summary = self.model.summary(values, times, mask)
        logits = self.model.head(trajectory, encoding.states, present, summary)  # type: ignore[misc]
        return logits, present


class _Classifier(nn.Module):
    def __init__(self, model: LatentODE | Ensemble, scaler: SeriesScaler, answer: str) -> None:
        super().__init__()
        members = model.members if isinstance(model, Ensemble) else [model]
        self.members = nn.ModuleList(_Logits(member, scaler) for member in members)  # type: ignore[arg-type]
        self.answer = answer

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        outputs = [member(values, times, mask) for member in self.members]
        logits, present = zip(*outputs, strict=True)
        return _format_answer(average_logits(logits), present[0], self.answer)


class _Reconstructor(_LatentProgram):
    noise: Tensor

    def __init__(self, model: LatentODE, scaler: SeriesScaler, noise: Tensor) -> None:
        super().__init__(model, scaler)
        self.register_buffer("noise", noise)

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor, query_times: Tensor
    ) -> tuple[Tensor, Tensor]:
        query = self.scaler.scale_times(query_times, times[:, 0])
        encoding, _, _ = self.encode(values, times, mask)
        if not len(self.noise):
            emission = self.model.decoder(self.trajectory(encoding.mean, query))
            mean, std = emission.mean, emission.std.expand_as(emission.mean)
        else:
            z0 = encoding.mean.unsqueeze(1) + encoding.std.unsqueeze(1) * self.noise  # (N, S, D)
            emission = self.model.decoder(self.trajectory(z0, query.unsqueeze(1)))
            # Sums, since the name of an operation `mean` would collide with that of the output.
            mean = emission.mean.sum(1) / len(self.noise)
            deviation = emission.mean - mean.unsqueeze(1)
            variance = deviation.square().sum(1) / len(self.noise)
            std = (variance + emission.std.square()).sqrt()
        mean, std = mean.double(), std.double()
        return self.scaler.inverse_values(mean), self.scaler.inverse_deviation(mean, std)


class _Dynamics(nn.Module):
    def __init__(self, model: DynamicsModel, scaler: SeriesScaler) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu()
        self.scaler = scaler
        self.flow = _prepare_flow(self.model.flow)

    def forward(self, y0: Tensor, times: Tensor) -> Tensor:
        start = self.model.lift(self.scaler.transform_values(y0))
        elapsed = times / torch.tensor(self.scaler.time_scale_, dtype=torch.float64)
        states = self.flow._trajectory(start, elapsed)
        return self.scaler.inverse_values(states[..., : self.model.n_channels])
