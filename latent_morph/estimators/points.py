"""LatentODEPointClassifier: one label per time point."""

from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_y, check_is_fitted
from torch import Tensor

from latent_morph.estimators.classifier import ClassifierBase, class_logits
from latent_morph.estimators.inputs import select_weighted_cases
from latent_morph.estimators.parameters import documented
from latent_morph.estimators.programs import classifier_program
from latent_morph.io.export import Program
from latent_morph.models import PointHead
from latent_morph.series import Data, SeriesBatch, insert_rows, is_timed


@documented
class LatentODEPointClassifier(ClassifierBase):
    """Classifies every time point of irregular series with a latent ODE.

    There is one label per time point: an array (n_cases, n_times), or a list of one array per
    series if lengths differ. With one label per series, it is taken for all of its time points,
    and predictions are one per series too.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    {attributes}
    one_label_per_series_ : bool
        Whether there was one label per series; predictions are then one per series too.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import LatentODEPointClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, 20)) for _ in range(60)]
    >>> X = [(t, np.sin(t)) for t in times]
    >>> y = [np.where(np.cos(t) > 0, "rising", "falling") for t in times]
    >>> model = LatentODEPointClassifier(max_epochs=15, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.predict(X[:1], times=[1.0, 3.0])  # at unobserved times
    array([['rising', 'falling']], dtype='<U7')
    """

    _head_type = PointHead

    def fit(self, X: Data, y: Data, sample_weight: Data = None, groups: Data = None) -> Self:
        """Fits the model to series and the labels of their time points.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts, with sorted times, since labels are not
            sorted with them.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            Labels.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each series in scales, loss and validation: 2 is equivalent to a second copy,
            0 to its absence. Only proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are either all trained on or all validated on.
        """
        self._validate_params()
        self._check_target(y)
        batch = self._validate_series(X, reset=True)
        labels, self.one_label_per_series_ = flatten_labels(y, batch)
        if not self.one_label_per_series_:
            check_sorted(X)
        chosen, weight, groups = select_weighted_cases(batch, sample_weight, groups)
        case_of_label = np.repeat(np.arange(len(batch)), batch.lengths.numpy())
        labels = labels[np.isin(case_of_label, np.arange(len(batch))[chosen])]
        batch = batch[chosen]
        codes = torch.full(batch.values.shape[:2], -1, dtype=torch.int64)
        flat_codes = self._encode_labels(labels)
        codes[batch.present] = torch.from_numpy(flat_codes)
        label_weight = None if weight is None else np.repeat(weight, batch.lengths.numpy())
        return self._fit(
            batch,
            labels=codes,
            groups=groups,
            weight=weight,
            class_weight=self._class_factors(flat_codes, label_weight),
        )

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
            query = self._query_times(times, batch)
            return self._compute_query_probabilities(batch, query).numpy()
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

    def _compute_probabilities(self, batch: SeriesBatch) -> Tensor:
        """Returns (N, T, K) at the series' own times; padding has no meaning."""
        shape = len(batch), batch.n_times, len(self.classes_)
        probabilities = torch.zeros(shape, dtype=self._fitted_dtype())
        for chosen, output in self._outputs(batch):
            part = class_logits(output).softmax(-1)
            probabilities[chosen, : part.shape[1]] = part.cpu()
        return probabilities

    def _compute_query_probabilities(self, batch: SeriesBatch, query: Tensor) -> Tensor:
        """Returns (N, Q, K) at scaled times (N, Q), which are inserted as unobserved rows."""
        probabilities = []
        for chosen, part in self._scaled_parts(batch):
            extended, rows = insert_rows(part, query[chosen].to(part.device))
            with torch.inference_mode():
                all_rows = class_logits(self.model_(extended)).softmax(-1)
            probabilities.append(all_rows.take_along_dim(rows.unsqueeze(-1), dim=1).cpu())
        return torch.cat(probabilities)

    def _program(self) -> Program:
        answer = "averaged" if self.one_label_per_series_ else "points"
        return classifier_program(self.model_, self.scaler_, self.classes_, answer=answer)

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
