"""Statistics of each channel against NumPy and pandas."""

import numpy as np
import pandas as pd
import pytest
import torch

from latent_morph import SeriesStatistics, as_series
from latent_morph.filters.statistics import DECAYS, KINDS

NAN = float("nan")


def make_series(n_cases=10, seed=0, start=50.0):
    """Two channels in units of their own; every third series lacks the second one."""
    rng = np.random.default_rng(seed)
    X = []
    for i in range(n_cases):
        times = start + np.sort(rng.uniform(0, 24, rng.integers(4, 30)))
        values = rng.standard_normal((len(times), 2)) * [1.0, 1000.0] + [3.0, 1e5]
        values[rng.random(values.shape) < 0.4] = NAN
        values[1, 0] = 1.0
        if i % 3 == 2:
            values[:, 1] = NAN
        X.append((times, values))
    return X


def expected_row(times, values, span):
    """The features of one series, from pandas and NumPy."""
    frame = pd.DataFrame(values, index=times)
    first, last = frame.dropna(how="all").index[[0, -1]]
    columns = []
    for channel in frame:
        x = frame[channel].dropna()
        if not len(x):
            columns.append([0.0] + [NAN] * (len(KINDS) - 1))
            continue
        t = x.index.to_numpy()
        slope = np.polyfit(t - first, x, 1)[0] if len(x) > 1 else 0.0
        row = [len(x), x.mean(), x.std(ddof=0), x.min(), x.max(), x.iloc[0], x.iloc[-1]]
        row += [slope, last - t[-1]]
        for decay in DECAYS:
            row.append(np.average(x, weights=np.exp((t - t[-1]) / (decay * span))))
        columns.append(row)
    return np.array(columns).T.ravel()


def longest(X):
    rows = [t[~np.isnan(v).all(1)] for t, v in X]
    return max(t[-1] - t[0] for t in rows)


def test_statistics_equal_numpy_and_pandas():
    X = make_series()
    model = SeriesStatistics(fill="nan").fit(X)
    new = make_series(seed=1)
    for series in (X, new):
        expected = [expected_row(*case, longest(X)) for case in series]
        np.testing.assert_allclose(model.transform(series), expected, rtol=1e-9, atol=1e-9)


def test_statistics_are_named_in_their_order():
    X = make_series()
    table = SeriesStatistics(fill="nan").set_output(transform="pandas").fit_transform(X)
    assert len(set(table.columns)) == table.shape[1] == 2 * len(KINDS)
    frames = [pd.DataFrame(values) for _, values in X]
    for kind in ("count", "mean", "min", "max"):
        expected = [getattr(frame, kind)() for frame in frames]
        for channel in range(2):
            column = [row[channel] for row in expected]
            np.testing.assert_allclose(table[f"x{channel} {kind}"], column)
    last = [frame[0].dropna().iloc[-1] for frame in frames]
    np.testing.assert_allclose(table["x0 last"], last)


def test_statistics_fill_absent_channels_with_training_means():
    X = make_series()
    gaps = SeriesStatistics(fill="nan").fit_transform(X)
    filled = SeriesStatistics().fit(X)
    absent = np.isnan(gaps)
    assert 0 < absent.sum() and not absent[:, : 2 * len(KINDS) : 2].any()
    expected = np.where(absent, np.nanmean(gaps, 0), gaps)
    np.testing.assert_allclose(filled.transform(X), expected, rtol=1e-12)
    # Of the training series, whatever is transformed.
    new = make_series(3, seed=1)
    np.testing.assert_allclose(
        filled.transform(new)[2, 1::2][1:], np.nanmean(gaps, 0)[1::2][1:], rtol=1e-12
    )


def test_statistics_of_a_channel_never_seen_are_zero():
    X = [(times, np.c_[values[:, 0], np.full(len(times), NAN)]) for times, values in make_series()]
    model = SeriesStatistics().fit(X)
    assert np.isfinite(model.transform(X)).all()
    assert (model.transform(X)[:, 1::2] == 0).all()
    # In predictions it may appear.
    assert (model.transform(make_series(1))[:, 1] > 0).all()


