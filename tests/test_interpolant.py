"""The interpolant of a series against np.interp, channel by channel."""

import numpy as np
import pytest
import torch

from latent_morph.filters import interpolate, resample
from latent_morph.series import as_series

pytestmark = pytest.mark.usefixtures("float64")
NAN = float("nan")


def make_series(n_cases=6, n_channels=3, seed=0, observed=0.5):
    """Times and values with NaN, of unequal lengths; some channels have no observation."""
    rng = np.random.default_rng(seed)
    X = []
    for i in range(n_cases):
        times = 100 + np.sort(rng.uniform(0, 6, rng.integers(3, 20)))
        values = rng.standard_normal((len(times), n_channels))
        values[rng.random(values.shape) > observed] = NAN
        values[rng.integers(len(times)), 0] = 1.0
        if i % 2:
            values[:, 1] = NAN
        X.append((times, values))
    return X


def read(X, pad=0):
    """Values, times and mask of series, with noise where the mask is False."""
    batch = as_series(X, dtype=torch.float64)
    batch = batch if not pad else batch._pad_to(batch.n_times + pad)
    noise = torch.randn(batch.values.shape, generator=torch.Generator().manual_seed(9))
    return torch.where(batch.mask, batch.values, 1e3 * noise), batch.times, batch.mask


def expected_at(case, query):
    """np.interp of every channel of one series at times since its first observed row."""
    times, values = case
    start = times[~np.isnan(values).all(1)][0]
    columns = []
    for column in values.T:
        known = ~np.isnan(column)
        if known.any():
            columns.append(np.interp(query, times[known] - start, column[known]))
        else:
            columns.append(np.zeros(len(query)))
    return np.stack(columns, 1)


@pytest.mark.parametrize("observed", [0.2, 0.6, 1.0])
def test_interpolate_equals_numpy_at_every_row(observed):
    X = make_series(observed=observed)
    answer = interpolate(*read(X))
    for i, (times, values) in enumerate(X):
        rows = times[~np.isnan(values).all(1)]
        clock = (np.clip(times, rows[0], rows[-1]) - rows[0])[: len(times)]
        np.testing.assert_allclose(answer.times[i, : len(times)], clock, atol=1e-12)
        expected = expected_at((times, values), clock)
        np.testing.assert_allclose(answer.values[i, : len(times)], expected, atol=1e-12)
        np.testing.assert_allclose(answer.span[i], rows[-1] - rows[0], atol=1e-12)
        assert answer.observed[i].sum() == len(rows)


def test_interpolate_is_zero_in_a_channel_never_observed():
    answer = interpolate(*read(make_series()))
    assert (answer.values[1::2, :, 1] == 0).all()
    assert (answer.values[0::2, :, 1] != 0).any()


def test_interpolate_keeps_observations_at_repeated_times():
    times = np.array([0.0, 1.0, 1.0, 1.0, 2.0])
    values = np.array([[0.0], [1.0], [NAN], [5.0], [6.0]])
    answer = interpolate(*read([(times, values)]))
    assert answer.values[0, :, 0].tolist() == [0.0, 1.0, 1.0, 5.0, 6.0]


@pytest.mark.parametrize("value", [NAN, 2.5])
def test_interpolate_one_row(value):
    answer = interpolate(*read([(np.array([7.0]), np.array([value]))]))
    assert answer.values.item() == (0.0 if np.isnan(value) else value)
    assert answer.times.item() == 0.0 and answer.span.item() == 0.0
    assert answer.weights.item() == float(not np.isnan(value))


def test_interpolate_unobserved_rows_change_nothing():
    """Rows without any observation, before, within and after a series."""
    for times, values in make_series():
        kept = ~np.isnan(values).all(1)
        times, values = times[kept], values[kept]
        inner = (times[:1] + times[-1:]) / 2
        extra = np.concatenate([times[0] - [3.0, 1.0], inner, times[-1] + [1.0, 50.0]])
        merged = np.concatenate([times, extra])
        order = np.argsort(merged, kind="stable")
        blank = np.full((len(extra), values.shape[1]), NAN)
        longer = (merged[order], np.concatenate([values, blank])[order])
        rows = torch.from_numpy(np.flatnonzero(order < len(times)))
        short, long = interpolate(*read([(times, values)])), interpolate(*read([longer]))
        for name in ("values", "times", "observed", "weights"):
            actual = getattr(long, name)[:, rows]
            torch.testing.assert_close(actual, getattr(short, name), atol=1e-12, rtol=0)
        assert long.observed.sum() == len(times) and long.weights.sum() == short.weights.sum()
        torch.testing.assert_close(long.span, short.span)
        step = torch.tensor(0.37)
        n_points = int(short.span / step) + 4
        left, right = resample(short, step, n_points), resample(long, step, n_points)
        torch.testing.assert_close(left[0], right[0], atol=1e-12, rtol=0)
        assert torch.equal(left[1], right[1])


