"""Model files: tensors in safetensors, everything else as JSON in its header; nothing executes.

A checksum over all of it tells what was written from what was damaged or edited since. It is no
signature: whoever forges a file can compute it anew, and still gets no code run and no memory
filled.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from latent_morph.io.records import atomic_path

FORMAT = "latent_morph"
# Since 2 there is a checksum, and the halves of the closed-form encoder's modes lie side by side.
# Since 3 the weights of an invertible network's blocks lie together, and a goal is reached by
# moving what goes into the network instead of what comes out.
VERSION = 3

# What rebuilding a model from a file that holds anything at all may raise.
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def write_model(path: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Writes one file, whole or not at all.

    Raises:
        ValueError: Something in `config` is neither text, numbers, nor lists and dicts of them.
    """
    save_file = _safetensors().save_file
    target = Path(path)
    text = json.dumps(config, default=_plain)
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": text,
        "sha256": checksum(plain, text, VERSION),
    }
    with atomic_path(target) as temporary:
        save_file(plain, temporary, metadata=header)
    return target


def read_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_model` wrote.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is truncated, changed, from something else, from a newer version, or
            from an older one in which weights had another order.
    """
    library = _safetensors(root=True)
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no model file at {source}")
    try:
        with library.safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (library.SafetensorError, *UNREADABLE) as problem:
        raise ValueError(f"{source} is no complete safetensors file: {problem}") from problem
    if header.get("format") != FORMAT:
        raise ValueError(f"{source} was not written by latent_morph's save")
    try:
        version = int(header["version"])
        if version > VERSION:
            raise _VersionError(
                f"{source} is of format version {version}; this latent_morph reads up to {VERSION}"
            )
        text = header["config"]
        if version >= 2 or "sha256" in header:
            if header["sha256"] != checksum(tensors, text, version):
                raise ValueError("its content is not what its checksum says, so it was changed")
        if version < 2 and any(name.startswith("encoder.layers.") for name in tensors):
            raise _VersionError(
                f"{source} is of format version {version}, in which the weights of the encoder "
                f"'morph' had another order: fit and save the model again"
            )
        if version < 3 and any(name.endswith("warp.goal") for name in tensors):
            raise _VersionError(
                f"{source} is of format version {version}, in which an ODE reached its goal in "
                f"another way: fit and save the model again"
            )
        config = json.loads(text)
        if not isinstance(config, dict):
            raise ValueError(f"its config is a JSON {type(config).__name__}, not an object")
    except _VersionError:
        raise
    except (KeyError, ValueError, RecursionError) as problem:
        raise ValueError(f"{source} is damaged: {problem!r}") from problem
    return tensors, config


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
def rationed(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Stops whoever builds a model much larger than these tensors, before memory is taken.

    A file is as large as the model in it; only a forged one asks for more.

    Raises:
        ValueError: So much was asked for.
    """
    held = sum(tensor.numel() for tensor in tensors.values())
    with _Rationed(100_000 + 10 * held):
        yield


class _Rationed(TorchDispatchMode):
    """Counts the elements of new tensors."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = self.left = most

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if not any("Tensor" in str(argument.type) for argument in func._schema.arguments):
            # Made from numbers alone: without memory first, to learn how large it will be.
            sketch = func(*args, **kwargs | {"device": "meta"})
            self.left -= math.prod(sketch.shape)
            if self.left < 0:
                raise ValueError(
                    f"it describes a model of more than {self.most} numbers, beyond what it holds"
                )
        return func(*args, **kwargs)


class _VersionError(ValueError):
    """A file of a version that cannot be read; there is nothing else to say about it."""


def _plain(value: object) -> object:
    """What NumPy and torch leave among parameters, in the numbers and lists that JSON knows."""
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    raise ValueError(f"{value!r} is nothing that a model file can hold; wanted text or numbers")


def _safetensors(*, root: bool = False) -> Any:  # noqa: ANN401
    try:
        import safetensors
        import safetensors.torch
    except ImportError as problem:
        raise ImportError(
            'saving and loading models needs safetensors: pip install "latent_morph[safe]"'
        ) from problem
    return safetensors if root else safetensors.torch
