"""Helpers for tables that data sets are published as."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd


def encode_categories(column: pd.Series, codes: Mapping[str, int], expected: str) -> np.ndarray:
    """Replaces the entries of a categorical column by their codes.

    Args:
        column: (R,) of dtype category; the code of a missing entry has no meaning.
        codes: Code of each known category.
        expected: Start of the error message, "FILE must be ...".

    Raises:
        ValueError: A category has no code.
    """
    names = list(column.cat.categories)
    unknown = sorted(set(names) - set(codes))
    if unknown:
        raise ValueError(f"{expected}, got the unknown {column.name} {unknown[0]!r}")
    return np.array([codes[name] for name in names])[column.cat.codes.to_numpy()]


def average_cells(cell: np.ndarray, values: np.ndarray, n_cells: int) -> np.ndarray:
    """Averages values (R,) over the cell (R,) that each belongs to: (n_cells,), NaN if empty."""
    count = np.bincount(cell, minlength=n_cells).astype(np.float64)
    count[count == 0] = np.nan  # the sum of an empty cell is 0, its mean shall be NaN
    return np.bincount(cell, weights=values, minlength=n_cells) / count


def format_error(error: Exception) -> str:
    """Returns the message of a pandas error without its line breaks."""
    return " ".join(str(error).split())