def test_statistics_have_the_units_of_the_data():
    X = make_series()
    table = SeriesStatistics(fill="nan").set_output(transform="pandas").fit_transform(X)
    scaled = [(7 + 60 * times, 10 * values + [1.0, -5.0]) for times, values in X]
    other = SeriesStatistics(fill="nan").set_output(transform="pandas").fit_transform(scaled)
    for name in table:
        channel, _, kind = name.partition(" ")
        factor, shift = 10.0, {"x0": 1.0, "x1": -5.0}[channel]
        if kind in ("count", "std", "slope", "age"):
            shift = 0.0
            factor = {"count": 1.0, "age": 60.0, "std": 10.0, "slope": 10 / 60}[kind]
        np.testing.assert_allclose(other[name], factor * table[name] + shift, rtol=1e-9, atol=1e-8)


def test_statistics_ignore_padding_batches_and_unobserved_rows():
    X = make_series()
    model = SeriesStatistics(fill="nan").fit(X)
    together = model.transform(X)
    for i, (times, values) in enumerate(X):
        np.testing.assert_allclose(model.transform(X[i : i + 1])[0], together[i], rtol=1e-12)
        blank = np.full((2, 2), NAN)
        around = np.concatenate([[times[0] - 9], times, [times[-1] + 9]])
        longer = (around, np.concatenate([blank[:1], values, blank[:1]]))
        actual = model.transform([longer])[0]
        np.testing.assert_allclose(actual, together[i], rtol=1e-9, atol=1e-9)
    padded = as_series(X, dtype=torch.float64)._pad_to(64)
    np.testing.assert_allclose(model.transform(padded), together, rtol=1e-12)


@pytest.mark.parametrize("n_times", range(1, 12))
@pytest.mark.parametrize("time", [0.1, 0.3, 0.7, 1.1])
def test_statistics_slope_of_a_channel_at_one_time_is_zero(time, n_times):
    """However often it was measured then; rounding gave slopes of any size."""
    values = np.full((1 + n_times, 2), NAN)
    values[0, 0] = 1.0
    values[1:, 1] = np.random.default_rng(0).standard_normal(n_times)
    case = (np.r_[0.0, np.full(n_times, time)], values)
    table = SeriesStatistics().set_output(transform="pandas").fit_transform([case])
    assert table["x1 slope"].item() == 0.0


def test_statistics_slope_of_close_times_is_kept():
    times = np.array([0.0, 5.0, 5.0 + 1e-6, 5.0 + 2e-6])
    values = np.array([[1.0, NAN], [NAN, 0.0], [NAN, 1.0], [NAN, 2.0]])
    table = SeriesStatistics().set_output(transform="pandas").fit_transform([(times, values)])
    assert table["x1 slope"].item() == pytest.approx(1e6, rel=1e-6)


@pytest.mark.parametrize(
    "X",
    [
        [(np.array([2.0]), np.array([[1.0, NAN]]))],
        [(np.array([2.0, 3.0]), np.full((2, 2), NAN))],
        [(np.array([1.0, 1.0]), np.array([[1.0, 2.0], [3.0, NAN]]))],
    ],
    ids=["one row", "no observation", "one time"],
)
def test_statistics_of_unusual_series_are_finite(X):
    model = SeriesStatistics().fit(make_series())
    assert np.isfinite(model.transform(X)).all()
    assert np.isfinite(SeriesStatistics().fit_transform(X)).all()


def test_statistics_max_memory_changes_nothing():
    X = make_series()
    expected = SeriesStatistics().fit_transform(X)
    actual = SeriesStatistics(max_memory=1e-9).fit_transform(X)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_statistics_survive_files_with_their_fill(tmp_path):
    X = make_series()
    for fill in ("mean", "nan"):
        model = SeriesStatistics(fill=fill).fit(X)
        copy = SeriesStatistics.load(model.save(tmp_path / "m"))
        np.testing.assert_array_equal(copy.transform(X), model.transform(X))
        assert copy.get_params() == model.get_params()
        assert list(copy.get_feature_names_out()) == list(model.get_feature_names_out())
