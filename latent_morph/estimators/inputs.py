"""Conversion and checks of inputs: tables, query times and sample weights."""

import numpy as np
import torch
from sklearn.utils.validation import _check_sample_weight, check_consistent_length
from torch import Tensor

from latent_morph.series import Data, SeriesBatch


def is_table(X: Data) -> bool:
    """Returns whether X is a 2-D table of numbers, which scikit-learn can check."""
    if isinstance(X, (SeriesBatch, Tensor)):
        return False
    if hasattr(X, "ndim"):
        return X.ndim < 3 and not (X.ndim == 1 and X.dtype == object)
    if not isinstance(X, (list, tuple)):
        return True
    # Nested lists may be a table; arrays in a list are series, even of equal length.
    return (
        len(X) > 0
        and all(isinstance(row, list) and len(row) == len(X[0]) for row in X)
        and not any(np.ndim(cell) for row in X for cell in row)
    )


def as_query_times(name: str, times: Data) -> Tensor:
    """Converts query times to float64; timedeltas become seconds."""
    try:
        raw = np.asarray(times)
        if raw.dtype.kind == "m":
            raw = raw / np.timedelta64(1, "s")
        if raw.dtype.kind == "M":
            raise TypeError("dates have no meaning where time starts with each series")
        raw = raw.astype(np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(
            f"{name} must be numbers in the units of the data, got {times!r}"
        ) from problem
    if not np.isfinite(raw).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return torch.from_numpy(raw)


def select_weighted_cases(
    batch: SeriesBatch, sample_weight: Data, groups: Data
) -> tuple[np.ndarray | slice, np.ndarray | None, Data]:
    """Returns the cases of positive weight, their weights and their groups.

    Raises:
        ValueError: The number of weights or groups is not that of cases, or no weight is positive.
    """
    if groups is not None:
        check_consistent_length(batch.values, groups)
    if sample_weight is None:
        return slice(None), None, groups
    weight = _check_sample_weight(
        sample_weight, batch.values, dtype=np.float64, ensure_non_negative=True
    )
    chosen = np.flatnonzero(weight)
    if not len(chosen):
        raise ValueError("sample_weight must be positive for some series, got zero for all")
    return chosen, weight[chosen], None if groups is None else np.asarray(groups)[chosen]
