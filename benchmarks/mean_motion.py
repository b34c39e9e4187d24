"""The simplest guess at a demonstrated motion, without an ODE: what every method has to beat."""

import numpy as np

from latent_morph.models.dynamics import measured_fade
from latent_morph.series import SeriesBatch


def mean_motion(shown: SeriesBatch, starts: np.ndarray, n_times: int) -> np.ndarray:
    """The mean of what was shown, from other starts (N, C): (N, n_times, C).

    What a start is away from that of the mean fades as differences between demonstrations do.

    Args:
        shown: Demonstrations on one even grid of times.
        starts: Where to begin.
        n_times: Of the guess, evenly spaced over the same span.
    """
    mean = shown.values.numpy().mean(0)
    share, given = (np.linspace(0, 1, n) for n in (n_times, len(mean)))
    middle = np.stack([np.interp(share, given, channel) for channel in mean.T], 1)
    left = (1 - share) ** measured_fade(shown)
    return middle + (starts - middle[0])[:, np.newaxis] * left[:, np.newaxis]
