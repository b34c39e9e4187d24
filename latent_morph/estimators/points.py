"""LatentODEPointClassifier: one label per time point."""

from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from latent_morph.estimators.classifier import ClassifierBase, class_logits
from latent_morph.estimators.parameters import documented
from latent_morph.estimators.point_labels import PointLabelMixin
from latent_morph.estimators.programs import classifier_program
from latent_morph.io.export import Program
from latent_morph.models import PointHead
from latent_morph.series import Data, SeriesBatch, insert_rows


@documented
class LatentODEPointClassifier(PointLabelMixin, ClassifierBase):
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
        batch, codes, weight, groups = self._validate_points(X, y, sample_weight, groups)
        label_weight = None if weight is None else np.repeat(weight, batch.lengths.numpy())
        return self._fit(
            batch,
            labels=codes,
            groups=groups,
            weight=weight,
            class_weight=self._class_factors(codes[batch.present].numpy(), label_weight),
        )

    def _compute_probabilities(self, batch: SeriesBatch) -> Tensor:
        """Returns (N, T, K) at the series' own times; padding has no meaning."""
        shape = len(batch), batch.n_times, len(self.classes_)
        probabilities = torch.zeros(shape, dtype=self._fitted_dtype())
        for chosen, output in self._outputs(batch):
            part = class_logits(output).softmax(-1)
            probabilities[chosen, : part.shape[1]] = part.cpu()
        return probabilities

    def _compute_query_probabilities(self, batch: SeriesBatch, times: ArrayLike) -> Tensor:
        """Returns (N, Q, K) at times that are inserted as unobserved rows."""
        query = self._query_times(times, batch)
        probabilities = []
        for chosen, part, static in self._scaled_parts(batch):
            extended, rows = insert_rows(part, query[chosen].to(part.device))
            with torch.inference_mode():
                all_rows = class_logits(self.model_(extended, static=static)).softmax(-1)
            probabilities.append(all_rows.take_along_dim(rows.unsqueeze(-1), dim=1).cpu())
        return torch.cat(probabilities)

    def _program(self) -> Program:
        answer = "averaged" if self.one_label_per_series_ else "points"
        return classifier_program(self.model_, self.scaler_, self.classes_, answer=answer)
