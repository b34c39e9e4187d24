"""SeriesBatch, the container for irregular series."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from latent_morph.series.static import check_static, concatenate_static, select_static

if TYPE_CHECKING:
    import pandas as pd

# Arrays, tensors, data frames and nested lists have no common type narrower than Any.
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
        static: Facts of the series that do not change over time, or None: a DataFrame of N rows
            and one column per fact. Columns of numbers and booleans are numbers, columns of text
            and of categories are categories. NaN and None mean that a fact is not known.

    Raises:
        TypeError: A field is not a tensor or has another dtype, or `static` is no DataFrame of
            numbers and categories.
        ValueError: Shapes disagree, or one of the rules above is broken.
    """

    values: Tensor
    times: Tensor
    mask: Tensor
    lengths: Tensor = None  # type: ignore[assignment]  # filled in below, never None afterwards
    static: pd.DataFrame | None = None

    def __post_init__(self) -> None:
        _check_tensor("values", self.values, _VALUE_DTYPES)
        _check_tensor("times", self.times, (torch.float64,))
        _check_tensor("mask", self.mask, (torch.bool,))
        if self.values.ndim != 3 or 0 in self.values.shape[1:]:
            raise ValueError(
                f"values must have shape (N, T, C) with T, C >= 1, got {tuple(self.values.shape)}"
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
                raise ValueError(f"{name} must have shape {shape}, got {tuple(field.shape)}")
            if field.device != self.values.device:
                raise ValueError(
                    f"{name} must be on {self.values.device} like values, got {field.device}"
                )
        if not bool(torch.isfinite(self.values).all()):
            raise ValueError(
                "values must be finite, got NaN or infinity; mark missing values in mask"
            )
        if not bool(torch.isfinite(self.times).all()):
            raise ValueError("times must be finite, got NaN or infinity")
        decreasing = (self.times[:, 1:] < self.times[:, :-1]).any(1)
        if bool(decreasing.any()):
            raise ValueError(
                "times must be non-decreasing within each case, "
                f"got a decrease in case {int(decreasing.int().argmax())}"
            )
        outside = (self.lengths < 1) | (self.lengths > n_times)
        if bool(outside.any()):
            raise ValueError(
                f"lengths must be between 1 and T = {n_times}, got {int(self.lengths[outside][0])}"
            )
        padding = ~self.present
        if bool((self.mask & padding.unsqueeze(-1)).any()):
            raise ValueError("mask must be False in the padding, got True beyond a case's length")
        last = self.times.gather(1, self.lengths.unsqueeze(1) - 1)
        if bool(((self.times != last) & padding).any()):
            raise ValueError(
                "times must repeat the last real time in the padding, got another time there"
            )
        if self.static is not None:
            object.__setattr__(self, "static", check_static(self.static, n_cases))

    @classmethod
    def _unchecked(
        cls,
        values: Tensor,
        times: Tensor,
        mask: Tensor,
        lengths: Tensor,
        static: pd.DataFrame | None,
    ) -> SeriesBatch:
        """Builds a batch from fields known to be valid, skipping the checks of every element."""
        batch = object.__new__(cls)
        fields = {
            "values": values,
            "times": times,
            "mask": mask,
            "lengths": lengths,
            "static": static,
        }
        for name, field in fields.items():
            object.__setattr__(batch, name, field)
        return batch

    @classmethod
    def from_ragged(
        cls, cases: Iterable[tuple[Data, Data]], *, dtype: torch.dtype = torch.float32
    ) -> SeriesBatch:
        """Packs `(times, values)` pairs of unequal length.

        Args:
            cases: Pairs of times (T_i,) and values (T_i,) or (T_i, C); NaN means missing. Rows are
                sorted stably by time; repeated times are allowed. datetime64 times become seconds
                since the first of their case, timedelta64 times become seconds.
            dtype: Dtype of the packed values.

        Returns:
            A batch of shape (N, max T_i, C).

        Raises:
            ValueError: A case is empty, misshapen, or holds a non-finite time or infinite value.
        """
        from latent_morph.series.conversion import pack_pairs  # circular: it imports this class

        return pack_pairs(cases, dtype=dtype)

    @classmethod
    def concatenate(cls, batches: Iterable[SeriesBatch]) -> SeriesBatch:
        """Joins batches of equal C, and with the same facts, along the case axis.

        Shorter ones are padded to the longest T.
        """
        parts = list(batches)
        if not parts:
            raise ValueError("batches must have at least one SeriesBatch, got none")
        n_channels = {part.n_channels for part in parts}
        if len(n_channels) > 1:
            raise ValueError(
                f"batches must have the same number of channels, got {sorted(n_channels)}"
            )
        n_times = max(part.n_times for part in parts)
        parts = [part._pad_to(n_times) for part in parts]
        return cls._unchecked(
            torch.cat([part.values for part in parts]),
            torch.cat([part.times for part in parts]),
            torch.cat([part.mask for part in parts]),
            torch.cat([part.lengths for part in parts]),
            concatenate_static([part.static for part in parts]),
        )

    @property
    def n_cases(self) -> int:
        """N, the number of series."""
        return self.values.shape[0]

    @property
    def n_times(self) -> int:
        """T, the number of rows of the longest series, padding included."""
        return self.values.shape[1]

    @property
    def n_channels(self) -> int:
        """C, the number of values per time point."""
        return self.values.shape[2]

    @property
    def shape(self) -> torch.Size:
        """(N, T, C). Because of it, scikit-learn's splitters index a batch like an array."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
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
        """Selects cases: `batch[index]` or `batch[index, ...]`, the form scikit-learn uses.

        Args:
            index: Integer, slice, or list, array or tensor of integers or booleans. An integer
                gives a batch of one case: the case axis is always kept.
        """
        if isinstance(index, tuple):
            if len(index) != 2 or index[1] is not Ellipsis:
                raise IndexError(
                    f"index must select cases, as batch[index] or batch[index, ...], got {index}"
                )
            index = index[0]
        cases = _as_index(index, self.n_cases, self.device)
        return self._unchecked(
            self.values[cases],
            self.times[cases],
            self.mask[cases],
            self.lengths[cases],
            select_static(self.static, cases),
        )

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        # Without this NumPy would recurse forever: a batch is a sequence of batches.
        raise TypeError(
            "a SeriesBatch does not convert to an array, which has no times; use batch.values"
        )

    def __repr__(self) -> str:
        static = "" if self.static is None else f", static={list(self.static.columns)}"
        return (
            f"SeriesBatch(n_cases={self.n_cases}, n_times={self.n_times}, "
            f"n_channels={self.n_channels}, dtype={self.values.dtype}, device={self.device}"
            f"{static})"
        )

    def with_static(self, static: pd.DataFrame | None) -> SeriesBatch:
        """Returns the same series with other facts, or with None without any.

        Args:
            static: One row per series, in their order, whatever its index; see the attribute.
        """
        checked = None if static is None else check_static(static, self.n_cases)
        return self._unchecked(self.values, self.times, self.mask, self.lengths, checked)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> SeriesBatch:
        """Moves all tensors to `device` and converts `values`, and only these, to `dtype`.

        Facts stay in the memory of the CPU.
        """
        if dtype is not None and dtype not in _VALUE_DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        return self._unchecked(
            self.values.to(device=device, dtype=dtype),
            self.times.to(device=device),
            self.mask.to(device=device),
            self.lengths.to(device=device),
            self.static,
        )

    def trim(self) -> SeriesBatch:
        """Drops the trailing columns that are padding for every case."""
        if self.n_cases == 0:
            return self
        n_times = int(self.lengths.max())
        return self._unchecked(
            self.values[:, :n_times],
            self.times[:, :n_times],
            self.mask[:, :n_times],
            self.lengths,
            self.static,
        )

    def to_ragged(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Inverts `from_ragged`: one pair of times (T_i,) and values (T_i, C) per case.

        Static facts have no place in it; they are in `static`.
        """
        values = self.values.masked_fill(~self.mask, torch.nan).cpu().numpy()
        times = self.times.cpu().numpy()
        return [
            (times[i, :length].copy(), values[i, :length].copy())
            for i, length in enumerate(self.lengths.tolist())
        ]

    def _pad_to(self, n_times: int) -> SeriesBatch:
        extra = n_times - self.n_times
        if extra == 0:
            return self
        pad = (0, 0, 0, extra)
        return self._unchecked(
            torch.nn.functional.pad(self.values, pad),
            torch.cat([self.times, self.times[:, -1:].expand(-1, extra)], dim=1),
            torch.nn.functional.pad(self.mask, pad),
            self.lengths,
            self.static,
        )


def _as_index(index: Data, n_cases: int, device: torch.device) -> slice | list[int] | Tensor:
    """Converts a case index to one that keeps the case axis of tensors."""
    if isinstance(index, slice):
        if index.step is None or index.step > 0:
            return index
        # torch has no slices of negative step.
        return torch.tensor(range(n_cases)[index], dtype=torch.int64, device=device)
    if isinstance(index, (bool, np.bool_)):
        raise IndexError(f"index must be integers or a mask of shape (N,), got {index}")
    if isinstance(index, (int, np.integer)):
        return [range(n_cases)[index]]
    positions = index if isinstance(index, Tensor) else torch.from_numpy(np.array(index))
    if positions.numel() == 0 and positions.dtype != torch.bool:
        positions = positions.to(torch.int64)  # NumPy gives an empty list a float dtype
    if positions.is_floating_point() or positions.is_complex():
        raise IndexError(f"index must be integers or booleans, got dtype {positions.dtype}")
    if positions.ndim > 1:
        raise IndexError(f"index must have one axis, got shape {tuple(positions.shape)}")
    positions = positions if positions.dtype == torch.bool else positions.to(torch.int64)
    return positions.reshape(-1).to(device)


def _check_tensor(name: str, field: object, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(field, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(field).__name__}")
    if field.dtype not in dtypes:
        expected = " or ".join(map(str, dtypes))
        raise TypeError(f"{name} must have dtype {expected}, got {field.dtype}")


def insert_rows(batch: SeriesBatch, times: Tensor) -> tuple[SeriesBatch, Tensor]:
    """Adds unobserved rows at query times, so that an encoder gives a state there.

    Args:
        batch: (N, T, C).
        times: (N, Q) query times in any order.

    Returns:
        A batch (N, T + Q, C) sorted by time, padding last, and (N, Q) the row of each query.
    """
    n_cases, n_times, n_channels = batch.shape
    if times.ndim != 2 or len(times) != n_cases:
        raise ValueError(f"times must have shape ({n_cases}, Q), got {tuple(times.shape)}")
    n_queries = times.shape[1]
    all_times = torch.cat([batch.times, times.to(batch.times)], dim=1)
    # An infinite key sorts padding behind every real row and every query.
    key = all_times.clone()
    key[:, :n_times].masked_fill_(~batch.present, torch.inf)
    order = key.argsort(dim=1, stable=True)
    index = order.unsqueeze(-1).expand(-1, -1, n_channels)
    empty = batch.values.new_zeros(n_cases, n_queries, n_channels)
    values = torch.cat([batch.values, empty], dim=1).gather(1, index)
    mask = torch.cat([batch.mask, empty.bool()], dim=1).gather(1, index)
    lengths = batch.lengths + n_queries
    sorted_times = all_times.gather(1, order)
    last = sorted_times.gather(1, lengths.unsqueeze(1) - 1)
    present = torch.arange(n_times + n_queries, device=batch.device) < lengths.unsqueeze(1)
    sorted_times = torch.where(present, sorted_times, last)
    rows = order.argsort(dim=1)[:, n_times:]
    return SeriesBatch._unchecked(values, sorted_times, mask, lengths, batch.static), rows
