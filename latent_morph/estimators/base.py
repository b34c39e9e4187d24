"""SeriesInputs, which checks inputs, and SeriesEstimator, the base of estimators with files."""

from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from latent_morph.estimators.inputs import as_query_times, is_table
from latent_morph.estimators.persistence import PersistentEstimator
from latent_morph.series import Data, SeriesBatch, StaticEncoder, as_series


class SeriesInputs(BaseEstimator):
    """Validates inputs as scikit-learn does."""

    _noun: ClassVar[str] = "series"  # name of a case in errors
    # The attribute that `fit` sets last, so that an interrupted fit does not count.
    _last_fitted: ClassVar[str] = "model_"

    n_channels_: int
    n_features_in_: int
    fitted_on_table_: bool
    static_encoder_: StaticEncoder | None = None  # pickles of older versions have none

    # Whether `fit` learns a `scaler_`.
    _is_scaled: ClassVar[bool] = True
    _takes_static: ClassVar[bool] = True

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._last_fitted)

    def _validate_series(self, X: Data, *, reset: bool, min_columns: int = 1) -> SeriesBatch:
        """Converts X; 2-D tables also pass scikit-learn's own checks.

        Values are in double precision until they are scaled.
        """
        table = is_table(X)
        rules: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if table and (reset or self.fitted_on_table_):
            X = validate_data(self, X, reset=reset, ensure_min_features=min_columns, **rules)
        elif table:  # series may have another length than in `fit`
            X = check_array(X, estimator=self, **rules)
        elif isinstance(X, (list, tuple)) and not len(X):
            raise ValueError(f"X must have at least one {self._noun}, got none")
        batch = as_series(X, dtype=torch.float64).to("cpu", torch.float64)
        if not len(batch):
            raise ValueError(f"X must have at least one {self._noun}, got none")
        if reset:
            self.__dict__.pop(self._last_fitted, None)  # of an earlier fit
            self.fitted_on_table_ = table
            self.n_channels_ = batch.n_channels
            self.n_features_in_ = X.shape[1] if table else batch.n_channels
            if not table and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_  # of an earlier fit
            self._fit_static(batch)
        elif batch.n_channels != self.n_channels_:
            raise ValueError(
                f"X must have {self.n_channels_} channels as in fit, got {batch.n_channels}"
            )
        else:
            self._check_static(batch)
        return batch

    def _fit_static(self, batch: SeriesBatch, weight: Tensor | None = None) -> None:
        """Fits the encoder of static facts to training series, if they have any."""
        if batch.static is None:
            self.static_encoder_ = None
            return
        if not self._takes_static:
            raise ValueError(
                f"X must have no static facts for {type(self).__name__}, "
                f"got {list(batch.static.columns)}"
            )
        self.static_encoder_ = StaticEncoder().fit(batch.static, weight=weight)

    def _check_static(self, batch: SeriesBatch, where: str = "as in fit") -> None:
        """Raises unless series have the facts that the encoder knows."""
        if self.static_encoder_ is None:
            if batch.static is not None:
                got = list(batch.static.columns)
                raise ValueError(f"X must have no static facts {where}, got {got}")
        elif batch.static is None:
            expected = self.static_encoder_.columns_
            raise ValueError(f"X must have the static facts {expected} {where}, got none")
        else:
            self.static_encoder_.check(batch.static)

    def _n_static(self) -> int:
        """Returns the number of columns of the encoded facts."""
        return 0 if self.static_encoder_ is None else len(self.static_encoder_.names())

    def _encode_static(self, batch: SeriesBatch) -> Tensor | None:
        """Returns the encoded facts (N, S) of series, float64, or None without any."""
        if self.static_encoder_ is None or not self._n_static():
            return None
        return self.static_encoder_.transform(batch.static)

    def _validate_fitted(self, X: Data) -> SeriesBatch:
        """Checks that the estimator is fitted, and converts X."""
        check_is_fitted(self)
        return self._validate_series(X, reset=False)


class SeriesEstimator(SeriesInputs, PersistentEstimator):
    """Checks its inputs, scales them, and can be saved."""

    def _query_times(self, times: Data, batch: SeriesBatch) -> Tensor:
        """Scales query times, (Q,) shared or (N, Q), to (N, Q)."""
        raw, starts = as_query_times("times", times), batch.times[:, 0]
        if raw.ndim not in (1, 2) or (raw.ndim == 2 and len(raw) != len(starts)):
            raise ValueError(
                f"times must have shape (Q,) or ({len(starts)}, Q), got {tuple(raw.shape)}"
            )
        return self.scaler_.scale_times(raw, starts).expand(len(starts), -1)
