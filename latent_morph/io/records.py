"""Records of runs: strict JSON, CSV, versions, and run folders that are never reused."""

from __future__ import annotations

import csv
import io
import json
import math
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from numbers import Real
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from latent_morph.io.atomic import AnyPath, write_bytes_atomic

_DISTRIBUTIONS = (
    "latent_morph",
    "torch",
    "numpy",
    "scikit-learn",
    "scipy",
    "pandas",
    "FrEIA",
    "torchdiffeq",
)


def write_json(path: AnyPath, data: Mapping[str, Any]) -> Path:
    """Writes a mapping as strict JSON, atomically, in the order of its keys.

    Args:
        path: The file to write.
        data: Nested mappings and sequences of strings, numbers, booleans, None, dates, paths,
            NumPy scalars and arrays, tensors. NaN and infinities become null; keys that are
            numbers become strings.

    Returns:
        The path written.

    Raises:
        TypeError: `data` holds something that JSON cannot represent; the message says where.
        ValueError: Two keys of one mapping become the same string.
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a mapping, got {type(data).__name__}")
    text = json.dumps(_to_json(data, "data"), indent=2, ensure_ascii=False, allow_nan=False)
    return write_bytes_atomic(path, _encode(text + "\n"))


def read_json(path: AnyPath) -> dict[str, Any]:
    """Reads what `write_json` wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: The content is empty, invalid or truncated JSON, or not an object.
    """
    content = Path(path).read_bytes()
    if not content.strip():
        raise ValueError(f"{path} must hold a JSON object, got an empty file")
    try:
        data = json.loads(content)
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are subclasses
        raise ValueError(
            f"{path} must hold a JSON object, got invalid or truncated JSON: {error}"
        ) from error
    if not isinstance(data, dict):
        raise ValueError(f"{path} must hold a JSON object, got a {type(data).__name__}")
    return data


def write_csv(path: AnyPath, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes one line per row, atomically. Columns are the union of keys in order of appearance.

    Args:
        path: The file to write. Without rows it is empty.
        rows: Mappings with values that `write_json` accepts. Absent keys, None and NaN give an
            empty cell; sequences and mappings are written as JSON.

    Returns:
        The path written.

    Raises:
        TypeError: A row is not a mapping, or a cell cannot be written; the message says where.
    """
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"rows[{i}] must be a mapping, got {type(row).__name__}")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    if columns:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for i, row in enumerate(rows):
            writer.writerow(
                [_format_cell(row.get(column), f"rows[{i}][{column!r}]") for column in columns]
            )
    return write_bytes_atomic(path, _encode(text.getvalue()))


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that results depend on; None if not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def new_run_folder(out: AnyPath, name: str) -> Path:
    """Makes `out/name`, or the first free one of `out/name-2`, `out/name-3`, ...

    Safe if several runs start at the same time: each gets a folder of its own.

    Args:
        out: Parent of the run folders; created if absent.
        name: Name of the folder, without separators.

    Raises:
        ValueError: `name` is empty or has a path separator.
        OSError: `out` is not writable, or is a file.
    """
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        raise ValueError(f"name must be the name of one folder, got {name!r}")
    parent = Path(out)
    parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        # No test of existence before mkdir: another run could take the name in between.
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def _to_json(value: Any, where: str) -> Any:  # noqa: ANN401
    """Converts `value` to what `json.dumps` accepts; `where` names it in errors."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (np.datetime64, np.timedelta64)):  # .item() gives an int for ns
        return None if np.isnat(value) else str(value)
    if isinstance(value, np.generic):
        return _to_json(value.item(), where)
    if isinstance(value, (str, PurePath)):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Mapping):
        converted: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, (str, Real, np.bool_)):
                raise TypeError(f"keys of {where} must be strings or numbers, got {key!r}")
            if str(key) in converted:
                raise ValueError(f"keys of {where} must differ as strings, got {str(key)!r} twice")
            converted[str(key)] = _to_json(item, f"{where}[{key!r}]")
        return converted
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return _to_json(value[()], where)
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    # Tensors and pandas Series, without importing either library.
    if callable(getattr(value, "tolist", None)):
        return _to_json(value.tolist(), where)
    raise TypeError(
        f"{where} must be a string, number, array, path, mapping or sequence, "
        f"got {type(value).__name__}"
    )


def _format_cell(value: Any, where: str) -> Any:  # noqa: ANN401
    if isinstance(value, (float, np.floating)) and math.isinf(value):
        return str(value)  # for a diverged loss; CSV, unlike JSON, can represent it
    cell = _to_json(value, where)
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, (list, dict)) else cell


def _encode(text: str) -> bytes:
    # File names that are not UTF-8 hold lone surrogates. In JSON their replacement is the escape
    # sequence that is read back as the same character.
    return text.encode("utf-8", "backslashreplace")
