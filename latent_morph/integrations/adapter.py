"""What the adapters to other libraries share: the classifier's parameters and its answers."""

import abc
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, Self

import numpy as np

from latent_morph.estimators import LatentODEClassifier
from latent_morph.series import Data

# Enough for another library's tests, which ask for answers and not for good ones.
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
    """An `__init__` that stores parameters: an adapter's own, and those of LatentODEClassifier.

    Other libraries read parameters off the signature, so it names each one, with its default. It
    is made from the classifier's, which the adapters thus cannot fall behind.
    """
    this = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    added = [Parameter(name, Parameter.KEYWORD_ONLY, default=own[name]) for name in own]
    parameters = Signature([this, *added, *signature(LatentODEClassifier).parameters.values()])

    def __init__(self: AdaptedClassifier, **given: Any) -> None:  # noqa: ANN401
        bound = parameters.bind(self, **given)
        bound.apply_defaults()
        _, *stored = bound.arguments.items()
        vars(self).update(stored)
        super(AdaptedClassifier, self).__init__()  # the library's base, which comes next

    __init__.__signature__ = parameters  # type: ignore[attr-defined]
    return __init__


class AdaptedClassifier(abc.ABC):
    """What a library's base class calls; it comes before that class in the list of bases."""

    classifier_: LatentODEClassifier

    @abc.abstractmethod
    def _series(self, X: Data) -> Data:
        """The library's series in a form that LatentODEClassifier takes."""

    def _fit(self, X: Data, y: np.ndarray) -> Self:
        names = LatentODEClassifier._get_param_names()
        model = LatentODEClassifier(**{name: getattr(self, name) for name in names})
        self.classifier_ = model.fit(self._series(X), y)
        return self

    def _predict(self, X: Data) -> np.ndarray:
        return self.classifier_.predict(self._series(X))

    def _predict_proba(self, X: Data) -> np.ndarray:
        return self.classifier_.predict_proba(self._series(X))
