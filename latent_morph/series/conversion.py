"""Conversions of arrays, lists, data frames and long tables to a `SeriesBatch`."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from latent_morph.series.batch import Data, SeriesBatch

if TYPE_CHECKING:
    import pandas as pd


def as_series(X: Data, *, dtype: torch.dtype = torch.float32) -> SeriesBatch:
    """Converts every input that an estimator accepts to a SeriesBatch. NaN means missing.

    Args:
        X: One of
            - a SeriesBatch: returned unchanged, whatever `dtype` is;
            - an array or tensor (N, T), one channel, or (N, T, C); times are 0 .. T-1, and every
              row counts as a time point, missing or not;
            - a wide DataFrame with one case per row, read as an array (N, T);
            - a list, tuple or 1-D object array of cases, each an array-like (T_i,) or (T_i, C)
              with times 0 .. T_i-1; `[[1., 2.], [3., 4.]]` is two cases of two points;
            - a list of *tuples* `(times, values)`, see `SeriesBatch.from_ragged`;
            - a list of DataFrames or Series whose index holds the times: numbers unchanged,
              timedeltas in seconds, datetimes in seconds since the first of the frame. Columns
              are matched by name, in the order of the first frame.
        dtype: Dtype of the values. With small changes on large offsets, use float64 and convert
            after scaling.

    Returns:
        A batch of shape (N, T, C). Within each case rows are sorted stably by time.

    Raises:
        TypeError: X is of another type.
        ValueError: X is malformed; the message names the case.
    """
    if isinstance(X, SeriesBatch):
        return X
    if isinstance(X, Tensor):
        return _from_dense(X.detach(), dtype)
    if _is_pandas(X, "DataFrame"):
        if X.index.nlevels > 1:
            raise ValueError(
                "X must be a wide DataFrame, got a MultiIndex; use from_long for long tables"
            )
        return _from_dense(_as_floats(X, "X"), dtype)
    if isinstance(X, np.ndarray) and not (X.dtype == object and X.ndim == 1):
        return _from_dense(_as_floats(X, "X"), dtype)
    if isinstance(X, (list, tuple, np.ndarray)):
        return _from_cases(list(X), dtype)
    raise TypeError(
        f"X must be an array, a list of cases or a SeriesBatch, got {type(X).__name__}"
    )


def from_long(
    frame: pd.DataFrame,
    id: Hashable,
    time: Hashable,
    columns: Sequence[Hashable] | None = None,
    *,
    static: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
) -> SeriesBatch:
    """Converts a long table, which has one row per case and time point.

    Args:
        frame: The table. Rows may come in any order; rows of equal id and time stay apart.
        id: Name of the column that identifies the case. Cases are in order of first appearance:
            their ids are `frame[id].unique()`.
        time: Name of the column of times: numbers, timedeltas (converted to seconds), or
            datetimes (converted to seconds since the first of their case).
        columns: Names of the channels; by default every other numeric column. NaN means missing.
        static: Names of the columns of facts that do not change over time, such as age or sex,
            numbers or categories. The value of a case may be missing in some of its rows, or all.
        dtype: Dtype of the values.

    Returns:
        A batch of shape (number of ids, T, number of columns).

    Raises:
        TypeError: `frame` is not a DataFrame.
        ValueError: A column is absent or not numeric, an id or a time is missing, or a case has
            two values of one fact.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame must be a pandas DataFrame, got {type(frame).__name__}")
    static = [static] if isinstance(static, str) else list(static)
    if columns is None:
        numeric = frame.select_dtypes(include=["number", "bool"]).columns
        columns = [name for name in numeric if name not in (id, time, *static)]
    elif isinstance(columns, str):
        columns = [columns]
    twice = [name for name in static if name in (id, time, *columns)]
    if twice:
        raise ValueError(f"static must have other columns than id, time and columns, got {twice}")
    absent = [name for name in (id, time, *columns, *static) if name not in frame.columns]
    if absent:
        raise ValueError(f"frame must have columns {absent}, got {list(frame.columns)}")
    if not len(columns):
        raise ValueError("columns must have at least one numeric column, got none")
    if not len(frame):
        raise ValueError("frame must have at least one row, got none")
    case, ids = pd.factorize(frame[id])
    if (case < 0).any():
        raise ValueError(f"column {id!r} of frame must have an id in every row, got missing ones")
    column = frame[time]
    times = _check_time_dtype(
        column.values if column.dtype.kind in "mM" else column.to_numpy(),
        f"column {time!r} of frame",
    )
    if times.dtype.kind == "M":
        order = np.lexsort((times, case))  # NaT sorts last, so the first of a case is a datetime
        first = np.searchsorted(case[order], np.arange(len(ids)))
        times = times - times[order][first][case]
    values = _as_floats(frame[list(columns)], "columns")
    batch = pack_rows(case, _to_seconds(times), values, len(ids), dtype=dtype, name="frame")
    return batch.with_static(_gather_facts(frame[static], case, ids)) if static else batch


