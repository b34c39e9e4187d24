"""Conversions: arrays, lists, frames and long tables to a `SeriesBatch`."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from latent_morph.series.batch import Data, SeriesBatch, kind

if TYPE_CHECKING:
    import pandas as pd


def as_series(X: Data, *, dtype: torch.dtype = torch.float32) -> SeriesBatch:
    """Converts whatever an estimator accepts into a SeriesBatch. NaN is missing throughout.

    Args:
        X: One of
            - a SeriesBatch: returned as it is, `dtype` notwithstanding;
            - an array or tensor (N, T), one channel, or (N, T, C); times are 0 .. T-1, and every
              row counts as a time point, missing or not;
            - a wide DataFrame, rows being cases: as the array (N, T) of its values;
            - a list, tuple or 1-D object array of cases, each an array-like (T_i,) or (T_i, C)
              with times 0 .. T_i-1; `[[1., 2.], [3., 4.]]` is two cases of two points;
            - the same of *tuples* `(times, values)`, see `SeriesBatch.from_ragged`;
            - the same of DataFrames or Series, whose index carries the times: numbers and
              timedeltas (in seconds) as they are, datetimes as seconds since the frame's first.
              Columns are matched by name, in the order of the first frame.
        dtype: Dtype of the values. Ask for float64 where small changes ride on large offsets,
            and convert after scaling.

    Returns:
        A batch of shape (N, T, C). Within each case rows are sorted stably by time.

    Raises:
        TypeError: X is of no such kind.
        ValueError: X is of such a kind but malformed; the message names the case.
    """
    if isinstance(X, SeriesBatch):
        return X
    if isinstance(X, Tensor):
        return _from_dense(X.detach(), dtype)
    if _is_pandas(X, "DataFrame"):
        if X.index.nlevels > 1:
            raise ValueError("X is a DataFrame with a MultiIndex; use from_long for long tables")
        return _from_dense(_as_floats(X, "X"), dtype)
    if isinstance(X, np.ndarray) and not (X.dtype == object and X.ndim == 1):
        return _from_dense(_as_floats(X, "X"), dtype)
    if isinstance(X, (list, tuple, np.ndarray)):
        return _from_cases(list(X), dtype)
    raise TypeError(f"X is {kind(X)}; wanted arrays, a list of cases or a SeriesBatch")


def from_long(
    frame: pd.DataFrame,
    id: Hashable,
    time: Hashable,
    columns: Sequence[Hashable] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> SeriesBatch:
    """Reads a long table: one row for each time point of each case.

    Args:
        frame: The table. Rows may come in any order; rows of equal id and time stay apart.
        id: Name of the column that tells cases apart. Cases come out in order of first
            appearance, so that their ids are `frame[id].unique()`.
        time: Name of the column of times. Numbers and timedeltas (in seconds) are taken as they
            are, datetimes as seconds since the first of their case.
        columns: Names of the channels; by default every other numeric column. NaN is missing.
        dtype: Dtype of the values.

    Returns:
        A batch of shape (number of ids, T, number of columns).

    Raises:
        TypeError: `frame` is no DataFrame.
        ValueError: A column is absent or not numeric, or an id or a time is missing.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(f"frame is {kind(frame)}; wanted a pandas DataFrame")
    if columns is None:
        numeric = frame.select_dtypes(include=["number", "bool"]).columns
        columns = [name for name in numeric if name not in (id, time)]
    elif isinstance(columns, str):
        columns = [columns]
    absent = [name for name in (id, time, *columns) if name not in frame.columns]
    if absent:
        raise ValueError(f"frame has no column {absent}; it has {list(frame.columns)}")
    if not len(columns):
        raise ValueError("columns is empty; wanted at least one numeric column besides id, time")
    if not len(frame):
        raise ValueError("frame has no rows; wanted at least one")
    case, ids = pd.factorize(frame[id])
    if (case < 0).any():
        raise ValueError(f"the id column {id!r} has missing entries; wanted an id in every row")
    stamps = frame[time]
    clock = _as_clock(stamps.values if stamps.dtype.kind in "mM" else stamps.to_numpy(), time)
    if clock.dtype.kind == "M":
        order = np.lexsort((clock, case))  # NaT sorts last, so a case's first is a real stamp
        first = np.searchsorted(case[order], np.arange(len(ids)))
        clock = clock - clock[order][first][case]
    values = _as_floats(frame[list(columns)], "columns")
    return pack_rows(case, _seconds(clock), values, len(ids), dtype=dtype)


