"""Model files: tensors in safetensors, everything else as JSON in its header; nothing executes."""

import json
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from torch import Tensor

from latent_morph.records import atomic_path

FORMAT = "latent_morph"
VERSION = 1


def write_model(path: str | Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    """Writes one file, whole or not at all.

    Raises:
        ValueError: Something in `config` is neither text, numbers, nor lists and dicts of them.
    """
    save_file = _safetensors().save_file
    target = Path(path)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": json.dumps(config, default=_plain),
    }
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_path(target) as temporary:
        save_file(plain, temporary, metadata=header)
    return target


def read_model(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_model` wrote.

    Raises:
        ValueError: The file is truncated, from something else, or from a newer version.
    """
    library = _safetensors(root=True)
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no model file at {source}")
    try:
        with library.safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except library.SafetensorError as problem:
        raise ValueError(f"{source} is no complete safetensors file: {problem}") from problem
    if header.get("format") != FORMAT:
        raise ValueError(f"{source} was not written by latent_morph's save")
    try:
        version = int(header["version"])
        config = json.loads(header["config"]) if version <= VERSION else {}
    except (KeyError, ValueError) as problem:
        raise ValueError(f"{source} has a damaged header: {problem!r}") from problem
    if version > VERSION:
        raise ValueError(
            f"{source} is of format version {version}; this latent_morph reads up to {VERSION}"
        )
    return tensors, config


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
