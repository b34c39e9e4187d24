"""Export of traced modules to ONNX and torch.export files, which run without this package."""

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
# Sizes of the axes of example inputs for tracing: different, and not 1.
_EXAMPLE_SIZES = {"N": 3, "T": 5, "Q": 7}


@dataclass(frozen=True)
class Program:
    """A module to export, with the names and shapes of its inputs and outputs.

    Attributes:
        module: The module, called with the inputs in their order.
        inputs: Dtype and axes of each input by name; axes of any size are letters.
        outputs: Axes of each output by name.
        notes: Further metadata, serializable as JSON; the meaning of an input under its name.
    """

    module: nn.Module
    inputs: dict[str, tuple[torch.dtype, tuple[str | int, ...]]]
    outputs: dict[str, tuple[str | int, ...]]
    notes: dict[str, Any]

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of the file, each entry as JSON."""
        inputs = {
            name: {
                "dtype": str(dtype).removeprefix("torch."),
                "shape": axes,
                "meaning": self.notes.get(name),
            }
            for name, (dtype, axes) in self.inputs.items()
        }
        entries = {"inputs": inputs, "outputs": self.outputs}
        entries |= {name: note for name, note in self.notes.items() if name not in self.inputs}
        return {name: json.dumps(entry) for name, entry in entries.items()}


def series_inputs(X: Data) -> dict[str, np.ndarray]:
    """Returns the inputs `values`, `times` and `mask` of an exported program for series.

    Args:
        X: Anything `latent_morph.as_series` accepts, without static facts.

    Returns:
        Arrays (N, T, C) float64, (N, T) float64 with NaN in the padding, and (N, T, C) bool.

    Raises:
        ValueError: X has static facts, for which exported programs have no input.
    """
    batch = as_series(X, dtype=torch.float64).to("cpu", torch.float64)
    if batch.static is not None:
        raise ValueError(f"X must have no static facts, got {list(batch.static.columns)}")
    return {
        "values": batch.values.numpy(),
        "times": batch.times.masked_fill(~batch.present, torch.nan).numpy(),
        "mask": batch.mask.numpy(),
    }


def write_program(path: str | Path, program: Program, format: str) -> Path:
    """Traces a program and writes it to one file, atomically.

    Args:
        path: The file.
        program: The program.
        format: "onnx", or "torch" for a file that `torch.export.load` reads.

    Raises:
        ImportError: The libraries for the format are not installed.
        ValueError: The format is unknown.
    """
    check_choice("format", format, FORMATS)
    if format == "onnx":
        _check_onnx()
    sizes = {name: torch.export.Dim(name) for name in _EXAMPLE_SIZES}
    examples, shapes = [], []
    for dtype, axes in program.inputs.values():
        shape = [_EXAMPLE_SIZES[axis] if isinstance(axis, str) else axis for axis in axes]
        examples.append(torch.ones(shape, dtype=dtype))
        shapes.append({i: sizes[axis] for i, axis in enumerate(axes) if isinstance(axis, str)})
    with _silence_logs(), torch.no_grad(), atomic_path(path) as temporary:
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
            onnx_program = torch.onnx.export(
                traced,
                dynamo=True,
                dynamic_shapes=(*shapes,),
                verbose=False,
                input_names=list(program.inputs),
                output_names=list(program.outputs),
                custom_translation_table=_make_translations(),
            )
            assert onnx_program is not None  # only without dynamo
            onnx_program.model.metadata_props.update(program.metadata())
            onnx_program.save(temporary, external_data=False)
    return Path(path)


def _check_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as problem:
        raise ImportError(
            'writing ONNX needs onnx and onnxscript: pip install "latent_morph[export]"'
        ) from problem


def _make_translations() -> dict[Any, Callable[..., Any]]:
    """Returns implementations of functions that onnxruntime has in single precision only."""
    from onnxscript import opset18

    op: Any = opset18

    def asinh(x: Any) -> Any:  # noqa: ANN401
        one = op.CastLike(1.0, x)
        return op.Sign(x) * op.Log(op.Abs(x) + op.Sqrt(x * x + one))

    def sinh(x: Any) -> Any:  # noqa: ANN401
        return (op.Exp(x) - op.Exp(op.Neg(x))) / op.CastLike(2.0, x)

    def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:  # noqa: ANN401
        scaled = x * op.CastLike(beta, x)
        logarithm = op.Log(op.CastLike(1.0, x) + op.Exp(op.Neg(op.Abs(scaled))))
        return (op.Relu(scaled) + logarithm) / op.CastLike(beta, x)

    aten = torch.ops.aten
    return {
        aten.asinh.default: asinh,
        aten.sinh.default: sinh,
        aten.softplus.default: softplus,
    }


@contextmanager
def _silence_logs() -> Iterator[None]:
    """Suppresses warnings and logs of the exporters, which users cannot act on."""
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
