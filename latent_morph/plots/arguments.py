"""Checks and conversions of arguments: times, numbers and labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def as_floats(name: str, data: ArrayLike, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Converts data to floats and checks the shape, if one is given."""
    array = np.asarray(data, dtype=float)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array


def as_times(name: str, times: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns sorted times (T,), and the order (T,) that sorts them."""
    array = as_floats(name, times)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} must have shape (T,) with T >= 1, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    order = np.argsort(array, kind="stable")
    return array[order], order


def as_class_names(class_names: Sequence[Any]) -> list[str]:
    """Converts names to strings and checks that there are any."""
    names = [str(name) for name in class_names]
    if not names:
        raise ValueError("class_names must have at least one name, got none")
    return names


def as_channel_names(names: Sequence[str], n_channels: int) -> list[str]:
    """Converts names to strings and checks their number."""
    if len(names) != n_channels:
        raise ValueError(f"channel_names must have {n_channels} names, got {len(names)}")
    return [str(name) for name in names]


def as_codes(
    name: str,
    labels: ArrayLike,
    class_names: Sequence[Any],
    *,
    shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """Converts labels to positions in `class_names`, -1 for no class."""
    array = np.asarray(labels)
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.kind in "iu" and all(isinstance(known, str) for known in class_names):
        if array.size and array.max() >= len(class_names):
            raise ValueError(f"{name} must be at most {len(class_names) - 1}, got {array.max()}")
        return np.maximum(array.astype(int), -1)
    positions = {known: i for i, known in enumerate(class_names)}
    codes = np.full(array.shape, -1)
    for index, label in np.ndenumerate(array):
        if label is None or label != label:  # NaN alone differs from itself
            continue
        if label not in positions:
            raise ValueError(f"{name} must be among {list(class_names)}, got {label!r}")
        codes[index] = positions[label]
    return codes


def get_column(rows: Sequence[Mapping[str, Any]], key: str) -> np.ndarray:
    """Returns the numbers under `key`, shape (len(rows),), NaN if a row has none."""
    numbers = (row.get(key) for row in rows)
    return np.array([math.nan if number is None else number for number in numbers], dtype=float)


def get_limits(times: np.ndarray) -> tuple[float, float]:
    """Returns axis limits around sorted times; a single time gets a margin of 0.5."""
    low, high = float(times[0]), float(times[-1])
    return (low, high) if high > low else (low - 0.5, high + 0.5)
