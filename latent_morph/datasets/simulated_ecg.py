"""make_ecg: beats of the ECG oscillator of McSharry et al. (2003), a stand-in for real ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.signal import lfilter
from sklearn.utils import Bunch, check_random_state

from latent_morph.checks import check_count
from latent_morph.datasets.ecg import N_SAMPLES, RATE, TARGET_NAMES, beats_to_bunch

_OVERSAMPLING = 3  # the oscillator steps at 360 Hz, of which every third sample is kept
# Angle, height and width of the waves P, Q, R, S, T on the limit cycle. The normal rhythm is that
# of the paper; the others modify it as the arrhythmia modifies the beat.
_NORMAL = (
    (-np.pi / 3, -np.pi / 12, 0.0, np.pi / 12, np.pi / 2),
    (1.2, -5.0, 30.0, -7.5, 0.75),
    (0.25, 0.1, 0.1, 0.1, 0.4),
)
_WAVES = {
    "N": _NORMAL,
    # Early, with another P wave and a flatter T wave.
    "S": (
        (-np.pi / 2.6, -np.pi / 12, 0.0, np.pi / 12, np.pi / 1.8),
        (-0.8, -4.0, 27.0, -8.5, 0.55),
        (0.2, 0.1, 0.09, 0.1, 0.35),
    ),
    # No P wave, a broad QRS complex, an inverted T wave.
    "V": (
        (-np.pi / 3, -np.pi / 7, 0.0, np.pi / 6, np.pi / 1.9),
        (0.0, -2.0, 13.0, -9.0, -1.6),
        (0.25, 0.2, 0.24, 0.24, 0.5),
    ),
    # Halfway between normal and ventricular.
    "F": (
        (-np.pi / 3, -np.pi / 9, 0.0, np.pi / 9, np.pi / 1.95),
        (0.6, -3.5, 20.0, -8.5, -0.4),
        (0.25, 0.15, 0.16, 0.17, 0.45),
    ),
    # Paced: a narrow spike, then a broad response.
    "Q": (
        (-np.pi / 3, -np.pi / 30, 0.0, np.pi / 5, np.pi / 1.7),
        (0.1, 25.0, 8.0, -10.0, 1.3),
        (0.25, 0.03, 0.2, 0.22, 0.45),
    ),
}
_PERIOD = {"N": 0.80, "S": 0.66, "V": 0.86, "F": 0.76, "Q": 0.84}  # seconds to the next R peak
_PERIOD_STD = 0.14  # relative standard deviation of the period
_CLASS_FREQUENCIES = np.array([90589, 2779, 7236, 803, 8039]) / 109446  # in the database
_DESCR = """\
Synthetic stand-in for the MIT-BIH heartbeats: beats of five kinds from the ECG oscillator of
McSharry et al. (2003), scaled and cut like the real ones. Results on it say nothing about the real
data."""


def make_ecg(
    n_cases: int = 1000,
    *,
    random_state: int | np.random.RandomState | None = None,
    keep: float = 1.0,
    balanced: bool = False,
    return_X_y: bool = False,
    as_frame: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Generates beats with the schema of `fetch_ecg`.

    The oscillator goes around its limit cycle once per beat while z' = -sum_i a_i d_i
    exp(-d_i^2 / 2 b_i^2) - (z - z0), with d_i the angle to wave i; z is the ECG. A beat starts at
    its R peak, lasts 1.2 periods, so that the next R peak shows, and is scaled to [0, 1]. Angles,
    heights, widths and period vary from beat to beat; breathing modulates z0, and noise is added.

    Args:
        n_cases: N.
        random_state: Seed or generator.
        keep: Fraction of each beat's samples to keep, drawn at random, at least one.
        balanced: Equal classes instead of the class frequencies of the database, where N has 83 %.
            With the latter, every class has at least two beats if there are 20 beats or more.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.

    Returns:
        Bunch as of `fetch_ecg`, with `source="synthetic"`.
    """
    check_count("n_cases", n_cases)
    rng = check_random_state(random_state)
    labels = _draw_labels(n_cases, balanced, rng)
    return beats_to_bunch(
        _simulate_beats(labels, rng),
        labels,
        keep,
        rng,
        descr=_DESCR,
        source="synthetic",
        return_X_y=return_X_y,
        as_frame=as_frame,
    )


