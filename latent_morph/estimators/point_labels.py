"""PointLabels: labels of time points and predictions for them; PointLabelMixin for files."""

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_y, check_is_fitted
from torch import Tensor

from latent_morph.estimators.base import SeriesEstimator, SeriesInputs
from latent_morph.estimators.inputs import select_weighted_cases
from latent_morph.estimators.labels import LabelCodes, LabelMixin
from latent_morph.series import Data, SeriesBatch, is_timed


class PointLabels(ClassifierMixin, LabelCodes, SeriesInputs):
    """Encodes labels of time points, and predicts and scores them."""

    one_label_per_series_: bool

    def _compute_probabilities(self, batch: SeriesBatch) -> Tensor:
        """Returns (N, T, K) at the series' own times; padding has no meaning."""
        raise NotImplementedError

    def _compute_query_probabilities(self, batch: SeriesBatch, times: ArrayLike) -> Tensor:
        """Returns (N, Q, K) at times (Q,) or (N, Q) in the units of the data."""
        raise NotImplementedError

    def _validate_points(
        self, X: Data, y: Data, sample_weight: Data, groups: Data
    ) -> tuple[SeriesBatch, Tensor, np.ndarray | None, Data]:
        """Returns series of positive weight, codes (N, T) with -1 in the padding, weights, groups.

        Sets `classes_` and `one_label_per_series_`.
        """
        batch = self._validate_series(X, reset=True)
        labels, self.one_label_per_series_ = flatten_labels(y, batch)
        if not self.one_label_per_series_:
            check_sorted(X)
        chosen, weight, groups = select_weighted_cases(batch, sample_weight, groups)
        case_of_label = np.repeat(np.arange(len(batch)), batch.lengths.numpy())
        labels = labels[np.isin(case_of_label, np.arange(len(batch))[chosen])]
        batch = batch[chosen]
        codes = torch.full(batch.values.shape[:2], -1, dtype=torch.int64)
        codes[batch.present] = torch.from_numpy(self._encode_labels(labels))
        return batch, codes, weight, groups

    @overload
    def predict_proba(self, X: Data, times: None = ...) -> np.ndarray | list[np.ndarray]: ...

    @overload
    def predict_proba(self, X: Data, times: ArrayLike) -> np.ndarray: ...

    def predict_proba(
        self, X: Data, times: ArrayLike | None = None
    ) -> np.ndarray | list[np.ndarray]:
        """Returns class probabilities at each time point, or at any other times.

        Parameters
        ----------
        X : series
            The observations.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Query times, in the units of the data, observed or not; the series' own times by
            default.

        Returns
        -------
        ndarray of shape (n_cases, n_times, n_classes)
            Or a list of arrays (T_i, n_classes) if lengths differ; or, if fitted with one label
            per series and without `times`, the mean over time points, (n_cases, n_classes).
        """
        batch = self._validate_fitted(X)
        if times is not None:
            return self._compute_query_probabilities(batch, times).numpy()
        if not self.one_label_per_series_:
            check_sorted(X)
        probabilities = self._compute_probabilities(batch)
        if self.one_label_per_series_:
            mask = batch.present.unsqueeze(-1)
            return ((probabilities * mask).sum(1) / mask.sum(1)).numpy()
        if bool((batch.lengths == batch.n_times).all()):
            return probabilities.numpy()
        return [
            part[:length].numpy()
            for part, length in zip(probabilities, batch.lengths, strict=True)
        ]

    @overload
    def predict(self, X: Data, times: None = ...) -> np.ndarray | list[np.ndarray]: ...

    @overload
    def predict(self, X: Data, times: ArrayLike) -> np.ndarray: ...

    def predict(self, X: Data, times: ArrayLike | None = None) -> np.ndarray | list[np.ndarray]:
        """Returns the most probable label at each time point, or at any other times.

        Parameters
        ----------
        X : series
            The observations.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Query times; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, n_times)
            Or a list of arrays (T_i,) if lengths differ; or, if fitted with one label per series
            and without `times`, (n_cases,).
        """
        check_is_fitted(self)
        probabilities = self.predict_proba(X, times)
        if isinstance(probabilities, list):
            return [self.classes_[part.argmax(-1)] for part in probabilities]
        return self.classes_[probabilities.argmax(-1)]

    def score(self, X: Data, y: Data, sample_weight: Data = None) -> float:
        """Returns the accuracy over time points, or over series if fitted with their labels.

        Parameters
        ----------
        X : series
            The observations.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            The true labels, as in `fit`.
        sample_weight : array-like of shape (n_cases,), default=None
            Weights of the series.
        """
        check_is_fitted(self)
        if self.one_label_per_series_:
            return float(super().score(X, y, sample_weight))
        check_sorted(X)
        batch = self._validate_fitted(X)
        labels, _ = flatten_labels(y, batch)
        best = self._compute_probabilities(batch).argmax(-1)[batch.present]
        weight = None
        if sample_weight is not None:
            weight = np.repeat(np.asarray(sample_weight), batch.lengths.numpy())
        return float(np.average(self.classes_[best.numpy()] == labels, weights=weight))


class PointLabelMixin(PointLabels, LabelMixin, SeriesEstimator):
    """Encodes labels of time points, and stores what they were."""

    def _extra_config(self) -> dict[str, Any]:
        return super()._extra_config() | {"one_label_per_series": self.one_label_per_series_}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        self.one_label_per_series_ = config["one_label_per_series"]


def flatten_labels(y: Data, batch: SeriesBatch) -> tuple[np.ndarray, bool]:
    """Returns the labels of all time points in one array, and whether y has one per series."""
    y = y if isinstance(y, (list, tuple)) else np.asarray(y)
    if len(y) != len(batch):
        raise ValueError(f"y must have {len(batch)} entries, one per series of X, got {len(y)}")
    lengths = batch.lengths.numpy()
    is_column = isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1 < batch.n_times
    if is_column or np.ndim(y[0]) == 0:
        return np.repeat(column_or_1d(_check_y(y), warn=True), lengths), True
    if isinstance(y, np.ndarray) and y.dtype != object and (lengths == y.shape[1]).all():
        return y.reshape(-1), False
    rows = [np.asarray(labels) for labels in y]
    for case, (labels, length) in enumerate(zip(rows, lengths, strict=True)):
        if labels.shape != (length,):
            raise ValueError(
                f"y of case {case} must have shape ({length},), one label per time point, "
                f"got {labels.shape}"
            )
    return np.concatenate(rows), False


def check_sorted(X: Data) -> None:
    """Raises if times are not sorted: `as_series` sorts the rows of a series, not its labels."""
    if not isinstance(X, (list, tuple)):
        return
    for case, series in enumerate(X):
        if is_timed(series):
            times = np.asarray(series[0])
        elif hasattr(series, "iloc"):  # pandas
            times = np.asarray(series.index)
        else:
            continue
        if (times[1:] < times[:-1]).any():
            raise ValueError(
                f"times of case {case} must be sorted like its labels, got a decrease"
            )
