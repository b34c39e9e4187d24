"""make_activity: simulated people with four tags, a stand-in with the schema of Human Activity."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.signal import lfilter
from sklearn.utils import Bunch, check_random_state

from latent_morph.checks import check_count
from latent_morph.datasets.activity import (
    STRIDE,
    TARGET_NAMES,
    TICK,
    WINDOW,
    cut_windows,
    windows_to_bunch,
)

_PEOPLE, _N_RECORDINGS = "ABCDE", 5
_ROOM = 5.0  # metres, square
# Ticks between readings, and their probabilities.
_GAPS, _GAP_PROBABILITIES = np.array([2, 3, 4, 6]), np.array([0.15, 0.6, 0.2, 0.05])

# Activities that may follow each activity, and its range of durations in readings. "standing up"
# and "falling" are transitions between postures, so the label depends on the movement.
_TRANSITIONS = {
    "walking": ("falling", "lying", "sitting", "on all fours", "sitting on the ground", "walking"),
    "falling": ("lying",),
    "lying": ("standing up", "standing up", "lying"),
    "sitting": ("standing up", "sitting"),
    "standing up": ("walking",),
    "on all fours": ("lying", "standing up"),
    "sitting on the ground": ("standing up",),
}
_DURATIONS = {
    "walking": (80, 250),
    "falling": (20, 50),
    "lying": (150, 400),
    "sitting": (100, 300),
    "standing up": (50, 120),
    "on all fours": (50, 150),
    "sitting on the ground": (80, 250),
}
# Resting places of left ankle, right ankle, chest and belt: (along the heading, height) in metres.
_UPRIGHT = ((0.0, 0.12), (0.0, 0.12), (0.0, 1.30), (0.0, 1.00))
_FLAT = ((0.85, 0.12), (0.85, 0.12), (-0.45, 0.20), (0.0, 0.18))
_POSTURES = {
    "walking": _UPRIGHT,
    "falling": _FLAT,
    "lying": _FLAT,
    "sitting": ((0.40, 0.12), (0.40, 0.12), (0.0, 0.90), (0.0, 0.55)),
    "standing up": _UPRIGHT,
    "on all fours": ((-0.50, 0.10), (-0.50, 0.10), (0.40, 0.50), (0.0, 0.48)),
    "sitting on the ground": ((0.70, 0.12), (0.70, 0.12), (0.0, 0.58), (0.0, 0.20)),
}
# Fraction of the remaining way to the posture per reading.
_APPROACH_RATE = {"falling": 0.12, "standing up": 0.03}
_DESCR = """\
Synthetic stand-in for Localization Data for Person Activity: five simulated people walk, fall,
sit, lie and get up in a room, and four tags are read in turn with noise and outliers. Results on
it say nothing about the real data."""


def make_activity(
    n_cases: int = 1000,
    *,
    random_state: int | np.random.RandomState | None = None,
    return_X_y: bool = False,
    as_frame: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Generates windows with the schema of `fetch_activity`.

    Five people of different height, pace and noise make five recordings each, in which activities
    are a Markov chain. Tags move towards the posture of the activity, ankles swing while walking,
    and at each reading one tag reports its position. Windows are cut as from the real recordings,
    so neighbouring windows overlap.

    Args:
        n_cases: Number of windows N, spread over the recordings.
        random_state: Seed or generator.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.

    Returns:
        Bunch as of `fetch_activity`, with `source="synthetic"`.
    """
    check_count("n_cases", n_cases)
    rng = check_random_state(random_state)
    people = {
        name: {
            "height": rng.uniform(0.9, 1.1),
            "pace": rng.uniform(0.7, 1.3),
            "noise": rng.uniform(0.04, 0.08),
        }
        for name in _PEOPLE
    }
    # People vary fastest, so that few windows already come from several people.
    names = [f"{person}{i:02d}" for i in range(1, _N_RECORDINGS + 1) for person in _PEOPLE]
    counts = n_cases // len(names) + (np.arange(len(names)) < n_cases % len(names))
    parts = [
        (name, *_simulate_recording(STRIDE * (count - 1) + WINDOW + 1, **people[name[0]], rng=rng))
        for name, count in sorted(zip(names, counts.tolist(), strict=True))
        if count
    ]
    recordings = np.repeat([part[0] for part in parts], [len(part[1]) for part in parts])
    ticks, values, labels = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    arrays = cut_windows(ticks, values, labels, recordings)
    return windows_to_bunch(arrays, _DESCR, "synthetic", return_X_y=return_X_y, as_frame=as_frame)