def _draw_labels(n_cases: int, balanced: bool, rng: np.random.RandomState) -> np.ndarray:
    n_classes = len(TARGET_NAMES)
    if balanced:
        labels = np.arange(n_cases) % n_classes
    else:
        rare = np.rint(n_cases * _CLASS_FREQUENCIES[1:]).astype(int)
        if n_cases >= 20:
            rare = np.maximum(rare, 2)
        labels = np.repeat(np.arange(n_classes), np.append(n_cases - rare.sum(), rare))
    return rng.permutation(labels)


def _simulate_beats(labels: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Simulates zero-padded beats (N, 187) in [0, 1], float32, with the given labels (N,)."""
    n_cases, n_steps = len(labels), _OVERSAMPLING * N_SAMPLES
    periods = np.array([_PERIOD[name] for name in TARGET_NAMES])[labels]
    periods = np.clip(periods * (1 + _PERIOD_STD * rng.standard_normal(n_cases)), 0.35, 1.6)
    waves = np.array([_WAVES[name] for name in TARGET_NAMES])[labels]  # (N, 3, 5)
    # An ectopic beat is followed by a normal one, a paced beat by another paced one.
    next_waves = np.where((labels == TARGET_NAMES.index("Q"))[:, None, None], waves, _NORMAL)
    n_burn_in = n_steps // 4  # the transient from z = z0 decays before the R peak at angle 0
    seconds = (np.arange(n_steps + n_burn_in) - n_burn_in) / (_OVERSAMPLING * RATE)
    angle = 2 * np.pi * seconds / periods[:, None]
    force = np.zeros_like(angle)
    for shift, shape in ((0.0, _perturb(waves, rng)), (2 * np.pi, _perturb(next_waves, rng))):
        for centre, height, width in zip(*shape.transpose(1, 2, 0)[..., None], strict=True):
            offset = angle - shift - centre
            force -= height * offset * np.exp(-0.5 * (offset / width) ** 2)
    breathing = 0.03 * np.sin(2 * np.pi * 0.25 * seconds + rng.uniform(0, 6.28, (n_cases, 1)))
    # z' = force - (z - z0) is linear in z: Euler's method is a first-order filter.
    step = 1 / (_OVERSAMPLING * RATE)
    z = lfilter([step], [1, step - 1], force + breathing, axis=1)[:, n_burn_in::_OVERSAMPLING]
    amplitude = np.ptp(z, axis=1, keepdims=True)
    drift = np.cumsum(rng.standard_normal(z.shape), axis=1) * 0.004 * amplitude
    z += drift + 0.015 * amplitude * rng.standard_normal(z.shape)

    lengths = np.minimum(np.rint(1.2 * periods * RATE), N_SAMPLES).astype(int)
    present = np.arange(N_SAMPLES) < lengths[:, None]
    low = np.where(present, z, np.inf).min(1, keepdims=True)
    high = np.where(present, z, -np.inf).max(1, keepdims=True)
    return np.where(present, (z - low) / (high - low), 0.0).astype(np.float32)


def _perturb(waves: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Perturbs angles by a few degrees, heights and widths by a fraction; (N, 3, 5)."""
    jitter = rng.standard_normal(waves.shape) * np.array([0.06, 0.25, 0.15])[:, None]
    perturbed = waves * (1 + jitter)
    perturbed[:, 0] = waves[:, 0] + jitter[:, 0]
    perturbed[:, 2] = np.maximum(perturbed[:, 2], 0.02)
    return perturbed