def test_interpolate_weights_are_shares_of_time():
    X = make_series()
    answer = interpolate(*read(X))
    torch.testing.assert_close(answer.weights.sum(1), torch.ones(len(X)))
    assert (answer.weights[~answer.observed] == 0).all()
    times, _ = X[0]
    rows = answer.times[0, answer.observed[0]].numpy()
    expected = np.trapezoid(rows**2, rows) / (rows[-1] - rows[0])
    np.testing.assert_allclose((answer.weights[0] * answer.times[0] ** 2).sum(), expected)
    # Without a span, all rows count the same.
    still = interpolate(*read([(np.ones(4), np.array([1.0, NAN, 2.0, 3.0]))]))
    assert still.weights[0].tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


@pytest.mark.parametrize("step", [0.05, 0.5, 1.0, 20.0])
def test_resample_equals_numpy(step):
    X = make_series()
    interpolant = interpolate(*read(X))
    n_points = int(interpolant.span.max() / step) + 3
    grid, inside = resample(interpolant, torch.tensor(step), n_points)
    query = step * np.arange(n_points)
    for i, case in enumerate(X):
        np.testing.assert_allclose(grid[i], expected_at(case, query), atol=1e-9)
        assert torch.equal(inside[i], torch.from_numpy(query <= interpolant.span[i].item()))


@pytest.mark.parametrize("step", [0.1, 1 / 3, 7.0])
def test_resample_of_a_regular_series_is_the_series(step):
    """Rounding of times does not move a row beyond its grid point."""
    values = np.random.default_rng(0).standard_normal((200, 2))
    interpolant = interpolate(*read([(1e6 + step * np.arange(200), values)]))
    grid, inside = resample(interpolant, torch.tensor(step), 203)
    np.testing.assert_allclose(grid[0, :200], values, atol=1e-6)
    np.testing.assert_allclose(grid[0, 200:], values[[-1] * 3], atol=0)
    assert inside.sum() == 200


def test_resample_at_a_jump_takes_the_later_value():
    times = np.array([0.0, 1.0, 1.0, 2.0])
    interpolant = interpolate(*read([(times, np.array([0.0, 1.0, 5.0, 6.0]))]))
    grid, _ = resample(interpolant, torch.tensor(0.5), 6)
    assert grid[0, :, 0].tolist() == [0.0, 0.5, 5.0, 5.5, 6.0, 6.0]


def test_interpolant_does_not_depend_on_padding_and_batch():
    X = make_series()
    together = interpolate(*read(X, pad=7))
    step = torch.tensor(0.25)
    grid, inside = resample(together, step, 40)
    for i, case in enumerate(X):
        alone, n_times = interpolate(*read([case])), len(case[0])
        for name in ("values", "times", "observed", "weights"):
            assert torch.equal(getattr(together, name)[i : i + 1, :n_times], getattr(alone, name))
        assert torch.equal(together.span[i : i + 1], alone.span)
        assert not together.observed[i, n_times:].any()
        lone_grid, lone_inside = resample(alone, step, 40)
        assert torch.equal(grid[i : i + 1], lone_grid)
        assert torch.equal(inside[i : i + 1], lone_inside)


def test_interpolate_with_times_of_large_offset_in_single_precision():
    """Times are in double precision until they are counted from the first row."""
    times = 1.7e9 + np.array([0.0, 0.25, 1.0])
    batch = as_series([(times, np.array([0.0, NAN, 4.0]))], dtype=torch.float32)
    answer = interpolate(batch.values, batch.times, batch.mask)
    assert answer.values.dtype == torch.float32 and answer.times.dtype == torch.float64
    assert answer.values[0, :, 0].tolist() == [0.0, 1.0, 4.0]
