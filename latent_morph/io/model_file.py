"""Model files: tensors in safetensors, everything else as JSON in its header; nothing executes.

A checksum over all of it tells what was written from what was damaged or edited since. It is no
signature: whoever forges a file can compute it anew, and still gets no code run and no memory
filled.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from latent_morph.io.atomic import write_bytes_atomic

FORMAT = "latent_morph"
# Version 0.1 of the package wrote 3; since 4 the blocks of an invertible network have weights of
# their own, and encoders have options (`latent_morph.estimators.migration`).
VERSION = 4
OLDEST = 3

# What rebuilding a model from a file that holds anything at all may raise.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def write_model(path: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Writes one file, whole or not at all.

    Raises:
        ValueError: Something in `config` is neither text, numbers, nor lists and dicts of them.
    """
    safetensors = _import_safetensors()
    text = json.dumps(config, default=_to_json)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": text,
        "sha256": checksum(plain, text, VERSION),
    }
    return write_bytes_atomic(path, safetensors.torch.save(plain, metadata=header))


def read_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Reads what `write_model` wrote: tensors, config, and the version of the format.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is truncated, changed, from something else, from a newer version, or
            from one older than version 0.1.
    """
    safetensors = _import_safetensors()
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no model file at {source}")
    try:
        with safetensors.safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            # Copies are aligned in memory, so that sums are rounded as in the saved model.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except (safetensors.SafetensorError, *UNREADABLE) as problem:
        raise ValueError(f"{source} must be a safetensors file, got {problem}") from problem
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{source} must be of format {FORMAT!r}, got {header.get('format')!r}: "
            f"it was not written by latent_morph's save"
        )
    try:
        version = int(header["version"])
        if version > VERSION or version < OLDEST:
            raise _VersionError(
                f"{source} must be of format version {OLDEST} to {VERSION}, got {version}: "
                + ("update latent_morph" if version > VERSION else "fit and save the model again")
            )
        text = header["config"]
        if header["sha256"] != checksum(tensors, text, version):
            raise ValueError("sha256 must be that of the content, got another: it was changed")
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError(f"config must be a JSON object, got {type(config).__name__}")
    except _VersionError:
        raise
    except (KeyError, ValueError, RecursionError) as problem:
        raise ValueError(f"{source} is damaged: {problem!r}") from problem
    return tensors, config, version


def checksum(tensors: Mapping[str, Tensor], config: str, version: int) -> str:
    """SHA-256 over the version, the config and every tensor with its name, type and shape."""
    digest = hashlib.sha256()
    for part in (str(version), config):
        digest.update(f"{len(part.encode())}:".encode() + part.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def limit_allocation(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Builds modules without memory, and stops whoever builds far more than these tensors.

    A file is as large as the model in it; only a forged one asks for more. Modules are built on
    torch's meta device, for `load_state_dict(tensors, assign=True)` to fill.

    Raises:
        ValueError: So much was asked for.
    """
    held = sum(tensor.numel() for tensor in tensors.values())
    with torch.device("meta"), _AllocationLimit(100_000 + 10 * held):
        yield


class _AllocationLimit(TorchFunctionMode):
    """Counts the elements that functions of torch return."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = self.left = limit

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.left -= result.numel()
            if self.left < 0:
                raise ValueError(
                    f"the model must have at most {self.limit} numbers, ten times what the file "
                    f"holds, got more"
                )
        return result


class _VersionError(ValueError):
    """A file of a version that cannot be read; there is nothing else to say about it."""


def _to_json(value: object) -> object:
    """What NumPy and torch leave among parameters, in the numbers and lists that JSON knows."""
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    raise ValueError(f"a model file must hold text and numbers only, got {value!r}")


def _import_safetensors() -> Any:  # noqa: ANN401
    try:
        import safetensors
        import safetensors.torch
    except ImportError as problem:
        raise ImportError(
            'saving and loading models needs safetensors: pip install "latent_morph[safe]"'
        ) from problem
    return safetensors
