"""LabelCodes: labels of classifiers, their codes and weights; LabelMixin keeps them in files."""

from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from latent_morph.estimators.persistence import PersistentEstimator
from latent_morph.series import Data


class LabelCodes(BaseEstimator):
    """Encodes and weights labels."""

    classes_: np.ndarray
    class_weight: dict[Any, float] | str | None

    def _check_target(self, y: Data) -> None:
        if y is None:
            # The message that scikit-learn's tests expect.
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )

    def _encode_labels(self, y: np.ndarray) -> np.ndarray:
        """Sets `classes_` and returns class codes of the shape of `y`."""
        check_classification_targets(y.ravel())
        self.classes_, codes = np.unique(y, return_inverse=True)
        return codes.reshape(y.shape)

    def _class_factors(self, codes: np.ndarray, weight: np.ndarray | None) -> Tensor | None:
        """Returns class weights (K,) from the codes and weights of all labels."""
        if self.class_weight is None:
            return None
        if self.class_weight == "balanced" and weight is not None:
            totals = np.bincount(codes, weight)  # scikit-learn accepts weights only since 1.7
            factors = totals.sum() / (len(totals) * totals)
        else:
            labels = self.classes_[codes]
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        if not (factors > 0).any():
            raise ValueError(
                f"class_weight must be positive for some class, got {self.class_weight!r}"
            )
        return torch.from_numpy(factors)


class LabelMixin(LabelCodes, PersistentEstimator):
    """Encodes and weights labels, and stores the classes."""

    def _extra_config(self) -> dict[str, Any]:
        return super()._extra_config() | {
            "classes": self.classes_.tolist(),
            "classes_dtype": self.classes_.dtype.str,
        }

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        dtype = np.dtype(config["classes_dtype"])
        if dtype.itemsize * len(config["classes"]) > 2**24:
            raise ValueError(
                f"classes must take at most 16 MB, got {len(config['classes'])} of {dtype}"
            )
        self.classes_ = np.array(config["classes"], dtype=dtype)
