"""Arguments of pictures, checked: times, numbers and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def as_floats(name: str, data: ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """The data as floats, of this shape where one is wanted."""
    array = np.asarray(data, dtype=float)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}")
    return array


def as_times(name: str, times: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Sorted times, and the order that sorts what goes with them."""
    array = as_floats(name, times)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} has shape {array.shape}; wanted (T,) with T >= 1")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinity; wanted finite numbers")
    order = np.argsort(array, kind="stable")
    return array[order], order


def as_names(class_names: Sequence[Any]) -> list[str]:
    """The names as text; there must be some."""
    names = [str(name) for name in class_names]
    if not names:
        raise ValueError("class_names is empty; wanted at least one")
    return names


def as_codes(
    name: str,
    labels: ArrayLike,
    class_names: Sequence[Any],
    *,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Positions in `class_names`, -1 for what has no class."""
    array = np.asarray(labels)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; wanted {shape}")
    if array.dtype.kind in "iu" and all(isinstance(known, str) for known in class_names):
        if array.size and array.max() >= len(class_names):
            raise ValueError(f"{name} has class {array.max()}; wanted 0 .. {len(class_names) - 1}")
        return np.maximum(array.astype(int), -1)
    places = {known: i for i, known in enumerate(class_names)}
    codes = np.full(array.shape, -1)
    for where, label in np.ndenumerate(array):
        if label is None or label != label:  # NaN alone differs from itself
            continue
        if label not in places:
            raise ValueError(f"{name} has {label!r}; wanted one of {list(class_names)}")
        codes[where] = places[label]
    return codes


def numbers_of(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """(len(rows),), NaN where a row has no number."""
    numbers = (row.get(key) for row in rows)
    return np.array([math.nan if number is None else number for number in numbers], dtype=float)


def span(times: np.ndarray) -> tuple[float, float]:
    """The first and last of sorted times, apart even where they are one."""
    low, high = float(times[0]), float(times[-1])
    return (low, high) if high > low else (low - 0.5, high + 0.5)
