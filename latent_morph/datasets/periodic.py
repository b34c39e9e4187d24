"""make_periodic: sine waves of random frequency, observed at a few points."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.utils import Bunch, check_random_state

from latent_morph.checks import check_count
from latent_morph.series import SeriesBatch, subsample


def make_periodic(
    n_cases: int = 1000,
    n_times: int = 100,
    *,
    keep: float = 0.05,
    noise: float = 0.01,
    random_state: int | np.random.RandomState | None = None,
    frequency: tuple[float, float] = (0.4, 0.8),
    interval: tuple[float, float] = (0.0, 5.0),
    start: float = 1.0,
    start_deviation: float = 0.1,
    amplitude: float = 1.0,
) -> Bunch:
    """Generates the periodic set of Rubanova et al. (2019): x(t) = s + a sin(2 pi f t) + noise.

    Here t is counted from the start of `interval`, f is uniform in `frequency` and s is normal
    with mean `start` and standard deviation `start_deviation`, each drawn once per series. All
    series share `n_times` times: the start of the interval and uniform draws from it, sorted.

    Args:
        n_cases: N.
        n_times: T.
        keep: Fraction of the points of each series, at random and at least one, in `data`.
        noise: Standard deviation of the noise on every point.
        random_state: Seed or generator.
        frequency: Lowest and highest frequency.
        interval: First and last possible time.
        start: Mean of the start values.
        start_deviation: Standard deviation of the start values.
        amplitude: a.

    Returns:
        Bunch with `data`, SeriesBatch (N, round(keep T), 1): the input of a model; `target`,
        SeriesBatch (N, T, 1): all points, over which loss and error are computed; `clean`, tensor
        (N, T, 1): `target` without noise; `frequency` (N,); `feature_names`, `DESCR` and `source`.
    """
    n_cases, n_times = check_count("n_cases", n_cases), check_count("n_times", n_times)
    _check_range("frequency", frequency)
    _check_range("interval", interval)
    for name, value in (("noise", noise), ("start_deviation", start_deviation)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    rng = check_random_state(random_state)
    times = np.append(interval[0], rng.uniform(*interval, size=n_times - 1))
    times.sort()
    frequencies = rng.uniform(*frequency, size=(n_cases, 1))
    offset = rng.normal(start, start_deviation, size=(n_cases, 1))
    clean = offset + amplitude * np.sin(2 * np.pi * frequencies * (times - interval[0]))
    noisy = clean + noise * rng.standard_normal(clean.shape)
    target = SeriesBatch(
        values=torch.from_numpy(noisy).float().unsqueeze(-1),
        times=torch.from_numpy(times).repeat(n_cases, 1),
        mask=torch.ones(n_cases, n_times, 1, dtype=torch.bool),
    )
    return Bunch(
        data=subsample(target, keep, rng),
        target=target,
        clean=torch.from_numpy(clean).float().unsqueeze(-1),
        frequency=frequencies[:, 0],
        feature_names=["x"],
        DESCR=(
            f"{n_cases} generated sines x(t) = s + a sin(2 pi f t) at {n_times} irregular times, "
            f"of which a random {keep:.0%} are observed."
        ),
        source="synthetic",
    )


def _check_range(name: str, pair: tuple[float, float]) -> None:
    if len(pair) != 2 or not pair[0] <= pair[1]:
        raise ValueError(f"{name} must be (lowest, highest), got {pair!r}")
