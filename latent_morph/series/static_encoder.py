"""StaticEncoder: converts static facts of series to numbers that a model can use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from latent_morph.series.batch import SeriesBatch
from latent_morph.series.scaling import SeriesScaler
from latent_morph.series.static import (
    CATEGORIES,
    NUMBERS,
    Category,
    as_numbers,
    check_static,
    find_kind,
    list_categories,
)

if TYPE_CHECKING:
    import pandas as pd

# Scaled numbers are clipped there.
LIMIT = 5.0


class StaticEncoder:
    """Scales numbers and gives each category a column, with 0 for what is not known.

    Numbers are scaled as `SeriesScaler("robust")` scales values, by median and interquartile
    range, and clipped to -5 .. 5. A number that some training series lack has a second column, 1
    where it is missing. A category has one column for each of its values in `fit`, 1 where a
    series has it: a missing value, or one that was not seen, is 0 in all of them. A number that
    was constant in `fit` is always 0. A fact that no series in `fit` had has no column.

    Attributes:
        columns_: Names of all facts, in the order of `fit`.
        numbers_: Names of the numbers among them.
        categories_: Values of each category, by name; none for a fact that no series had.
        missing_: Names of numbers that some series in `fit` lacked.
        means_: Mean of each number over the series in `fit`.
        scaler_: Scales of the numbers, None if there are none.
    """

    columns_: list[str]
    numbers_: list[str]
    categories_: dict[str, list[Category]]
    missing_: list[str]
    means_: list[float]
    scaler_: SeriesScaler | None

    def fit(self, static: pd.DataFrame, *, weight: Tensor | None = None) -> StaticEncoder:
        """Learns scales and categories from the facts of training series.

        Args:
            static: One row per series, at least one.
            weight: (N,) positive weight of each series; 1 by default.
        """
        if not len(static):
            raise ValueError("static must have at least one row, got none")
        static = check_static(static, len(static))
        self.columns_ = list(static.columns)
        self.categories_ = {
            name: list_categories(static[name])
            for name in self.columns_
            if find_kind(static[name]) != NUMBERS
        }
        self.numbers_ = [name for name in self.columns_ if name not in self.categories_]
        values = self._read_numbers(static)
        is_missing = values.isnan()
        self.missing_ = [
            name for name, some in zip(self.numbers_, is_missing.any(0), strict=True) if some
        ]
        share = torch.ones(len(values)) if weight is None else weight.cpu()
        share = torch.where(is_missing, 0.0, share.double().unsqueeze(1))
        self.means_ = ((share * values.nan_to_num()).sum(0) / share.sum(0)).tolist()
        self.scaler_ = None
        if self.numbers_:
            self.scaler_ = SeriesScaler("robust").fit(_as_batch(values), weight=weight)
        return self

    def check(self, static: pd.DataFrame) -> None:
        """Raises unless a table has the columns of `fit`, in any order, and of the same kinds."""
        self._check_fitted()
        found = list(static.columns)
        absent = [name for name in self.columns_ if name not in found]
        extra = [name for name in found if name not in self.columns_]
        if absent or extra:
            raise ValueError(
                f"static must have the columns {self.columns_} as in fit, got {found}: "
                f"{absent} absent, {extra} unknown"
            )
        for name in self.columns_:
            if name in self.categories_ and not self.categories_[name]:
                continue  # of a fact that no series in `fit` had, the kind is not known
            kind = CATEGORIES if name in self.categories_ else NUMBERS
            if find_kind(static[name]) not in (kind, None):
                other = NUMBERS if kind == CATEGORIES else CATEGORIES
                raise ValueError(
                    f"column {name!r} of static must hold {kind} as in fit, got {other}"
                )

    def transform(self, static: pd.DataFrame) -> Tensor:
        """Encodes facts as (N, S) float64, in the order of `names`."""
        self.check(static)
        values = self._read_numbers(static)
        parts = []
        if self.scaler_ is not None:
            scaled, _ = self.scaler_.transform_observed(values.nan_to_num(), ~values.isnan())
            parts.append(scaled.clamp(-LIMIT, LIMIT))
        lacked = [self.numbers_.index(name) for name in self.missing_]
        parts.append(values[:, lacked].isnan().double())
        return torch.cat([*parts, self._encode_categories(static)], dim=1)

    def tabulate(self, static: pd.DataFrame, *, fill: bool) -> Tensor:
        """Returns numbers in their own units and categories as columns, (N, R) float64.

        Args:
            static: One row per series.
            fill: Whether the mean of a number stands for a missing one, which otherwise is NaN.
        """
        self.check(static)
        values = self._read_numbers(static)
        if fill:
            values = torch.where(values.isnan(), torch.tensor(self.means_).double(), values)
        return torch.cat([values, self._encode_categories(static)], dim=1)

    def names(self, *, tabulated: bool = False) -> list[str]:
        """Returns the names of the columns of `transform`, or of `tabulate`."""
        self._check_fitted()
        indicators = [] if tabulated else [f"{name} missing" for name in self.missing_]
        return [
            *self.numbers_,
            *indicators,
            *(f"{name}={value}" for name, values in self.categories_.items() for value in values),
        ]

    def state(self) -> dict[str, Any]:
        """Returns all that `from_state` needs, as plain numbers, text, lists and dicts."""
        self._check_fitted()
        return {
            "columns": list(self.columns_),
            "categories": {name: list(values) for name, values in self.categories_.items()},
            "missing": list(self.missing_),
            "means": list(self.means_),
            "scaler": None if self.scaler_ is None else self.scaler_.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> StaticEncoder:
        """Rebuilds a fitted encoder from its `state`.

        Raises:
            ValueError: The state is incomplete, or its parts do not belong together.
        """
        keys = {"columns", "categories", "missing", "means", "scaler"}
        if not isinstance(state, dict) or not keys <= set(state):
            raise ValueError(f"state must have the keys {sorted(keys)}, got {state!r}")
        encoder = cls()
        encoder.columns_ = [str(name) for name in state["columns"]]
        encoder.categories_ = {name: list(values) for name, values in state["categories"].items()}
        encoder.numbers_ = [n for n in encoder.columns_ if n not in encoder.categories_]
        encoder.missing_ = [str(name) for name in state["missing"]]
        encoder.means_ = [float(mean) for mean in state["means"]]
        scaler = state["scaler"]
        encoder.scaler_ = None if scaler is None else SeriesScaler.from_state(scaler)
        n_scaled = 0 if encoder.scaler_ is None else len(encoder.scaler_.mean_)
        if not (
            len(encoder.numbers_) == n_scaled == len(encoder.means_)
            and set(encoder.categories_) <= set(encoder.columns_)
            and set(encoder.missing_) <= set(encoder.numbers_)
            and all(
                isinstance(value, str | int | float | bool)
                for values in encoder.categories_.values()
                for value in values
            )
        ):
            raise ValueError(f"state must have parts that belong together, got {state!r}")
        return encoder

    def _read_numbers(self, static: pd.DataFrame) -> Tensor:
        """Returns the numbers (N, P) float64, NaN where missing."""
        columns = [as_numbers(static[name]) for name in self.numbers_]
        table = np.stack(columns, axis=1) if columns else np.empty((len(static), 0))
        return torch.from_numpy(table)

    def _encode_categories(self, static: pd.DataFrame) -> Tensor:
        """Returns one column (N, K) for each value of each category."""
        columns = [
            (static[name] == value).fillna(False).to_numpy(dtype=np.float64)
            for name, values in self.categories_.items()
            for value in values
        ]
        table = np.stack(columns, axis=1) if columns else np.empty((len(static), 0))
        return torch.from_numpy(table)

    def _check_fitted(self) -> None:
        if not hasattr(self, "scaler_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("this StaticEncoder is not fitted; call fit first")


def _as_batch(values: Tensor) -> SeriesBatch:
    """Returns numbers (N, P), NaN where missing, as series of one row."""
    mask = ~values.isnan()
    times = torch.zeros(len(values), 1, dtype=torch.float64)
    return SeriesBatch(values.nan_to_num().unsqueeze(1), times, mask.unsqueeze(1))
