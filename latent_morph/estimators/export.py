"""Fitted models as programs that run without this package: ONNX and torch.export files.

Closed forms alone can be written down like this. A program takes and gives the units of the data,
for any number of series and of times: scales, padding and missing values are dealt with inside.
"""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latent_morph.checks import check_choice
from latent_morph.encoders import Encoder, MorphEncoder
from latent_morph.encoders.recurrence import turns
from latent_morph.flows import Flow, LinearFlow, MorphFlow
from latent_morph.io.records import atomic_path
from latent_morph.models import LatentODE
from latent_morph.models.dynamics import DynamicsModel
from latent_morph.series import Data, SeriesScaler, as_series

FORMATS = ("onnx", "torch")
# Sizes of the examples that programs are traced with; none is 1, and no two are the same.
_TRACED = {"N": 3, "T": 5, "Q": 7}

_SERIES = {
    "values": "in the units of the data; NaN, and whatever mask says is missing, has no effect",
    "times": "in the units of the data, never falling within a series; NaN at its end is padding",
    "mask": "what was observed; a row of none is a time point all the same",
}


@dataclass(frozen=True)
class Program:
    """A module to write, and how its inputs and outputs are called.

    Attributes:
        module: Takes the inputs in their order.
        inputs: Name of each input to its dtype and its axes: letters for those of any size.
        outputs: Name of each output to its axes.
        notes: Further facts for whoever runs it, which JSON can hold.
    """

    module: nn.Module
    inputs: dict[str, tuple[torch.dtype, tuple[str | int, ...]]]
    outputs: dict[str, tuple[str | int, ...]]
    notes: dict[str, Any]

    def metadata(self) -> dict[str, str]:
        """What the file says of itself, each entry as JSON."""
        described = {
            name: {
                "dtype": str(dtype).removeprefix("torch."),
                "shape": axes,
                "meaning": _SERIES.get(name, self.notes.get(name)),
            }
            for name, (dtype, axes) in self.inputs.items()
        }
        facts = {"inputs": described, "outputs": self.outputs}
        facts |= {name: fact for name, fact in self.notes.items() if name not in self.inputs}
        return {name: json.dumps(fact) for name, fact in facts.items()}


def series_inputs(X: Data) -> dict[str, np.ndarray]:
    """The inputs of an exported program, `values`, `times` and `mask`, for any kind of series.

    Args:
        X: Anything `latent_morph.as_series` takes.

    Returns:
        Arrays (N, T, C) float64, (N, T) float64 with NaN in the padding, and (N, T, C) bool.
    """
    batch = as_series(X, dtype=torch.float64).to("cpu", torch.float64)
    return {
        "values": batch.values.numpy(),
        "times": batch.times.masked_fill(~batch.present, torch.nan).numpy(),
        "mask": batch.mask.numpy(),
    }


def classifier_program(
    model: LatentODE, scaler: SeriesScaler, classes: np.ndarray, *, answer: str = "series"
) -> Program:
    """`values, times, mask -> probabilities`, as `predict_proba` gives them.

    Args:
        model: Fitted.
        scaler: Its scaler.
        classes: (K,) labels.
        answer: "series" for one a series, "points" for one a time point, NaN then in the padding,
            "averaged" for the mean of these.
    """
    axes = ("N", "T") if answer == "points" else ("N",)
    return Program(
        _Classifier(model, scaler, answer),
        _series_axes(scaler),
        {"probabilities": (*axes, len(classes))},
        {"classes": classes.tolist()},
    )


def reconstructor_program(model: LatentODE, scaler: SeriesScaler, noise: Tensor) -> Program:
    """`values, times, mask, query_times -> mean, std`, as `reconstruct` gives them.

    Args:
        model: Fitted.
        scaler: Its scaler.
        noise: (S, D) the draws behind mean and deviation; none decode the posterior's mean.
    """
    inputs = _series_axes(scaler) | {"query_times": (torch.float64, ("N", "Q"))}
    answer = ("N", "Q", len(scaler.mean_))
    return Program(
        _Reconstructor(model, scaler, noise),
        inputs,
        {"mean": answer, "std": answer},
        {"query_times": "when to decode, in the units of the data", "n_samples": len(noise)},
    )


def dynamics_program(model: DynamicsModel, scaler: SeriesScaler) -> Program:
    """`y0, times -> states`, as `DynamicsRegressor.predict` gives them."""
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


