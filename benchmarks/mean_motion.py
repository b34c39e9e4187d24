"""A baseline for demonstrated motions that needs no ODE: the mean demonstration."""

import numpy as np

from latent_morph.models.dynamics import measure_fade
from latent_morph.series import SeriesBatch


def predict_mean_motion(
    demonstrations: SeriesBatch, starts: np.ndarray, n_times: int
) -> np.ndarray:
    """Predicts the mean demonstration, shifted to other starts.

    The shift decays along the motion as differences between the demonstrations do.

    Args:
        demonstrations: (M, T, C) on one even grid of times.
        starts: (N, C).
        n_times: Number of evenly spaced times over the same span.

    Returns:
        (N, n_times, C).
    """
    mean = demonstrations.values.numpy().mean(0)
    times, grid = (np.linspace(0, 1, n) for n in (n_times, len(mean)))
    mean = np.stack([np.interp(times, grid, channel) for channel in mean.T], 1)
    decay = (1 - times) ** measure_fade(demonstrations)
    return mean + (starts - mean[0])[:, np.newaxis] * decay[:, np.newaxis]
