"""AdaptedClassifier: the common part of adapters to other libraries."""

import abc
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, Self

import numpy as np

from latent_morph.estimators import LatentODEClassifier
from latent_morph.series import Data

# Parameters for other libraries' tests, which do not check the accuracy.
TINY: dict[str, Any] = {
    "ode": "linear",
    "encoder_options": {"layers": 1},
    "latent_dim": 2,
    "hidden_dim": 4,
    "decoder_width": 4,
    "max_epochs": 1,
    "random_state": 0,
}


def constructor(**own: Any) -> Callable[..., None]:  # noqa: ANN401
    """Returns an `__init__` that stores the parameters `own` and those of LatentODEClassifier.

    Other libraries inspect the signature, which therefore lists every parameter with its default.
    It is derived from the classifier's, so that the two cannot differ.
    """
    first = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=own[name]) for name in own]
    parameters = Signature([first, *added, *signature(LatentODEClassifier).parameters.values()])

    def __init__(self: AdaptedClassifier, **given: Any) -> None:  # noqa: ANN401
        bound = parameters.bind(self, **given)
        bound.apply_defaults()
        _, *stored = bound.arguments.items()
        vars(self).update(stored)
        super(AdaptedClassifier, self).__init__()  # of the library's base class

    __init__.__signature__ = parameters  # type: ignore[attr-defined]
    return __init__


class AdaptedClassifier(abc.ABC):
    """Methods that a library's base class calls; must precede it in the list of bases."""

    classifier_: LatentODEClassifier

    @abc.abstractmethod
    def _convert(self, X: Data) -> Data:
        """Converts the library's series to a form that LatentODEClassifier accepts."""

    def _fit(self, X: Data, y: np.ndarray) -> Self:
        names = LatentODEClassifier._get_param_names()
        model = LatentODEClassifier(**{name: getattr(self, name) for name in names})
        self.classifier_ = model.fit(self._convert(X), y)
        return self

    def _predict(self, X: Data) -> np.ndarray:
        return self.classifier_.predict(self._convert(X))

    def _predict_proba(self, X: Data) -> np.ndarray:
        return self.classifier_.predict_proba(self._convert(X))