def pack_rows(
    case: np.ndarray,
    times: np.ndarray,
    values: np.ndarray,
    n_cases: int,
    *,
    dtype: torch.dtype = torch.float32,
) -> SeriesBatch:
    """Packs rows that each say which case they belong to; the other conversions end here.

    Args:
        case: (R,) integers in 0 .. n_cases-1, each occurring at least once.
        times: (R,) float64.
        values: (R, C), NaN where missing.
        n_cases: N.
        dtype: Dtype of the packed values.

    Returns:
        A batch of shape (N, T, C), rows sorted stably by time within their case.
    """
    _reject(~np.isfinite(times), case, "has a time that is NaN or infinite; wanted a number")
    _reject(np.isinf(values).any(1), case, "has an infinite value; wanted a number or NaN")
    lengths = np.bincount(case, minlength=n_cases)
    if (np.diff(case) < 0).any() or ((np.diff(times) < 0) & (np.diff(case) == 0)).any():
        order = np.lexsort((times, case))
        case, times, values = case[order], times[order], values[order]
    observed = ~np.isnan(values)
    flat = torch.from_numpy(np.where(observed, values, 0.0)).to(dtype)
    _reject(~torch.isfinite(flat).all(1).numpy(), case, f"has a value too large for {dtype}")

    # Gathering with the position held at the last real row repeats its time in the padding.
    width = int(lengths.max(initial=0))
    position = np.minimum(np.arange(width), lengths[:, None] - 1)
    row = torch.from_numpy((np.cumsum(lengths) - lengths)[:, None] + position)
    real = torch.from_numpy(np.arange(width) < lengths[:, None]).unsqueeze(-1)
    mask = torch.from_numpy(observed)[row] & real
    return SeriesBatch(
        values=flat[row].masked_fill_(~mask, 0.0),
        times=torch.tensor(times)[row],
        mask=mask,
        lengths=torch.from_numpy(lengths.astype(np.int64)),
    )


def _from_dense(X: np.ndarray | Tensor, dtype: torch.dtype) -> SeriesBatch:
    # torch warns of arrays that are read-only and refuses those with negative strides.
    raw = X if isinstance(X, Tensor) else torch.from_numpy(np.require(X, requirements=["C", "W"]))
    if raw.ndim not in (2, 3) or 0 in raw.shape[1:]:
        raise ValueError(
            f"X has shape {tuple(raw.shape)}; wanted (N, T) or (N, T, C) with T, C >= 1"
        )
    if raw.is_complex():
        raise ValueError("X is complex; wanted real numbers")
    raw = raw.unsqueeze(-1) if raw.ndim == 2 else raw
    if bool(torch.isinf(raw).any()):
        raise ValueError("X has an infinite value; wanted numbers or NaN")
    mask = ~torch.isnan(raw)
    values = torch.where(mask, raw, 0).to(dtype)
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"X has a value too large for {dtype}")
    n_cases, n_times, _ = raw.shape
    times = torch.arange(n_times, dtype=torch.float64, device=raw.device).repeat(n_cases, 1)
    lengths = torch.full((n_cases,), n_times, dtype=torch.int64, device=raw.device)
    return SeriesBatch._trusted(values, times, mask, lengths)


def _from_cases(cases: list[Data], dtype: torch.dtype) -> SeriesBatch:
    if cases and all(isinstance(case, SeriesBatch) for case in cases):
        return SeriesBatch.concatenate(cases)
    if any(_is_pandas(case, "DataFrame", "Series") for case in cases):
        return _from_frames(cases, dtype)
    if cases and all(is_timed(case) for case in cases):
        return SeriesBatch.from_ragged(cases, dtype=dtype)
    values = [_as_rows(case, i) for i, case in enumerate(cases)]
    clock = np.arange(max((len(rows) for rows in values), default=0), dtype=np.float64)
    return _pack_cases([clock[: len(rows)] for rows in values], values, dtype)


def _from_frames(cases: list[Data], dtype: torch.dtype) -> SeriesBatch:
    times, values, names = [], [], None
    for i, case in enumerate(cases):
        if not _is_pandas(case, "DataFrame", "Series"):
            raise ValueError(f"case {i} is {kind(case)}; wanted a DataFrame like the others")
        # The name of a Series usually says which case it is, not which channel.
        frame = case.to_frame(name=0) if case.ndim == 1 else case
        if names is None:
            names = frame.columns
        elif not frame.columns.equals(names):
            if len(frame.columns) != len(names) or set(frame.columns) != set(names):
                raise ValueError(
                    f"case {i} has columns {list(frame.columns)}; wanted {list(names)}"
                )
            frame = frame[names]
        times.append(_as_times(frame.index, f"the index of case {i}"))
        values.append(_as_floats(frame, f"case {i}"))
    return _pack_cases(times, values, dtype)