def _gather_facts(facts: pd.DataFrame, case: np.ndarray, ids: Sequence[Hashable]) -> pd.DataFrame:
    """Returns the one known value of each fact and case, given the case of each row."""
    by_case = facts.groupby(case)
    for name in facts.columns:
        n_values = by_case[name].nunique().to_numpy()
        if (n_values > 1).any():
            raise ValueError(
                f"column {name!r} of frame must have one value per case, "
                f"got {n_values[n_values.argmax()]} in case {ids[n_values.argmax()]!r}"
            )
    return by_case.first()


def pack_rows(
    case: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    n_cases: int,
    *,
    dtype: torch.dtype = torch.float32,
    name: str = "X",
) -> SeriesBatch:
    """Packs the rows of all cases, given the case of each row.

    Args:
        case: (R,) integers in 0 .. n_cases-1, each occurring at least once.
        times: (R,) float64.
        values: (R, C), NaN where missing.
        n_cases: N.
        dtype: Dtype of the packed values.
        name: The caller's argument, for error messages.

    Returns:
        A batch of shape (N, T, C), rows sorted stably by time within their case.
    """

    def reject(invalid: np.ndarray, message: str) -> None:
        if invalid.any():
            raise ValueError(f"case {case[invalid.argmax()]} of {name} {message}")

    reject(~np.isfinite(times), "must have finite times, got NaN or infinity")
    reject(np.isinf(values).any(1), "must have finite values or NaN, got infinity")
    lengths = np.bincount(case, minlength=n_cases)
    if (np.diff(case) < 0).any() or ((np.diff(times) < 0) & (np.diff(case) == 0)).any():
        order = np.lexsort((times, case))
        case, times, values = case[order], times[order], values[order]
    observed = ~np.isnan(values)
    flat = torch.from_numpy(np.where(observed, values, 0.0)).to(dtype)
    reject(~torch.isfinite(flat).all(1).numpy(), f"must have values within {dtype}, got overflow")

    # Clipping the position at the last real row repeats its time in the padding.
    n_times = int(lengths.max(initial=0))
    position = np.minimum(np.arange(n_times), lengths[:, None] - 1)
    row = torch.from_numpy((np.cumsum(lengths) - lengths)[:, None] + position)
    present = torch.from_numpy(np.arange(n_times) < lengths[:, None]).unsqueeze(-1)
    mask = torch.from_numpy(observed)[row] & present
    return SeriesBatch(
        values=flat[row].masked_fill_(~mask, 0.0),
        times=torch.tensor(times)[row],
        mask=mask,
        lengths=torch.from_numpy(lengths.astype(np.int64)),
    )


def _from_dense(X: np.ndarray | Tensor, dtype: torch.dtype) -> SeriesBatch:
    # torch warns about read-only arrays and rejects negative strides.
    raw = X if isinstance(X, Tensor) else torch.from_numpy(np.require(X, requirements=["C", "W"]))
    if raw.ndim not in (2, 3) or 0 in raw.shape[1:]:
        raise ValueError(
            f"X must have shape (N, T) or (N, T, C) with T, C >= 1, got {tuple(raw.shape)}"
        )
    if raw.is_complex():
        raise ValueError(f"X must be real, got {raw.dtype}")
    raw = raw.unsqueeze(-1) if raw.ndim == 2 else raw
    if bool(torch.isinf(raw).any()):
        raise ValueError("X must be finite or NaN, got infinity")
    mask = ~torch.isnan(raw)
    values = torch.where(mask, raw, 0).to(dtype)
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"X must have values within {dtype}, got overflow")
    n_cases, n_times, _ = raw.shape
    times = torch.arange(n_times, dtype=torch.float64, device=raw.device).repeat(n_cases, 1)
    lengths = torch.full((n_cases,), n_times, dtype=torch.int64, device=raw.device)
    return SeriesBatch._unchecked(values, times, mask, lengths, None)


def _from_cases(cases: list[Data], dtype: torch.dtype) -> SeriesBatch:
    if cases and all(isinstance(case, SeriesBatch) for case in cases):
        return SeriesBatch.concatenate(cases)
    if any(_is_pandas(case, "DataFrame", "Series") for case in cases):
        return _from_frames(cases, dtype)
    if cases and all(is_timed(case) for case in cases):
        return SeriesBatch.from_ragged(cases, dtype=dtype)
    values = [_as_rows(case, i) for i, case in enumerate(cases)]
    return _pack_cases([np.arange(len(rows), dtype=np.float64) for rows in values], values, dtype)


