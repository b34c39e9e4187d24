"""Model files: tensors in safetensors, and JSON in its header; reading executes no code.

A checksum detects damage. It is not a signature: a forged file can have a valid one, but can
neither execute code nor exhaust the memory.
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
# Version 0.1 of the package wrote 3. Since 4 the weights of blocks are separate, and encoders have
# options; see `latent_morph.estimators.migration`.
VERSION = 4
OLDEST = 3

# Exceptions that rebuilding a model from a file of arbitrary content may raise.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def write_model(path: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Writes one file, atomically.

    Raises:
        ValueError: `config` holds something else than strings, numbers, and lists and dicts of
            them.
    """
    safetensors = _import_safetensors()
    text = json.dumps(config, default=_to_json)
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": text,
        "sha256": checksum(copies, text, VERSION),
    }
    return write_bytes_atomic(path, safetensors.torch.save(copies, metadata=header))


def read_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Reads tensors, config and the version of the format from a file of `write_model`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is truncated, changed, of another format, of a newer version, or of
            one older than 0.1.
    """
    safetensors = _import_safetensors()
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no model file at {source}")
    try:
        with safetensors.safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            # Clones are aligned in memory, so that sums are rounded as in the saved model.
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
    """Returns the SHA-256 of the version, the config, and all tensors, names and shapes."""
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
    """Context in which modules are built without memory, and not much larger than `tensors`.

    Only a forged file describes a model larger than its tensors. Modules are built on torch's meta
    device, for `load_state_dict(tensors, assign=True)`.

    Raises:
        ValueError: More was allocated.
    """
    n_elements = sum(tensor.numel() for tensor in tensors.values())
    with torch.device("meta"), _AllocationLimit(100_000 + 10 * n_elements):
        yield


class _AllocationLimit(TorchFunctionMode):
    """Counts the elements of tensors that functions of torch return."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = self.remaining = limit

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.remaining -= result.numel()
            if self.remaining < 0:
                raise ValueError(
                    f"the model must have at most {self.limit} numbers, ten times what the file "
                    f"holds, got more"
                )
        return result


class _VersionError(ValueError):
    """The file is of a version that cannot be read."""


def _to_json(value: object) -> object:
    """Converts values of NumPy and torch, and paths, to types of JSON."""
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
