"""Static facts, which do not change over time: a table of one row per series and column per fact.

Columns of numbers and booleans are numbers, those of text and of categories are categories. NaN,
None and NaT mean that a fact is not known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    import pandas as pd

# What a category may be; files keep the type of each.
Category: TypeAlias = str | int | float | bool

NUMBERS, CATEGORIES = "numbers", "categories"


def check_static(static: object, n_cases: int) -> pd.DataFrame:
    """Checks a table of facts, and numbers its rows from 0.

    Args:
        static: A DataFrame of `n_cases` rows.
        n_cases: N.

    Raises:
        TypeError: It is no DataFrame, or a column holds neither numbers nor categories.
        ValueError: The number of rows is another, names are not unique, or a number is infinite.
    """
    pandas = sys.modules.get("pandas")  # before its import no object can be a DataFrame
    if pandas is None or not isinstance(static, pandas.DataFrame):
        raise TypeError(f"static must be a pandas DataFrame, got {type(static).__name__}")
    if len(static) != n_cases:
        raise ValueError(f"static must have {n_cases} rows, one per series, got {len(static)}")
    names = list(static.columns)
    if not names:
        raise ValueError("static must have at least one column, got none")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"names of columns of static must be text, got {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"names of columns of static must be unique, got {name!r} twice")
        if find_kind(static[name]) == NUMBERS:
            if np.isinf(as_numbers(static[name])).any():
                raise ValueError(
                    f"column {name!r} of static must be finite or missing, got infinity"
                )
        else:
            list_categories(static[name])
    return static.reset_index(drop=True)


def find_kind(column: pd.Series) -> str | None:
    """Returns "numbers" or "categories", or None if nothing is known, which can be either.

    Raises:
        TypeError: The column holds something else.
    """
    import pandas as pd

    dtype = column.dtype
    is_text = pd.api.types.is_object_dtype(dtype) or pd.api.types.is_string_dtype(dtype)
    if pd.api.types.is_object_dtype(dtype) and pd.api.types.infer_dtype(column) == "boolean":
        kind = NUMBERS  # booleans of which some are missing
    elif is_text or isinstance(dtype, pd.CategoricalDtype):
        kind = CATEGORIES
    elif pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        kind = NUMBERS
    else:
        raise TypeError(
            f"column {column.name!r} of static must hold numbers or categories, got {dtype}"
        )
    return None if column.isna().all() else kind


def as_numbers(column: pd.Series) -> np.ndarray:
    """Returns numbers (N,) float64, NaN where missing."""
    if find_kind(column) is None:
        return np.full(len(column), np.nan)
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def list_categories(column: pd.Series) -> list[Category]:
    """Returns the categories that occur in a column, in alphabetical order.

    Raises:
        TypeError: One of them is not text, a number or a boolean.
    """
    found = []
    for value in column.dropna().unique():
        plain = value.item() if isinstance(value, np.generic) else value
        if not isinstance(plain, str | int | float | bool):
            raise TypeError(
                f"categories in column {column.name!r} of static must be text, numbers or "
                f"booleans, got a {type(plain).__name__}"
            )
        found.append(plain)
    return sorted(found, key=str)


def select_static(static: pd.DataFrame | None, cases: slice | list[int] | Tensor) -> Any:  # noqa: ANN401
    """Returns the facts of some series, or None without facts."""
    if static is None:
        return None
    index = cases.cpu().numpy() if isinstance(cases, Tensor) else cases
    return static.iloc[index].reset_index(drop=True)


def concatenate_static(tables: Sequence[pd.DataFrame | None]) -> pd.DataFrame | None:
    """Joins tables of the same facts, in the order of columns of the first.

    Raises:
        ValueError: Some have other columns than the first, none, or facts of another kind.
    """
    import pandas as pd

    known = [table for table in tables if table is not None]
    if not known:
        return None
    names = list(known[0].columns)
    for table in tables:
        if table is None or set(table.columns) != set(names):
            got = "none" if table is None else list(table.columns)
            raise ValueError(f"batches must all have the static facts {names}, got {got}")
    if len(known) == 1:
        return known[0]
    columns = {}
    for name in names:
        parts = [table[name] for table in known]
        kinds = {find_kind(part) for part in parts} - {None}
        if len(kinds) > 1:
            raise ValueError(
                f"batches must have one kind of static {name!r}, got numbers and categories"
            )
        if len({part.dtype for part in parts}) == 1:
            columns[name] = pd.concat(parts, ignore_index=True)
        elif kinds == {CATEGORIES}:  # of different sets, of which pandas makes a column of objects
            objects = [part.astype(object).where(part.notna(), None) for part in parts]
            columns[name] = pd.concat(objects, ignore_index=True)
        else:
            columns[name] = pd.Series(np.concatenate([as_numbers(part) for part in parts]))
    return pd.DataFrame(columns)
