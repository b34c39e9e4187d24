"""HeadEstimator: classifiers whose head is their own ridge regression or any other classifier."""

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import Tensor

from latent_morph.estimators.filters import FilterEstimator


class HeadEstimator(FilterEstimator):
    """Fits the user's head, and refuses to write it to files of numbers and text."""

    # Parameter declared by the constructors of subclasses.
    head: Any

    head_: Pipeline

    def _fit_user_head(
        self, features: Tensor, codes: np.ndarray, weight: np.ndarray | None
    ) -> None:
        """Fits a copy of `head` to standardised features (R, F) and codes (R,)."""
        # Rounded, so that what is constant but for rounding errors is not standardised.
        rounding = FunctionTransformer(np.round, kw_args={"decimals": 6})
        pipeline = make_pipeline(rounding, StandardScaler(), clone(self.head))
        name = f"{pipeline.steps[-1][0]}__sample_weight"
        options = {} if weight is None else {name: weight}
        self.head_ = pipeline.fit(features.numpy(), codes, **options)

    def _forget(self, *names: str) -> None:
        """Removes attributes of an earlier fit, which may have had another head."""
        for name in names:
            self.__dict__.pop(name, None)

    def _check_own_head(self, done: str) -> None:
        if self.model_.head is None:
            raise ValueError(
                f"head must be None to be {done}, got a fitted {type(self.head_[-1]).__name__}; "
                "use pickle, joblib or skops"
            )
