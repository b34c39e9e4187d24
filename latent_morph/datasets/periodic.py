"""make_periodic: sines of random frequency, seen at a few of their points."""

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
    with mean `start` and standard deviation `start_deviation`, each drawn once a series. All
    series share `n_times` times: the start of the interval and uniform draws from it, sorted.

    Args:
        n_cases: N.
        n_times: T.
        keep: Fraction of its points, at random and at least one, that a series shows in `data`.
        noise: Standard deviation of the noise on every point.
        random_state: Seed or generator.
        frequency: Lowest and highest frequency.
        interval: First and last possible time.
        start: Mean of the start values.
        start_deviation: Standard deviation of the start values.
        amplitude: a.

    Returns:
        Bunch with `data`, SeriesBatch (N, round(keep T), 1): what a model may see; `target`,
        SeriesBatch (N, T, 1): every point, over which loss and error are taken; `clean`, tensor
        (N, T, 1): the same without noise; `frequency` (N,); `feature_names`, `DESCR` and `source`.
    """
    n_cases, n_times = check_count("n_cases", n_cases), check_count("n_times", n_times)
    _check_range("frequency", frequency)
    _check_range("interval", interval)
    if noise < 0 or start_deviation < 0:
        raise ValueError(
            f"noise and start_deviation are {noise} and {start_deviation}; wanted at least 0"
        )
    rng = check_random_state(random_state)
    times = np.append(interval[0], rng.uniform(*interval, size=n_times - 1))
    times.sort()
    pace = rng.uniform(*frequency, size=(n_cases, 1))
    offset = rng.normal(start, start_deviation, size=(n_cases, 1))
    clean = offset + amplitude * np.sin(2 * np.pi * pace * (times - interval[0]))
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
        frequency=pace[:, 0],
        feature_names=["x"],
        DESCR=(
            f"{n_cases} generated sines x(t) = s + a sin(2 pi f t) at {n_times} irregular times, "
            f"of which a random {keep:.0%} are shown."
        ),
        source="synthetic",
    )


def _check_range(name: str, pair: tuple[float, float]) -> None:
    if len(pair) != 2 or not pair[0] <= pair[1]:
        raise ValueError(f"{name} is {pair!r}; wanted (lowest, highest)")
