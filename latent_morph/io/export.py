"""Programs that run without this package: traced modules in ONNX and torch.export files."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from latent_morph.checks import check_choice
from latent_morph.io.atomic import atomic_path
from latent_morph.series import Data, as_series

FORMATS = ("onnx", "torch")
# Sizes of the examples that programs are traced with; none is 1, and no two are the same.
_TRACED = {"N": 3, "T": 5, "Q": 7}


@dataclass(frozen=True)
class Program:
    """A module to write, and how its inputs and outputs are called.

    Attributes:
        module: Takes the inputs in their order.
        inputs: Name of each input to its dtype and its axes: letters for those of any size.
        outputs: Name of each output to its axes.
        notes: Further facts for whoever runs it, which JSON can hold; under the name of an input,
            what it means.
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
                "meaning": self.notes.get(name),
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
    with _quiet(), torch.no_grad(), atomic_path(path) as temporary:
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
def _quiet() -> Iterator[None]:
    """Silences what torch logs of its own workings, which users cannot act on."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnxscript")]
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