def _pack_cases(
    times: list[np.ndarray], values: list[np.ndarray], dtype: torch.dtype
) -> SeriesBatch:
    if not values:
        raise ValueError("there are no cases; wanted at least one")
    for i, (clock, rows) in enumerate(zip(times, values, strict=True)):
        if len(rows) == 0 or rows.shape[1] == 0:
            raise ValueError(f"case {i} has shape {rows.shape}; wanted at least one row")
        if len(clock) != len(rows):
            raise ValueError(f"case {i} has {len(clock)} times but {len(rows)} rows of values")
        if rows.shape[1] != values[0].shape[1]:
            raise ValueError(
                f"case {i} has {rows.shape[1]} channels; wanted {values[0].shape[1]} as in case 0 "
                f"(a row is a time, a column a channel)"
            )
    case = np.repeat(np.arange(len(values)), [len(rows) for rows in values])
    return pack_rows(case, np.concatenate(times), np.concatenate(values), len(values), dtype=dtype)


def _as_rows(case: Data, i: int) -> np.ndarray:
    """(T,) or (T, C) of anything numeric -> (T, C) float64."""
    rows = _as_floats(case, f"case {i}")
    if rows.ndim not in (1, 2):
        raise ValueError(f"case {i} has shape {rows.shape}; wanted (T,) or (T, C)")
    return rows[:, None] if rows.ndim == 1 else rows


def _as_floats(data: Data, name: str) -> np.ndarray:
    if isinstance(data, Tensor):
        data = data.detach().cpu().numpy()
    try:
        framed = _is_pandas(data, "DataFrame", "Series")
        array = data.to_numpy() if framed else np.asarray(data)
        if array.dtype.kind in "fiub":
            return array.astype(np.float64, copy=False)
        if array.dtype.kind != "O":
            raise ValueError(f"its dtype is {array.dtype}")
        # Objects may be numbers all the same; only pandas knows what to do with its own NA.
        return data.to_numpy(float, na_value=np.nan) if framed else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} does not convert to numbers: {error}") from error


def _as_times(times: Data, name: str) -> np.ndarray:
    """Times of one case -> (T,) float64; datetimes relative to the first of them."""
    if isinstance(times, Tensor):
        times = times.detach().cpu().numpy()
    elif _is_pandas(times, "DatetimeIndex", "TimedeltaIndex", "Series"):
        times = times.values  # unlike np.asarray, gives plain UTC stamps where a zone is set
    clock = _as_clock(np.asarray(times), name)
    if clock.ndim != 1:
        raise ValueError(f"{name} have shape {clock.shape}; wanted (T,)")
    if clock.dtype.kind == "M" and len(clock):
        clock = clock - clock.min()
    return _seconds(clock)


def _as_clock(times: np.ndarray, name: Hashable) -> np.ndarray:
    """Leaves datetime64 and timedelta64 alone and turns anything else into float64."""
    if times.dtype.kind in "mM":
        return np.asarray(times)
    try:
        return np.asarray(times, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: times must be numbers, datetimes or timedeltas") from error


def _seconds(clock: np.ndarray) -> np.ndarray:
    """Differences are taken before this, in whole clock units, so that none is rounded away."""
    return clock / np.timedelta64(1, "s") if clock.dtype.kind == "m" else clock


def _reject(bad: np.ndarray, case: np.ndarray, complaint: str) -> None:
    if bad.any():
        raise ValueError(f"case {case[bad.argmax()]} {complaint}")


def is_timed(case: Data) -> bool:
    """Whether a case is a pair `(times, values)`."""
    # Only a tuple can be a pair: a list or array of two is a series of two points.
    return isinstance(case, tuple) and len(case) == 2 and not np.isscalar(case[0])


def _is_pandas(X: object, *names: str) -> bool:
    pandas = sys.modules.get("pandas")  # nothing can be of its types before it is imported
    return pandas is not None and isinstance(X, tuple(getattr(pandas, name) for name in names))


def pack_pairs(cases: Iterable[tuple[Data, Data]], *, dtype: torch.dtype) -> SeriesBatch:
    """Packs `(times, values)` pairs; see `SeriesBatch.from_ragged`."""
    pairs = list(cases)
    for i, pair in enumerate(pairs):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"case {i} is {kind(pair)}; wanted a pair (times, values)")
    times = [_as_times(pair[0], f"the times of case {i}") for i, pair in enumerate(pairs)]
    values = [_as_rows(pair[1], i) for i, pair in enumerate(pairs)]
    return _pack_cases(times, values, dtype)