def write_program(path: str | Path, program: Program, format: str) -> Path:
    """Traces a program and writes it to one file, whole or not at all.

    Args:
        path: The file.
        program: What to write.
        format: "onnx", or "torch" for what `torch.export.load` reads.

    Raises:
        ImportError: What writes the format is not installed.
        ValueError: There is no such format.
    """
    check_choice("format", format, FORMATS)
    if format == "onnx":
        _check_onnx()
    sizes = {name: torch.export.Dim(name) for name in _TRACED}
    examples, shapes = [], []
    for dtype, axes in program.inputs.values():
        shape = [_TRACED[axis] if isinstance(axis, str) else axis for axis in axes]
        examples.append(torch.ones(shape, dtype=dtype))
        shapes.append({i: sizes[axis] for i, axis in enumerate(axes) if isinstance(axis, str)})
    with _undisturbed(), torch.no_grad(), atomic_path(path) as temporary:
        traced = torch.export.export(
            program.module.eval().requires_grad_(False),
            tuple(examples),
            dynamic_shapes=(*shapes,),
            strict=False,
        )
        if format == "torch":
            notes = {"latent_morph.json": json.dumps(program.metadata())}
            torch.export.save(traced, temporary, extra_files=notes)
        else:
            written = torch.onnx.export(
                traced,
                dynamo=True,
                dynamic_shapes=(*shapes,),
                verbose=False,
                input_names=list(program.inputs),
                output_names=list(program.outputs),
                custom_translation_table=_translations(),
            )
            if written is None:
                raise RuntimeError("torch.onnx.export gave no program")
            written.model.metadata_props.update(program.metadata())
            written.save(temporary, external_data=False)
    return Path(path)


def _series_axes(scaler: SeriesScaler) -> dict[str, tuple[torch.dtype, tuple[str | int, ...]]]:
    channels = len(scaler.mean_)
    return {
        "values": (torch.float64, ("N", "T", channels)),
        "times": (torch.float64, ("N", "T")),
        "mask": (torch.bool, ("N", "T", channels)),
    }


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as problem:
        raise ImportError(
            'writing ONNX needs onnx and onnxscript: pip install "latent_morph[export]"'
        ) from problem


def _translations() -> dict[Any, Callable[..., Any]]:
    """Functions that onnxruntime knows in single precision only, in terms of others."""
    from onnxscript import opset18

    op: Any = opset18

    def asinh(x: Any) -> Any:  # noqa: ANN401
        one = op.CastLike(1.0, x)
        return op.Sign(x) * op.Log(op.Abs(x) + op.Sqrt(x * x + one))

    def sinh(x: Any) -> Any:  # noqa: ANN401
        return (op.Exp(x) - op.Exp(op.Neg(x))) / op.CastLike(2.0, x)

    def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ANN401
        scaled = x * op.CastLike(beta, x)
        grown = op.Log(op.CastLike(1.0, x) + op.Exp(op.Neg(op.Abs(scaled))))
        return (op.Relu(scaled) + grown) / op.CastLike(beta, x)

    aten = torch.ops.aten
    return {
        aten.asinh.default: asinh,
        aten.sinh.default: sinh,
        aten.softplus.default: softplus,
    }


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps torch's remarks on its own insides, which nobody here can act on, off the screen."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch._export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# Modules that compute what the estimators do, in operations that both formats know: a scan where
# there is a loop over time, no axis of T - 1, which would have to be told from one of 1, and
# matrices where there are triangular systems to solve.


