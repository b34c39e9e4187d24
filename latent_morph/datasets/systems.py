"""Known systems of ODEs: sampled trajectories, and accurate references on a finer grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import Bunch, check_random_state

from latent_morph.checks import check_choice, check_count
from latent_morph.series import SeriesBatch

VARIANTS = ("standard", "printed")
LOTKA_VOLTERRA_STARTS = (
    (5.0, 5.0, 1.0),
    (2.0, 6.0, 6.0),
    (3.0, 1.0, 4.0),
    (7.0, 1.0, 2.0),
    (6.0, 2.0, 4.0),
    (3.0, 3.0, 1.0),
    (2.0, 2.0, 2.0),
    (4.0, 4.0, 3.0),
    (3.0, 3.0, 4.0),
    (1.0, 1.0, 5.0),
)

Field = Callable[[np.ndarray], Sequence[float]]
# Tolerances of the references.
_RTOL, _ATOL = 1e-10, 1e-13


def lotka_volterra(state: np.ndarray) -> Sequence[float]:
    """Prey x, predator y, and a second predator z that feeds on y; all rates 0.75."""
    x, y, z = state
    return 0.75 * x * (1 - y), 0.75 * y * (x - z - 1), 0.75 * z * (y - 1)


def lorenz(state: np.ndarray) -> Sequence[float]:
    """Lorenz (1963) with sigma = 10, rho = 28, beta = 8/3: chaotic."""
    x, y, z = state
    return 10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z


def lorenz_printed(state: np.ndarray) -> Sequence[float]:
    """As printed in the paper, with another second line: it converges to (27, 27, 273.4)."""
    x, y, z = state
    return 10 * (y - x), x * (28 - y) - x, x * y - 8 / 3 * z


def robertson(state: np.ndarray) -> Sequence[float]:
    """Robertson (1966), rates 0.04, 1e4 and 3e7: stiff, and x + y + z is conserved."""
    x, y, z = state
    return (
        -0.04 * x + 1e4 * y * z,
        0.04 * x - 1e4 * y * z - 3e7 * y * y,
        3e7 * y * y,
    )


def robertson_printed(state: np.ndarray) -> Sequence[float]:
    """As printed in the paper, 3e4 for two of the rates: nothing is conserved and x grows."""
    x, y, z = state
    return (
        -0.04 * x + 3e4 * y * z,
        0.04 * x - 3e4 * y * y - 1e4 * y * z,
        3e4 * y * y,
    )


def make_lotka_volterra(
    n_times: int = 71,
    *,
    noise: float = 0.05,
    n_unseen: int = 16,
    refine: int = 10,
    variant: str = "standard",
    random_state: int | np.random.RandomState | None = None,
    starts: ArrayLike = LOTKA_VOLTERRA_STARTS,
    interval: tuple[float, float] = (0.0, 7.0),
) -> Bunch:
    """Generates the paper's 3-D Lotka-Volterra set: ten noisy trajectories, 16 unseen starts.

    The paper gives neither the number of points nor the unseen starts. 71 points, 0.1 apart, agree
    with the ratio of its training times to those of series of 1,000 points; unseen starts are
    uniform in the bounding box of the given ones.

    Args:
        n_times: Number of evenly spaced points per trajectory, including the start.
        noise: Standard deviation of the noise on every value of `data`, including the start.
        n_unseen: Number of further starts.
        refine: Factor by which the references are finer than the data.
        variant: "standard" or "printed", which are the same equations for this system.
        random_state: Seed or generator of noise and unseen starts.
        starts: (N, 3).
        interval: First and last time.

    Returns:
        Bunch with `data`, SeriesBatch (N, n_times, 3): the input of a model; `reference`,
        SeriesBatch (N, refine (n_times - 1) + 1, 3): the same trajectories without noise;
        `unseen`, SeriesBatch (n_unseen, ..., 3): references of the unseen starts; `field`, the
        vector field as a function of a state; `feature_names`, `variant`, `DESCR` and `source`.
    """
    check_choice("variant", variant, VARIANTS)
    check_count("n_unseen", n_unseen)
    checked = _check_starts("starts", starts)
    rng = check_random_state(random_state)
    unseen = rng.uniform(checked.min(0), checked.max(0), size=(n_unseen, 3))
    return _make_system(
        lotka_volterra,
        checked,
        _make_grid(interval, n_times, refine),
        refine,
        noise,
        rng,
        unseen=unseen,
        variant=variant,
        DESCR="3-D Lotka-Volterra: prey, predator and a predator of the predator.",
    )


def make_lorenz(
    n_times: int = 81,
    *,
    noise: float = 0.0,
    refine: int = 10,
    variant: str = "standard",
    random_state: int | np.random.RandomState | None = None,
    start: ArrayLike = (0.15, 0.15, 0.15),
    interval: tuple[float, float] = (0.0, 2.0),
) -> Bunch:
    """Generates one trajectory of the Lorenz system.

    The paper's second one is `start=(-3.1, -1.15, 8.15), interval=(0, 5)`. The paper does not say
    how many points it used.

    Args:
        n_times: Number of evenly spaced points, including the start.
        noise: Standard deviation of the noise on every value of `data`.
        refine: Factor by which the reference is finer than the data.
        variant: "standard", or "printed" for the second equation as in the paper.
        random_state: Seed or generator of the noise.
        start: (3,).
        interval: First and last time.

    Returns:
        Bunch with `data` (1, n_times, 3), `reference`, `field`, `feature_names`, `variant`,
        `DESCR` and `source`, as in `make_lotka_volterra`.
    """
    check_choice("variant", variant, VARIANTS)
    return _make_system(
        lorenz if variant == "standard" else lorenz_printed,
        _check_starts("start", np.asarray(start, dtype=float)[None]),
        _make_grid(interval, n_times, refine),
        refine,
        noise,
        check_random_state(random_state),
        variant=variant,
        DESCR=f"One trajectory of the Lorenz system, {variant} equations.",
    )


def make_robertson(
    n_times: int = 50,
    *,
    noise: float = 0.0,
    refine: int = 10,
    variant: str = "standard",
    spacing: str = "even",
    random_state: int | np.random.RandomState | None = None,
    start: ArrayLike = (1.0, 0.0, 0.0),
    interval: tuple[float, float] = (0.0, 120.0),
) -> Bunch:
    """Generates one trajectory of Robertson's reaction, the classic stiff system.

    The paper mentions a component "in the 10^4 scale". Only its printed variant has one.

    Args:
        n_times: Number of points, including the start. The paper does not give it; 50 agree with
            its training times.
        noise: Standard deviation of the noise on every value of `data`.
        refine: Factor by which the reference is finer than the data.
        variant: "standard", or "printed" for the rates as in the paper.
        spacing: "even", or "log" for times that are dense at the start, where the state changes
            fastest.
        random_state: Seed or generator of the noise.
        start: (3,).
        interval: First and last time.

    Returns:
        Bunch with `data` (1, n_times, 3), `reference`, `field`, `feature_names`, `variant`,
        `DESCR` and `source`, as in `make_lotka_volterra`.
    """
    check_choice("variant", variant, VARIANTS)
    check_choice("spacing", spacing, ("even", "log"))
    grid = _make_grid(interval, n_times, refine)
    if spacing == "log":
        # From a millionth of the span on, as y rises within a hundredth of a second.
        exponents = np.linspace(0.0, 1.0, len(grid)) * np.log(1e6)
        grid = grid[0] + (grid[-1] - grid[0]) * (np.expm1(exponents) / (1e6 - 1))
    return _make_system(
        robertson if variant == "standard" else robertson_printed,
        _check_starts("start", np.asarray(start, dtype=float)[None]),
        grid,
        refine,
        noise,
        check_random_state(random_state),
        variant=variant,
        DESCR=f"One trajectory of Robertson's stiff reaction, {variant} equations.",
    )


def solve(field: Field, starts: ArrayLike, times: ArrayLike) -> np.ndarray:
    """Integrates trajectories by scipy's LSODA, which detects stiffness.

    Args:
        field: Maps a state (C,) to its velocity.
        starts: (N, C), the states at the first of `times`.
        times: (T,) increasing.

    Returns:
        (N, T, C).
    """
    from scipy.integrate import solve_ivp

    grid = np.asarray(times, dtype=float)
    paths = []
    for start in np.asarray(starts, dtype=float):
        solution = solve_ivp(
            lambda t, y: field(y),
            (grid[0], grid[-1]),
            start,
            method="LSODA",
            t_eval=grid,
            rtol=_RTOL,
            atol=_ATOL,
        )
        if not solution.success:
            raise ValueError(f"integration from {start.tolist()} failed: {solution.message}")
        solution.y[:, 0] = start  # the interpolant has a rounding error
        paths.append(solution.y.T)
    return np.stack(paths)


def _make_system(
    field: Field,
    starts: np.ndarray,
    grid: np.ndarray,
    refine: int,
    noise: float,
    rng: np.random.RandomState,
    *,
    unseen: np.ndarray | None = None,
    variant: str,
    DESCR: str,
) -> Bunch:
    if noise < 0:
        raise ValueError(f"noise must be at least 0, got {noise}")
    clean = solve(field, starts, grid)
    noisy = clean[:, ::refine] + noise * rng.standard_normal(clean[:, ::refine].shape)
    bunch = Bunch(
        data=_make_batch(grid[::refine], noisy),
        reference=_make_batch(grid, clean),
        field=field,
        feature_names=["x", "y", "z"],
        variant=variant,
        DESCR=DESCR,
        source="synthetic",
    )
    if unseen is not None:
        bunch.unseen = _make_batch(grid, solve(field, unseen, grid))
    return bunch


def _make_batch(times: np.ndarray, values: np.ndarray) -> SeriesBatch:
    # Double precision, as components of a stiff system differ by factors of a million.
    return SeriesBatch(
        values=torch.from_numpy(values),
        times=torch.from_numpy(times).repeat(len(values), 1),
        mask=torch.ones(values.shape, dtype=torch.bool),
    )


def _make_grid(interval: tuple[float, float], n_times: int, refine: int) -> np.ndarray:
    check_count("n_times", n_times, least=2)
    check_count("refine", refine)
    if len(interval) != 2 or not np.isfinite(interval).all() or not interval[0] < interval[1]:
        raise ValueError(f"interval must be (first, last) with first < last, got {interval!r}")
    return np.linspace(*interval, refine * (n_times - 1) + 1)


def _check_starts(name: str, starts: ArrayLike) -> np.ndarray:
    """Returns starts (N, 3) as floats; a single start comes as (1, 3)."""
    checked = np.asarray(starts, dtype=float)
    if checked.ndim != 2 or checked.shape[1] != 3 or not len(checked):
        expected = "(3,)" if name == "start" else "(N, 3)"
        shape = checked.shape[1:] if name == "start" else checked.shape
        raise ValueError(f"{name} must have shape {expected}, got {shape}")
    if not np.isfinite(checked).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return checked
