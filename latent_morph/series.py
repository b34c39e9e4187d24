"""SeriesBatch, the one container for irregular series, and the conversions that lead to it."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

# Arrays, tensors, frames and nested lists have no common type short of anything at all.
Data: TypeAlias = Any

_VALUE_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class SeriesBatch:
    """N series of C channels, each on its own time axis, padded to a common T.

    Attributes:
        values: (N, T, C), float32 or float64, finite everywhere. What sits where `mask` is False
            has no meaning.
        times: (N, T), float64 whatever the dtype of `values`, so that epoch seconds keep their
            fractions. Finite, non-decreasing in each row; padding repeats the last real time.
        mask: (N, T, C), bool: the only authority on what was observed. A zero is a value.
        lengths: (N,), int64, the number of real rows of each case, T by default. Rows beyond it
            are padding. A row within it whose channels are all missing is still a time point.

    Raises:
        TypeError: A field is no tensor or has another dtype.
        ValueError: Shapes disagree, or one of the rules above is broken.
    """

    values: Tensor
    times: Tensor
    mask: Tensor
    lengths: Tensor = None  # type: ignore[assignment]  # filled in below, never None afterwards

    def __post_init__(self) -> None:
        _check_tensor("values", self.values, _VALUE_DTYPES)
        _check_tensor("times", self.times, (torch.float64,))
        _check_tensor("mask", self.mask, (torch.bool,))
        if self.values.ndim != 3 or 0 in self.values.shape[1:]:
            raise ValueError(
                f"values has shape {tuple(self.values.shape)}; wanted (N, T, C) with T, C >= 1"
            )
        n_cases, n_times, _ = self.values.shape
        if self.lengths is None:
            full = torch.full((n_cases,), n_times, dtype=torch.int64, device=self.values.device)
            object.__setattr__(self, "lengths", full)
        _check_tensor("lengths", self.lengths, (torch.int64,))
        for name, field, shape in (
            ("times", self.times, (n_cases, n_times)),
            ("mask", self.mask, tuple(self.values.shape)),
            ("lengths", self.lengths, (n_cases,)),
        ):
            if tuple(field.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(field.shape)}; wanted {shape}")
            if field.device != self.values.device:
                raise ValueError(f"{name} is on {field.device}, values on {self.values.device}")
        if not bool(torch.isfinite(self.values).all()):
            raise ValueError("values holds NaN or infinity; mark missing values in mask instead")
        if not bool(torch.isfinite(self.times).all()):
            raise ValueError("times holds NaN or infinity; wanted finite numbers")
        if bool((self.times[:, 1:] < self.times[:, :-1]).any()):
            raise ValueError("times decreases within a case; wanted non-decreasing rows")
        if bool(((self.lengths < 1) | (self.lengths > n_times)).any()):
            raise ValueError(f"lengths must lie between 1 and T = {n_times}")
        padding = ~self.present
        if bool((self.mask & padding.unsqueeze(-1)).any()):
            raise ValueError("mask is True beyond the length of a case; padding is unobserved")
        last = self.times.gather(1, self.lengths.unsqueeze(1) - 1)
        if bool(((self.times != last) & padding).any()):
            raise ValueError("times moves on in the padding; wanted the last real time repeated")

    @classmethod
    def _trusted(cls, values: Tensor, times: Tensor, mask: Tensor, lengths: Tensor) -> SeriesBatch:
        """Builds from parts already known to obey the rules, without looking at every element."""
        batch = object.__new__(cls)
        for name, field in zip(
            ("values", "times", "mask", "lengths"), (values, times, mask, lengths), strict=True
        ):
            object.__setattr__(batch, name, field)
        return batch

    @classmethod
    def from_ragged(
        cls, cases: Iterable[tuple[Data, Data]], *, dtype: torch.dtype = torch.float32
    ) -> SeriesBatch:
        """Packs `(times, values)` pairs of unequal length.

        Args:
            cases: Pairs of times (T_i,) and values (T_i,) or (T_i, C); NaN is missing. Rows are
                sorted stably by time; repeated times are legal. datetime64 times become seconds
                since the first of their case, timedelta64 times become seconds.
            dtype: Dtype of the packed values.

        Returns:
            A batch of shape (N, max T_i, C).

        Raises:
            ValueError: A case is empty, misshapen, or holds a non-finite time or infinite value.
        """
        pairs = list(cases)
        for i, pair in enumerate(pairs):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise ValueError(f"case {i} is {_kind(pair)}; wanted a pair (times, values)")
        times = [_as_times(pair[0], f"the times of case {i}") for i, pair in enumerate(pairs)]
        values = [_as_rows(pair[1], i) for i, pair in enumerate(pairs)]
        return _pack_cases(times, values, dtype)

    @classmethod
    def concatenate(cls, batches: Iterable[SeriesBatch]) -> SeriesBatch:
        """Joins batches of equal C along the case axis, padding to the longest T."""
        parts = list(batches)
        if not parts:
            raise ValueError("batches is empty; wanted at least one SeriesBatch")
        n_channels = {part.n_channels for part in parts}
        if len(n_channels) > 1:
            raise ValueError(f"batches differ in channels: {sorted(n_channels)}; wanted one count")
        width = max(part.n_times for part in parts)
        parts = [part._widen(width) for part in parts]
        return cls._trusted(
            torch.cat([part.values for part in parts]),
            torch.cat([part.times for part in parts]),
            torch.cat([part.mask for part in parts]),
            torch.cat([part.lengths for part in parts]),
        )

    @property
    def n_cases(self) -> int:
        """N, the number of series."""
        return self.values.shape[0]

    @property
    def n_times(self) -> int:
        """T, the rows of the longest series."""
        return self.values.shape[1]

    @property
    def n_channels(self) -> int:
        """C, the values of a row."""
        return self.values.shape[2]

    @property
    def shape(self) -> torch.Size:
        """(N, T, C). Its presence makes scikit-learn's splitters index us like an array."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.values.device

    @property
    def observed(self) -> Tensor:
        """(N, T) bool: at least one channel was observed."""
        return self.mask.any(-1)

    @property
    def present(self) -> Tensor:
        """(N, T) bool: the row is a time point of its series, observed or not."""
        return torch.arange(self.n_times, device=self.device) < self.lengths.unsqueeze(1)

    def __len__(self) -> int:
        return self.n_cases

    def __getitem__(self, index: Data) -> SeriesBatch:
        """Selects cases: `batch[index]` or `batch[index, ...]`, the form scikit-learn writes.

        Args:
            index: Integer, slice, or list, array or tensor of integers or booleans. An integer
                gives a batch of one case: the case axis always stays.
        """
        if isinstance(index, tuple):
            if len(index) != 2 or index[1] is not Ellipsis:
                raise IndexError("only cases can be selected: batch[index] or batch[index, ...]")
            index = index[0]
        where = _as_index(index, self.n_cases, self.device)
        return self._trusted(
            self.values[where], self.times[where], self.mask[where], self.lengths[where]
        )

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        # NumPy would otherwise descend into us as a sequence of sequences without end.
        raise TypeError("a SeriesBatch is no array (its times would be lost); use batch.values")

    def __repr__(self) -> str:
        return (
            f"SeriesBatch(n_cases={self.n_cases}, n_times={self.n_times}, "
            f"n_channels={self.n_channels}, dtype={self.values.dtype}, device={self.device})"
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> SeriesBatch:
        """Moves everything to `device` and turns `values`, nothing else, into `dtype`."""
        if dtype is not None and dtype not in _VALUE_DTYPES:
            raise ValueError(f"dtype is {dtype}; wanted torch.float32 or torch.float64")
        return self._trusted(
            self.values.to(device=device, dtype=dtype),
            self.times.to(device=device),
            self.mask.to(device=device),
            self.lengths.to(device=device),
        )

    def trim(self) -> SeriesBatch:
        """Drops the trailing columns that are padding for every case."""
        if self.n_cases == 0:
            return self
        width = int(self.lengths.max())
        return self._trusted(
            self.values[:, :width], self.times[:, :width], self.mask[:, :width], self.lengths
        )

    def to_ragged(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Undoes `from_ragged`: one (times (T_i,), values (T_i, C) with NaN) for each case."""
        values = self.values.masked_fill(~self.mask, torch.nan).cpu().numpy()
        times = self.times.cpu().numpy()
        return [
            (times[i, :length].copy(), values[i, :length].copy())
            for i, length in enumerate(self.lengths.tolist())
        ]

    def _widen(self, width: int) -> SeriesBatch:
        extra = width - self.n_times
        if extra == 0:
            return self
        pad = (0, 0, 0, extra)
        return self._trusted(
            torch.nn.functional.pad(self.values, pad),
            torch.cat([self.times, self.times[:, -1:].expand(-1, extra)], dim=1),
            torch.nn.functional.pad(self.mask, pad),
            self.lengths,
        )


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
    raise TypeError(f"X is {_kind(X)}; wanted arrays, a list of cases or a SeriesBatch")


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
        raise TypeError(f"frame is {_kind(frame)}; wanted a pandas DataFrame")
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
            raise ValueError(f"case {i} is {_kind(case)}; wanted a DataFrame like the others")
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


def _as_index(index: Data, n_cases: int, device: torch.device) -> slice | list[int] | Tensor:
    if isinstance(index, slice):
        if index.step is None or index.step > 0:
            return index
        return torch.tensor(range(n_cases)[index], dtype=torch.int64, device=device)  # torch can't
    if isinstance(index, (bool, np.bool_)):
        raise IndexError("a single boolean selects no cases; wanted integers or a mask (N,)")
    if isinstance(index, (int, np.integer)):
        return [range(n_cases)[index]]
    where = index if isinstance(index, Tensor) else torch.from_numpy(np.array(index))
    if where.numel() == 0 and where.dtype != torch.bool:
        where = where.to(torch.int64)  # NumPy makes an empty list float
    if where.is_floating_point() or where.is_complex():
        raise IndexError(f"index has dtype {where.dtype}; wanted integers or booleans")
    if where.ndim > 1:
        raise IndexError(f"index has shape {tuple(where.shape)}; wanted one axis")
    where = where if where.dtype == torch.bool else where.to(torch.int64)
    return where.reshape(-1).to(device)


def _check_tensor(name: str, field: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(field, Tensor):
        raise TypeError(f"{name} is {_kind(field)}; wanted a torch tensor")
    if field.dtype not in dtypes:
        raise TypeError(f"{name} has dtype {field.dtype}; wanted {' or '.join(map(str, dtypes))}")


def _kind(thing: object) -> str:
    return f"of type {type(thing).__name__}"


def insert_rows(batch: SeriesBatch, times: Tensor) -> tuple[SeriesBatch, Tensor]:
    """Adds unobserved rows at further times, so that something can be asked of them.

    Args:
        batch: (N, T, C).
        times: (N, Q) in any order.

    Returns:
        A batch (N, T + Q, C) sorted by time, padding last, and (N, Q) the row of each query.
    """
    n_cases, n_times, n_channels = batch.shape
    if times.ndim != 2 or len(times) != n_cases:
        raise ValueError(f"times has shape {tuple(times.shape)}; wanted ({n_cases}, Q)")
    n_queries = times.shape[1]
    all_times = torch.cat([batch.times, times.to(batch.times)], dim=1)
    # Padding sorts behind every real row and every query.
    key = all_times.clone()
    key[:, :n_times].masked_fill_(~batch.present, torch.inf)
    order = key.argsort(dim=1, stable=True)
    wide = order.unsqueeze(-1).expand(-1, -1, n_channels)
    empty = batch.values.new_zeros(n_cases, n_queries, n_channels)
    values = torch.cat([batch.values, empty], dim=1).gather(1, wide)
    mask = torch.cat([batch.mask, empty.bool()], dim=1).gather(1, wide)
    lengths = batch.lengths + n_queries
    sorted_times = all_times.gather(1, order)
    last = sorted_times.gather(1, lengths.unsqueeze(1) - 1)
    inside = torch.arange(n_times + n_queries, device=batch.device) < lengths.unsqueeze(1)
    sorted_times = torch.where(inside, sorted_times, last)
    rows = order.argsort(dim=1)[:, n_times:]
    return SeriesBatch._trusted(values, sorted_times, mask, lengths), rows
