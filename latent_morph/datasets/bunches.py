"""Return values of data sets: a Bunch, the pair (X, y), or pandas objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from latent_morph.series import SeriesBatch


def as_bunch(
    data: SeriesBatch,
    target: np.ndarray,
    *,
    return_X_y: bool = False,
    as_frame: bool = False,
    **extra: Any,  # noqa: ANN401
) -> Bunch | tuple[Any, Any]:
    """Packs a data set the way scikit-learn does.

    Args:
        data: (N, T, C).
        target: (N,) one label per series, or (N, T) one label per time point.
        return_X_y: Return `(data, target)` only.
        as_frame: Return `data` as a long DataFrame with columns "case", "time" and one per entry
            of `feature_names`, which `from_long(data, "case", "time")` converts back, and `target`
            as a Series: indexed by case, or for labels per time point by the rows of `data`.
            Static facts have columns too, with the same value in all rows of a case:
            `from_long(..., static=static_names)` converts these back.
        extra: Further entries of the Bunch, including `feature_names`.
    """
    X: Any = data
    y: Any = target
    if as_frame:
        X = to_long_frame(data, extra["feature_names"])
        if target.ndim == 2:
            y = pd.Series(target[data.present.cpu().numpy()], index=X.index, name="target")
        else:
            y = pd.Series(target, name="target").rename_axis("case")
    if return_X_y:
        return X, y
    return Bunch(data=X, target=y, **extra)


def to_long_frame(batch: SeriesBatch, feature_names: list[str]) -> pd.DataFrame:
    """Converts (N, T, C) to a table of one row per case and time point, in this order.

    Columns of static facts come last.
    """
    present = batch.present
    values = batch.values.masked_fill(~batch.mask, float("nan"))[present].cpu().numpy()
    frame = pd.DataFrame(values, columns=feature_names)
    case = np.repeat(np.arange(batch.n_cases), batch.lengths.cpu().numpy())
    frame.insert(0, "case", case)
    frame.insert(1, "time", batch.times[present].cpu().numpy())
    if batch.static is not None:
        frame = frame.join(batch.static, on="case")
    return frame
