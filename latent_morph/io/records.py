"""What a run leaves behind: files that are whole or absent, and folders never written twice."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from numbers import Real
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np

AnyPath: TypeAlias = str | os.PathLike[str]

_RECORDED = (
    "latent_morph",
    "torch",
    "numpy",
    "scikit-learn",
    "scipy",
    "pandas",
    "FrEIA",
    "torchdiffeq",
)


@contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Yields an empty temporary file beside `path`, which takes its place if the block succeeds.

    On any exception, KeyboardInterrupt included, the temporary file is removed and `path` is as
    it was. The temporary name keeps the suffix, as some writers choose their format by it.

    Args:
        path: The file to write. Its folder must exist.

    Raises:
        OSError: The folder is absent or not writable; `filename` is `path`.
    """
    target = Path(path)
    temporary = target.parent / f".part-{secrets.token_hex(8)}{target.suffix}"
    try:
        try:
            # Unlike tempfile's 0600, the mode leaves it to the umask who may read the result.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            error.filename = str(target)  # the name the caller knows
            raise
        yield temporary
        with open(temporary, "rb+") as written:
            os.fsync(written.fileno())  # else a power cut may keep the new name, not the bytes
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_bytes_atomic(path: AnyPath, data: bytes) -> Path:
    """Writes `data` to `path`, whole or not at all, and returns the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_json(path: AnyPath, data: Mapping[str, Any]) -> Path:
    """Writes a mapping as strict JSON, atomically, keys in their order.

    Args:
        path: The file to write.
        data: Nested mappings and sequences of text, numbers, booleans, None, dates, paths, NumPy
            scalars and arrays, tensors. NaN and infinities become null; numbers as keys, text.

    Returns:
        The path written.

    Raises:
        TypeError: Something in `data` has no counterpart in JSON; the message says where.
        ValueError: Two keys of one mapping become the same text.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"data is {type(data).__name__}; wanted a mapping")
    text = json.dumps(_plain(data, "data"), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes_atomic(path, _encode(text + "\n"))


def read_json(path: AnyPath) -> dict[str, Any]:
    """Reads what `write_json` wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: It holds no JSON, a part of it, or something other than an object.
    """
    content = Path(path).read_bytes()
    if not content.strip():
        raise ValueError(f"{path} is empty; wanted a JSON object")
    try:
        data = json.loads(content)
    except ValueError as error:  # of which bad syntax and bad UTF-8 are both kinds
        raise ValueError(f"{path} is no valid JSON, perhaps cut short: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds a JSON {type(data).__name__}; wanted an object")
    return data


def write_csv(path: AnyPath, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes one line for each row, atomically, below the union of their keys as first seen.

    Args:
        path: The file to write. Without rows it is empty.
        rows: What `write_json` accepts. Absent keys, None and NaN leave their cell empty;
            sequences and mappings are written as JSON.

    Returns:
        The path written.

    Raises:
        TypeError: A row is no mapping, or a cell cannot be written; the message says where.
    """
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"rows[{i}] is {type(row).__name__}; wanted a mapping")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    if columns:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for i, row in enumerate(rows):
            writer.writerow(
                [_cell(row.get(column), f"rows[{i}][{column!r}]") for column in columns]
            )
    return write_bytes_atomic(path, _encode(text.getvalue()))


def versions() -> dict[str, str | None]:
    """Versions of Python and of what the results depend on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _RECORDED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def new_run_folder(out: AnyPath, name: str) -> Path:
    """Makes `out/name`, or the first free one of `out/name-2`, `out/name-3`, ...

    Safe where several runs start at once: each gets a folder of its own.

    Args:
        out: Where the folders of runs are; made if absent.
        name: Name of the folder, without separators.

    Raises:
        ValueError: `name` is empty or would lead elsewhere.
        OSError: `out` is not writable, or is a file.
    """
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ValueError(f"name is {name!r}; wanted the name of one folder")
    parent = Path(out)
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        # No look before the leap: between the two another run may take the name.
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def _plain(value: Any, where: str) -> Any:  # noqa: ANN401
    """The nearest thing to `value` that JSON can hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (np.datetime64, np.timedelta64)):  # .item() makes nanoseconds bare ints
        return None if np.isnat(value) else str(value)
    if isinstance(value, np.generic):
        return _plain(value.item(), where)
    if isinstance(value, (str, PurePath)):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Mapping):
        plain: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, (str, Real, np.bool_)):
                raise TypeError(f"{where} has the key {key!r}; wanted text or numbers as keys")
            if str(key) in plain:
                raise ValueError(f"{where} has two keys that are {str(key)!r} as text")
            plain[str(key)] = _plain(item, f"{where}[{key!r}]")
        return plain
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _plain(value[()], where)
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    # Tensors and pandas' columns, without importing either.
    if callable(getattr(value, "tolist", None)):
        return _plain(value.tolist(), where)
    raise TypeError(
        f"{where} is {type(value).__name__}; wanted text, numbers, arrays, paths, or mappings "
        "and sequences of them"
    )


def _cell(value: Any, where: str) -> Any:  # noqa: ANN401
    if isinstance(value, (float, np.floating)) and math.isinf(value):
        return str(value)  # a loss that diverged; CSV, unlike JSON, can say so
    plain = _plain(value, where)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (list, dict)) else plain


def _encode(text: str) -> bytes:
    # File names may carry bytes that are no UTF-8, as lone surrogates. In JSON the replacement is
    # the escape that reads back as the same character.
    return text.encode("utf-8", "backslashreplace")
