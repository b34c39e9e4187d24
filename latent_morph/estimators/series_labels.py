"""SeriesLabelMixin: classifiers of one label per series."""

from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_y, check_consistent_length

from latent_morph.estimators.base import SeriesInputs
from latent_morph.estimators.inputs import select_weighted_cases
from latent_morph.estimators.labels import LabelCodes
from latent_morph.series import Data, SeriesBatch


class SeriesLabelMixin(ClassifierMixin, LabelCodes, SeriesInputs):
    """Checks one label per series, and predicts them."""

    if TYPE_CHECKING:  # scikit-learn's mixin defines it without types

        def score(self, X: Data, y: Data, sample_weight: Data = None) -> float: ...

    def _compute_probabilities(self, batch: SeriesBatch) -> np.ndarray:
        """Returns (N, K)."""
        raise NotImplementedError

    def _predict_codes(self, batch: SeriesBatch) -> np.ndarray:
        """Returns (N,)."""
        return self._compute_probabilities(batch).argmax(-1)

    def _validate_labelled(
        self, X: Data, y: Data, sample_weight: Data = None, groups: Data = None
    ) -> tuple[SeriesBatch, np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Returns the series that count, their codes, weights and groups; sets `classes_`."""
        self._check_target(y)
        batch = self._validate_series(X, reset=True)
        y = column_or_1d(_check_y(y, estimator=self), warn=True)
        check_consistent_length(batch.values, y)
        chosen, weight, groups = select_weighted_cases(batch, sample_weight, groups)
        return batch[chosen], self._encode_labels(y[chosen]), weight, groups

    def predict_proba(self, X: Data) -> np.ndarray:
        """Returns class probabilities of each series.

        Parameters
        ----------
        X : series
            The observations.

        Returns
        -------
        ndarray of shape (n_cases, n_classes)
            In the order of `classes_`.
        """
        return self._compute_probabilities(self._validate_fitted(X))

    def predict(self, X: Data) -> np.ndarray:
        """Returns the most probable label of each series.

        Parameters
        ----------
        X : series
            The observations.

        Returns
        -------
        ndarray of shape (n_cases,)
        """
        codes = self._predict_codes(self._validate_fitted(X))
        return self.classes_[codes]
