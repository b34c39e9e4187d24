"""LatentODEClassifier with the interface of sktime."""

from typing import Any, ClassVar

import pandas as pd

from latent_morph.integrations.adapter import TINY, AdaptedClassifier, constructor

try:
    from sktime.classification.base import BaseClassifier
except ImportError as error:
    raise ImportError(
        'latent_morph.integrations.sktime needs sktime: pip install "latent_morph[sktime]"'
    ) from error

__all__ = ["LatentODEClassifier"]


class LatentODEClassifier(AdaptedClassifier, BaseClassifier):
    """`latent_morph.LatentODEClassifier` as an sktime classifier.

    Accepts all panels of sktime, with unequal lengths, any number of channels, and NaN for missing
    values. The index of each series holds its times; fractional times must be timedeltas or dates,
    since sktime rejects other numbers.

    Parameters are those of `latent_morph.LatentODEClassifier`.

    Attributes
    ----------
    classifier_ : latent_morph.LatentODEClassifier
        The fitted classifier.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from latent_morph.integrations.sktime import LatentODEClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = [], np.array(["slow", "fast"] * 30)
    >>> for label in y:
    ...     times = np.sort(rng.uniform(0, 6, rng.integers(8, 15)))
    ...     values = np.sin((2 if label == "fast" else 1) * times)
    ...     X.append(pd.DataFrame({"wave": values}, index=pd.to_timedelta(times, unit="s")))
    >>> model = LatentODEClassifier(max_epochs=15, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _tags: ClassVar[dict[str, Any]] = {
        "X_inner_mtype": "df-list",
        "y_inner_mtype": "numpy1D",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "capability:predict_proba": True,
        "capability:class_weight": True,
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "python_dependencies": ["torch"],
    }

    __init__ = constructor()

    def _convert(self, X: list[pd.DataFrame]) -> list[pd.DataFrame]:
        """Converts periods to the times of their starts."""
        return [
            frame.to_timestamp() if isinstance(frame.index, pd.PeriodIndex) else frame
            for frame in X
        ]

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Returns two settings for sktime's own tests, whatever `parameter_set` is."""
        return [dict(TINY), TINY | {"ode": "morph", "class_weight": "balanced"}]