def _simulate_recording(
    n_points: int, height: float, pace: float, noise: float, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Simulates one recording: ticks (R,), values (R, 12) with NaN, labels (R,)."""
    labels, rates = _draw_activities(n_points, rng)
    ticks = np.cumsum(rng.choice(_GAPS, size=n_points, p=_GAP_PROBABILITIES))
    seconds = np.diff(ticks, prepend=ticks[0]) * TICK
    body = _simulate_postures(labels, rates, height)

    # Gait: while walking, ankles swing in opposite phase along the heading, and lift.
    gait = _low_pass(np.append(False, labels == 0)[:-1].astype(float), np.full(n_points, 0.1))
    phase = 2 * np.pi * 0.9 * pace * np.cumsum(seconds) + rng.uniform(0, 2 * np.pi)
    for ankle, sign in ((0, 1.0), (1, -1.0)):
        body[:, ankle, 0] += sign * 0.3 * gait * np.sin(phase)
        body[:, ankle, 1] += 0.1 * gait * np.maximum(sign * np.cos(phase), 0.0)

    turn = np.cumsum(rng.standard_normal(n_points) * 0.8 * np.sqrt(seconds) * (0.2 + gait))
    heading = rng.uniform(0, 2 * np.pi) + turn
    along = np.stack([np.cos(heading), np.sin(heading)], axis=-1)  # (R, 2)
    across = np.stack([-along[:, 1], along[:, 0]], axis=-1)
    track = rng.uniform(0, _ROOM, 2) + np.cumsum(along * (pace * gait * seconds)[:, None], axis=0)
    track = _ROOM - np.abs(track % (2 * _ROOM) - _ROOM)  # walls reflect
    side = np.array([0.12, -0.12, 0.0, 0.0])
    floor = track[:, None] + along[:, None] * body[:, :, :1] + across[:, None] * side[:, None]
    position = np.concatenate([floor, body[:, :, 1:]], axis=-1)  # (R, 4, 3)
    position += noise * rng.standard_t(
        3, size=position.shape
    )  # heavy tails, as radio positions have

    # Tags report in turn; with probability 0.05 one is skipped.
    tag = np.cumsum(rng.choice([1, 2], size=n_points, p=[0.95, 0.05])) % 4
    values = np.full((n_points, 4, 3), np.nan)
    rows = np.arange(n_points)
    values[rows, tag] = position[rows, tag]
    return ticks, values.reshape(n_points, 12), labels


def _draw_activities(n_points: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Draws the label of each reading and the approach rate to its posture, both (R,)."""
    activity = list(_TRANSITIONS)[rng.randint(len(_TRANSITIONS))]
    codes: list[int] = []
    rates: list[float] = []
    durations: list[int] = []
    while sum(durations) < n_points:
        codes.append(TARGET_NAMES.index(activity))
        rates.append(_APPROACH_RATE.get(activity, 0.05) * rng.uniform(0.7, 1.4))
        durations.append(rng.randint(*_DURATIONS[activity]))
        activity = _TRANSITIONS[activity][rng.randint(len(_TRANSITIONS[activity]))]
    labels = np.repeat(codes, durations)[:n_points]
    return labels, np.repeat(rates, durations)[:n_points]


def _simulate_postures(labels: np.ndarray, rates: np.ndarray, height: float) -> np.ndarray:
    """Smoothed position of each tag relative to the point below the belt: (R, 4, 2)."""
    postures = np.array([_POSTURES[name] for name in TARGET_NAMES])
    target = height * postures[labels]
    flat = target.reshape(len(target), -1)
    return np.stack([_low_pass(x, rates) for x in flat.T], axis=-1).reshape(target.shape)


def _low_pass(x: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Filters x (R,) by y_k = y_{k-1} + rates_k (x_k - y_{k-1}), from y_0 = x_0."""
    # Rates are piecewise constant, and a constant rate is a linear filter.
    starts = np.flatnonzero(np.append(True, np.diff(rates) != 0))
    y = np.empty(len(x))
    previous = x[0]
    for a, b in zip(starts, np.append(starts[1:], len(x)), strict=True):
        rate = rates[a]
        y[a:b], _ = lfilter([rate], [1, rate - 1], x[a:b], zi=[(1 - rate) * previous])
        previous = y[b - 1]
    return y