def _from_frames(cases: list[Data], dtype: torch.dtype) -> SeriesBatch:
    times, values, names = [], [], None
    for i, case in enumerate(cases):
        if not _is_pandas(case, "DataFrame", "Series"):
            raise ValueError(
                f"case {i} of X must be a DataFrame like the others, got {type(case).__name__}"
            )
        # The name of a Series usually identifies the case, not the channel.
        frame = case.to_frame(name=0) if case.ndim == 1 else case
        if names is None:
            names = frame.columns
        elif not frame.columns.equals(names):
            if len(frame.columns) != len(names) or set(frame.columns) != set(names):
                raise ValueError(
                    f"case {i} of X must have columns {list(names)}, got {list(frame.columns)}"
                )
            frame = frame[names]
        times.append(_as_times(frame.index, f"the index of case {i} of X"))
        values.append(_as_floats(frame, f"case {i} of X"))
    return _pack_cases(times, values, dtype)


def _pack_cases(
    times: list[np.ndarray], values: list[np.ndarray], dtype: torch.dtype
) -> SeriesBatch:
    if not values:
        raise ValueError("X must have at least one case, got none")
    n_channels = values[0].shape[1]
    for i, (case_times, rows) in enumerate(zip(times, values, strict=True)):
        if 0 in rows.shape:
            raise ValueError(f"case {i} of X must have at least one value, got shape {rows.shape}")
        if len(case_times) != len(rows):
            raise ValueError(
                f"case {i} of X must have one time per row of values, "
                f"got {len(case_times)} times and {len(rows)} rows"
            )
        if rows.shape[1] != n_channels:
            raise ValueError(
                f"case {i} of X must have {n_channels} channels like case 0, got {rows.shape[1]} "
                "(a row is a time, a column a channel)"
            )
    case = np.repeat(np.arange(len(values)), [len(rows) for rows in values])
    return pack_rows(case, np.concatenate(times), np.concatenate(values), len(values), dtype=dtype)


def _as_rows(case: Data, i: int) -> np.ndarray:
    """Converts numeric values (T,) or (T, C) of case i to (T, C) float64."""
    rows = _as_floats(case, f"case {i} of X")
    if rows.ndim not in (1, 2):
        raise ValueError(f"case {i} of X must have shape (T,) or (T, C), got {rows.shape}")
    return rows[:, None] if rows.ndim == 1 else rows


def _as_floats(data: Data, name: str) -> np.ndarray:
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    try:
        is_frame = _is_pandas(data, "DataFrame", "Series")
        array = data.to_numpy() if is_frame else np.asarray(data)
        if array.dtype.kind in "fiub":
            return array.astype(np.float64, copy=False)
        if array.dtype.kind != "O":
            raise ValueError(f"dtype {array.dtype}")
        # Objects may be numbers all the same; only pandas converts its own NA.
        return data.to_numpy(float, na_value=np.nan) if is_frame else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numeric, got {type(data).__name__}: {error}") from error


def _as_times(times: Data, name: str) -> np.ndarray:
    """Converts the times of one case to (T,) float64, datetimes relative to the first."""
    if isinstance(times, Tensor):
        times = times.detach().cpu().numpy()
    elif _is_pandas(times, "DatetimeIndex", "TimedeltaIndex", "Series"):
        times = times.values  # unlike np.asarray, gives datetime64 in UTC if there is a time zone
    array = _check_time_dtype(np.asarray(times), name)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (T,), got {array.shape}")
    if array.dtype.kind == "M" and len(array):
        array = array - array.min()
    return _to_seconds(array)


def _check_time_dtype(times: np.ndarray, name: str) -> np.ndarray:
    """Returns datetime64 and timedelta64 unchanged, anything else as float64."""
    if times.dtype.kind in "mM":
        return times
    try:
        return np.asarray(times, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be numbers, datetimes or timedeltas, got dtype {times.dtype}"
        ) from error


def _to_seconds(times: np.ndarray) -> np.ndarray:
    # Differences are taken before this, in integer units, so that none is rounded away.
    return times / np.timedelta64(1, "s") if times.dtype.kind == "m" else times


def is_timed(case: Data) -> bool:
    """Whether a case is a pair `(times, values)`."""
    # Only a tuple can be a pair: a list or array of length two is a series of two points.
    return isinstance(case, tuple) and len(case) == 2 and not np.isscalar(case[0])


def _is_pandas(X: object, *names: str) -> bool:
    pandas = sys.modules.get("pandas")  # before its import no object can have its types
    return pandas is not None and isinstance(X, tuple(getattr(pandas, name) for name in names))


def pack_pairs(cases: Iterable[tuple[Data, Data]], *, dtype: torch.dtype) -> SeriesBatch:
    """Packs `(times, values)` pairs; see `SeriesBatch.from_ragged`."""
    pairs = list(cases)
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(
                f"case {i} of X must be a pair (times, values), got {type(pair).__name__}"
            )
    times = [_as_times(pair[0], f"the times of case {i} of X") for i, pair in enumerate(pairs)]
    values = [_as_rows(pair[1], i) for i, pair in enumerate(pairs)]
    return _pack_cases(times, values, dtype)