class _Scales(nn.Module):
    """What a `SeriesScaler` does. Its numbers are tensors here: ONNX would round plain ones."""

    def __init__(self, scaler: SeriesScaler, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.dtype = dtype
        self.absolute = scaler.origin == "absolute"
        self.bent = scaler.threshold_ is not None
        self.register_buffer("mean", scaler.mean_.clone())
        self.register_buffer("scale", scaler.scale_.clone())
        self.register_buffer("span", torch.tensor(scaler.time_scale_, dtype=torch.float64))
        self.register_buffer("start", torch.tensor(scaler.start_, dtype=torch.float64))
        if scaler.threshold_ is not None:
            self.register_buffer("threshold", scaler.threshold_.clone())

    mean: Tensor
    scale: Tensor
    span: Tensor
    start: Tensor
    threshold: Tensor

    def scaled_times(self, times: Tensor, starts: Tensor) -> Tensor:
        return (times - (self.start if self.absolute else starts.unsqueeze(1))) / self.span

    def scaled(self, values: Tensor) -> Tensor:
        values = (values / self.threshold).asinh() if self.bent else values
        return (values - self.mean) / self.scale

    def in_units(self, values: Tensor) -> Tensor:
        values = values * self.scale + self.mean
        return values.sinh() * self.threshold if self.bent else values

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Scaled values, float64 times, what is observed, and which rows are present."""
        present = ~times.isnan()
        mask = mask & present.unsqueeze(-1) & ~values.isnan()
        last = torch.where(present, times, -torch.inf).amax(1, keepdim=True)
        times = self.scaled_times(torch.where(present, times, last), times[:, 0])
        values = self.scaled(torch.where(mask, values, 0.0))
        return torch.where(mask, values, 0.0).to(self.dtype), times, mask, present


class _ClosedForm(nn.Module):
    """A linear flow, perhaps through a warp, at all times."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        linear = flow.base if isinstance(flow, MorphFlow) else flow
        if not isinstance(linear, LinearFlow):
            raise ValueError(
                f"the ODE is a {type(linear).__name__}, which a solver steps through: how often "
                f"is found out while it runs, so that there is no fixed program to export. "
                f"Closed forms can be exported: ode 'morph', 'morph-real', 'morph-stable' or "
                f"'linear'"
            )
        self.warp = flow.warp if isinstance(flow, MorphFlow) else None
        dtype = linear.rate_parameter.dtype
        exact = copy.deepcopy(linear).double().requires_grad_(False)
        identity = torch.eye(linear.latent_dim, dtype=torch.float64)
        with torch.no_grad():
            self.register_buffer("into_modes", exact.to_modes(identity).to(dtype).clone())
            self.register_buffer("from_modes", exact.from_modes(identity).to(dtype).clone())
            self.register_buffer("rates", exact.rates.to(dtype).clone())
            self.register_buffer("frequencies", exact.frequencies.to(dtype).clone())
        self.sizes = [linear.n_pairs, linear.n_pairs, linear.latent_dim - 2 * linear.n_pairs]

    into_modes: Tensor
    from_modes: Tensor
    rates: Tensor
    frequencies: Tensor

    def forward(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """(..., D) and (..., T) to (..., T, D)."""
        if self.warp is not None:
            z0 = self.warp.inverse(z0)
        first, second, single = (z0 @ self.into_modes).unsqueeze(-2).split(self.sizes, dim=-1)
        t = elapsed.unsqueeze(-1)
        growth = (self.rates * t).exp()
        paired, rest = growth.split([self.sizes[0], self.sizes[2]], dim=-1)
        angle = self.frequencies * t
        cos, sin = paired * angle.cos(), paired * angle.sin()
        turned = [cos * first - sin * second, cos * second + sin * first, rest * single]
        states = torch.cat(turned, dim=-1) @ self.from_modes
        return states if self.warp is None else self.warp(states)


class _Encoder(nn.Module):
    """What a `MorphEncoder` does."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        if not isinstance(encoder, MorphEncoder):
            raise ValueError(
                "the encoder 'gru-ode' carries its state from one observation to the next by an "
                "ODE of its own and is not exported; encoder='morph' is"
            )
        self.encoder = encoder

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(N, T, C), (N, T), (N, T, C) to mean and deviation (N, D), and states (N, T, S)."""
        pool = self.encoder.pool
        tokens = _each_row if pool == 1 else _pooled
        features, observed, clock, of_row = tokens(values, times, mask, pool)
        weight = observed.to(values.dtype).t().unsqueeze(-1)
        gaps = _gaps(clock).to(values.dtype).t()
        rows = self.encoder.embed(features).transpose(0, 1)
        for layer in self.encoder.layers:
            rows, modes = _layer(layer, rows, weight, gaps)
        rows = self.encoder.warp(rows)

        first = observed.int().argmax(1)
        last = torch.where(observed, torch.arange(observed.shape[1]), 0).amax(1)
        lead = clock.gather(1, first.unsqueeze(1)).squeeze(1).abs().to(values.dtype)
        start = self.encoder.layers[-1].carried(_row(modes, first)[:, 1], lead)  # type: ignore[operator]
        ending = _row(modes, last)[:, 0].flatten(1)
        mean_row = (rows * weight).sum(0) / weight.sum(0).clamp(min=1)
        known = torch.cat([mean_row, torch.cat([start, ending], 1) * weight.amax(0)], dim=-1)
        mean, spread = self.encoder.posterior(known).chunk(2, dim=-1)
        states = rows.transpose(0, 1)
        if of_row is not None:
            states = states.gather(1, of_row.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return mean, F.softplus(spread) + 1e-4, states


_Tokens = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _each_row(values: Tensor, times: Tensor, mask: Tensor, pool: int) -> _Tokens:
    """Features (N, T, F), what is observed (N, T), times (N, T)."""
    observed = mask.any(-1)

    def step(seen_at: Tensor, row: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        time, there = row
        return torch.where(there, time, seen_at), (time - seen_at).clamp(min=0)

    never = times.new_full((times.shape[0],), torch.inf)
    _, since = _scan(step, never, (times.t(), observed.t()))
    seen = mask.to(values.dtype)
    features = torch.cat([values * seen, seen, since.t().unsqueeze(-1).to(seen)], dim=-1)
    return features, observed, times, None


def _pooled(values: Tensor, times: Tensor, mask: Tensor, pool: int) -> _Tokens:
    """The same of groups of `pool` observed rows, and (N, T) which group speaks for each row."""
    features, observed, _, _ = _each_row(values, times, mask, pool)
    n_cases, n_times = observed.shape
    n_tokens = n_times // pool + 2  # never 1; what stands in the last, of no observation, is moot
    count = observed.sum(1, keepdim=True)
    place = (observed.cumsum(1) - 1).clamp(min=0)
    case = torch.arange(n_cases).unsqueeze(1).expand(-1, n_times)
    index = case, torch.where(observed, place // pool, n_tokens - 1), place % pool
    grouped = features.new_zeros(n_cases, n_tokens, pool, features.shape[-1])
    grouped = grouped.index_put(index, features)
    ends = times.new_zeros(n_cases, n_tokens, pool).index_put(index, times)[..., -1]
    last = torch.where(observed, times, -torch.inf).amax(1, keepdim=True)
    last = torch.where(count > 0, last, 0.0)
    token = torch.arange(n_tokens)
    clock = torch.where((token + 1) * pool <= count, ends, last)
    return grouped.flatten(2), token * pool < count, clock, place // pool


def _gaps(times: Tensor) -> Tensor:
    """(N, T) the time since the row before, 0 for the first."""
    before = torch.cat([times[:, :1], times], dim=1)[:, :-1]
    return times - before


def _layer(
    layer: Any,  # noqa: ANN401
    rows: Tensor,
    observed: Tensor,
    gaps: Tensor,
) -> tuple[Tensor, Tensor]:
    normed = layer.norm(rows)
    pushes = (layer.drive(normed) * observed).unflatten(-1, (2, layer.n_modes, 2))
    # Backwards, the step into a row is the one that leaves it forwards.
    after = torch.cat([gaps, torch.zeros_like(gaps[:1])])[1:]
    rates = layer.log_rates.exp()
    both = [turns(rates[i], layer.frequencies[i], (gaps, after)[i]) for i in (0, 1)]
    modes = _recurrences(both, [pushes[:, :, i].unbind(-1) for i in (0, 1)])
    update = layer.read(modes.flatten(2)) * F.silu(layer.gate(normed))
    return rows + update, modes


_Halves = tuple[Tensor, ...]


def _recurrences(turned: Sequence[_Halves], pushes: Sequence[_Halves]) -> Tensor:
    """What `latent_morph.encoders.recurrence.pushed_modes` computes, (T, N, 2, P, 2).

    Args:
        turned: For each direction cos and sin (T, N, P) of the step that leads into each row.
        pushes: For each direction what is added to the halves of the state, (T, N, P).
    """

    def step(state: _Halves, row: tuple[Tensor, ...]) -> tuple[_Halves, _Halves]:
        (re, im), (c, s, u, v) = state, row
        re, im = u + c * re - s * im, v + s * re + c * im
        return (re, im), (re.clone(), im.clone())

    (forth, back) = ((*turn, *push) for turn, push in zip(turned, pushes, strict=True))
    rows = tuple(torch.cat([x, y.flip(0)], dim=-1) for x, y in zip(forth, back, strict=True))
    start = torch.zeros_like(rows[2][0])
    _, (re, im) = _scan(step, (start, start.clone()), rows)
    (re, back_re), (im, back_im) = re.chunk(2, dim=-1), im.chunk(2, dim=-1)
    forwards = torch.stack([re, im], dim=-1)
    backwards = torch.stack([back_re, back_im], dim=-1).flip(0)
    return torch.stack([forwards, backwards], dim=2)


def _scan(step: Callable[..., Any], start: Any, rows: Any) -> Any:  # noqa: ANN401
    """`step(state, row) -> state, result` over the first axis of all rows."""
    if torch.compiler.is_exporting():
        from torch._higher_order_ops.scan import scan

        return scan(step, start, rows)
    results = []
    for row in zip(*rows, strict=True):
        start, result = step(start, row)
        results.append(result)
    if isinstance(results[0], Tensor):
        return start, torch.stack(results)
    return start, tuple(torch.stack(parts) for parts in zip(*results, strict=True))


def _row(modes: Tensor, index: Tensor) -> Tensor:
    """(T, N, 2, P, 2) at one row for each series: (N, 2, P, 2)."""
    where = index.view(1, -1, 1, 1, 1).expand(1, -1, *modes.shape[2:])
    return modes.gather(0, where).squeeze(0)


def _precision_of(model: LatentODE) -> torch.dtype:
    return next(model.decoder.parameters()).dtype


class _Classifier(nn.Module):
    def __init__(self, model: LatentODE, scaler: SeriesScaler, answer: str) -> None:
        super().__init__()
        model = copy.deepcopy(model).cpu()
        self.scales = _Scales(scaler, _precision_of(model))
        self.encoder = _Encoder(model.encoder)
        self.flow = _ClosedForm(model.flow)
        self.head = model.head
        self.answer = answer

    def forward(self, values: Tensor, times: Tensor, mask: Tensor) -> Tensor:
        values, times, mask, present = self.scales(values, times, mask)
        z0, _, states = self.encoder(values, times, mask)
        trajectory = self.flow(z0, times.to(z0))
        answer = self.head(trajectory, states, present).softmax(-1)  # type: ignore[misc]
        inside = present.unsqueeze(-1)
        if self.answer == "averaged":
            return torch.where(inside, answer, 0.0).sum(1) / inside.sum(1)
        return torch.where(inside, answer, torch.nan) if self.answer == "points" else answer


class _Reconstructor(nn.Module):
    def __init__(self, model: LatentODE, scaler: SeriesScaler, noise: Tensor) -> None:
        super().__init__()
        model = copy.deepcopy(model).cpu()
        self.scales = _Scales(scaler, _precision_of(model))
        self.encoder = _Encoder(model.encoder)
        self.flow = _ClosedForm(model.flow)
        self.decoder = model.decoder
        self.register_buffer("noise", noise)

    noise: Tensor

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor, query_times: Tensor
    ) -> tuple[Tensor, Tensor]:
        query = self.scales.scaled_times(query_times, times[:, 0])
        values, times, mask, _ = self.scales(values, times, mask)
        z0, spread, _ = self.encoder(values, times, mask)
        if not len(self.noise):
            emission = self.decoder(self.flow(z0, query.to(z0)))
            mean, std = emission.mean, emission.std.expand_as(emission.mean)
        else:
            draws = z0.unsqueeze(1) + spread.unsqueeze(1) * self.noise  # (N, S, D)
            emission = self.decoder(self.flow(draws, query.to(z0).unsqueeze(1)))
            # No operation may be called what an output is: sums instead of means.
            mean = emission.mean.sum(1) / len(self.noise)
            off = emission.mean - mean.unsqueeze(1)
            variance = off.square().sum(1) / len(self.noise)
            std = (variance + emission.std.square()).sqrt()
        return self.scales.in_units(mean.double()), std.double() * self.scales.scale


class _Dynamics(nn.Module):
    def __init__(self, model: DynamicsModel, scaler: SeriesScaler) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu()
        self.flow = _ClosedForm(self.model.flow)
        self.scales = _Scales(scaler)

    def forward(self, y0: Tensor, times: Tensor) -> Tensor:
        start = self.model.lift(self.scales.scaled(y0))
        states = self.flow(start, times / self.scales.span)
        return self.scales.in_units(states[..., : self.model.n_channels])
