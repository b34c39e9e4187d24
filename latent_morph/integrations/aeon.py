"""LatentODEClassifier with the interface of aeon."""

from typing import Any, ClassVar

import numpy as np

from latent_morph.checks import check_count
from latent_morph.integrations.adapter import TINY, AdaptedClassifier, constructor

try:
    from aeon.classification.base import BaseClassifier
except ImportError as error:
    raise ImportError(
        'latent_morph.integrations.aeon needs aeon: pip install "latent_morph[aeon]"'
    ) from error

__all__ = ["LatentODEClassifier"]


class LatentODEClassifier(AdaptedClassifier, BaseClassifier):
    """`latent_morph.LatentODEClassifier` as an aeon classifier.

    Accepts all collections of aeon, with unequal lengths, any number of channels, and NaN for
    missing values. Parameters are those of `latent_morph.LatentODEClassifier` and one more.

    Parameters
    ----------
    time_channel : int or None, default=None
        The channel that holds the times, since aeon's collections have none. It is not used
        otherwise. With None, times are 0, 1, 2, ...

    Attributes
    ----------
    classifier_ : latent_morph.LatentODEClassifier
        The fitted classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph.integrations.aeon import LatentODEClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = [], np.array(["slow", "fast"] * 30)
    >>> for label in y:
    ...     times = np.sort(rng.uniform(0, 6, rng.integers(8, 15)))
    ...     X.append(np.stack([times, np.sin((2 if label == "fast" else 1) * times)]))
    >>> model = LatentODEClassifier(time_channel=0, max_epochs=15, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _tags: ClassVar[dict[str, Any]] = {
        "X_inner_type": "np-list",
        "capability:multivariate": True,
        "capability:unequal_length": True,
        "capability:missing_values": True,
        "algorithm_type": "deeplearning",
        "python_dependencies": ["torch"],
    }

    time_channel: int | None

    __init__ = constructor(time_channel=None)

    def _convert(self, X: list[np.ndarray]) -> list[Any]:
        """Converts (channels, time) to (time, channels), or to (times, values)."""
        if self.time_channel is None:
            return [values.T for values in X]
        channel, n_channels = check_count("time_channel", self.time_channel, least=0), len(X[0])
        if n_channels < 2 or channel >= n_channels:
            raise ValueError(
                f"time_channel must be one of two channels or more, got {channel} for an X of "
                f"{n_channels}"
            )
        return [(values[channel], np.delete(values, channel, axis=0).T) for values in X]

    @classmethod
    def _get_test_params(cls, parameter_set: str = "default") -> dict[str, Any]:
        return dict(TINY)
