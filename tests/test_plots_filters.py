"""The plot of a filter bank shows outputs and features of the bank."""

import numpy as np
import pytest

from latent_morph import FilterBank, FilterBankClassifier, FilterBankPointClassifier, plots

RNG = np.random.default_rng(0)
CLOCKS = [np.sort(RNG.uniform(5, 11, RNG.integers(20, 40))) for _ in range(24)]
X = [
    (t, np.stack([np.sin((1 + i % 2) * t), np.where(t > 8, np.nan, t)], 1))
    for i, t in enumerate(CLOCKS)
]


@pytest.fixture(scope="module")
def bank():
    return FilterBank(random_state=0).fit(X)


def numbers(bar):
    """The features of a panel of bars, by name."""
    names = [label.get_text() for label in bar.get_yticklabels()]
    return dict(zip(names, (patch.get_width() for patch in bar.patches), strict=True))


@pytest.mark.parametrize("channel", [0, 1])
def test_plot_filter_bank_shows_features(bank, channel):
    axes = plots.plot_filter_bank(bank, X, case=3, channel=channel, channel_name="wave")
    assert axes.shape == (7,) and axes[0].get_ylabel() == "wave"
    features = bank.transform(X[3:4])[0]
    for bar in axes[4:6]:
        assert list(numbers(bar)) == ["share above bias", "maximum", "mean", "end"]
    for bar in axes[4:]:
        for value in numbers(bar).values():
            assert np.isclose(features, value, atol=1e-6).any()


def test_plot_filter_bank_shades_share_above_bias():
    """On an even grid the share of points above the dashed line is the feature."""
    even = [
        (np.linspace(0, 6, 400), np.sin((1 + i % 3) * np.linspace(0, 6, 400))) for i in range(9)
    ]
    axes = plots.plot_filter_bank(FilterBank(random_state=0).fit(even), even, case=1)
    for panel, bar in zip(axes[1:4], axes[4:], strict=True):
        bias, curve = panel.lines
        above = curve.get_ydata() > bias.get_ydata()[0]
        assert numbers(bar)["share above bias"] == pytest.approx(above.mean(), abs=0.02)


def test_plot_filter_bank_chooses_a_slow_and_a_fast_mode(bank):
    axes = plots.plot_filter_bank(bank, X)
    slow, fast, kernel = (panel.get_title(loc="left") for panel in axes[1:4])
    assert slow.startswith("slow mode: decays within") and slow.endswith("does not rotate")
    assert fast.startswith("fast mode: rotates in")
    assert kernel.startswith("kernel: nine taps")

    def count_turns(panel):
        return (np.diff(np.sign(np.diff(panel.lines[1].get_ydata()))) != 0).sum()

    turns = []
    for case in range(6):  # a fast mode does not turn more often in every single series
        axes = plots.plot_filter_bank(bank, X, case=case)
        turns.append((count_turns(axes[1]), count_turns(axes[2])))
    slow_turns, fast_turns = np.sum(turns, axis=0)
    assert fast_turns > slow_turns


def test_plot_filter_bank_interpolates_observations(bank):
    axes = plots.plot_filter_bank(bank, X, case=2)
    line, dots = axes[0].lines
    times, values = X[2]
    np.testing.assert_array_equal(dots.get_ydata(), values[:, 0])
    rows = np.searchsorted(line.get_xdata(), times)
    np.testing.assert_allclose(line.get_ydata()[rows], values[:, 0], atol=1e-4)
    low, high = axes[3].get_xlim()
    assert low < times[0] and high > times[-1]


def test_plot_filter_bank_of_classifier_is_a_small_file(tmp_path):
    model = FilterBankClassifier(random_state=0).fit(X, [i % 2 for i in range(len(X))])
    path = plots.save_figure(plots.plot_filter_bank(model, X), tmp_path / "filters.png")
    assert 20_000 < path.stat().st_size < 200_000


@pytest.mark.parametrize("channel", [0, 1])
def test_plot_filter_bank_of_point_classifier_shows_decayed_means(channel):
    y = [np.where(np.cos(t) > 0, "rising", "falling") for t in CLOCKS]
    model = FilterBankPointClassifier(n_units=10, random_state=0).fit(X, y)
    axes = plots.plot_filter_bank(model, X, case=3, channel=channel, channel_name="wave")
    assert axes.shape == (3,) and {ax.get_ylabel() for ax in axes} == {"wave"}
    times, values = X[3]
    for ax in axes:
        *curves, dots = ax.lines
        assert len(curves) == 4
        np.testing.assert_array_equal(dots.get_ydata(), values[:, channel])
        observed = values[np.isfinite(values[:, channel]), channel]
        for curve in curves:
            assert observed.min() - 1e-6 <= curve.get_ydata().min()
            assert curve.get_ydata().max() <= observed.max() + 1e-6
    # The fastest mean of both sides is nearest to the observations.
    seen = np.isfinite(values[:, channel])
    errors = [
        np.abs(np.interp(times, *curve.get_data()) - values[:, channel])[seen].mean()
        for curve in axes[2].lines[:4]
    ]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("n_rows", [1, 2])
def test_plot_filter_bank_takes_short_series(bank, n_rows):
    axes = plots.plot_filter_bank(bank, [(t[:n_rows], x[:n_rows]) for t, x in X])
    assert axes.shape == (7,)


def test_plot_filter_bank_names_wrong_arguments(bank):
    with pytest.raises(ValueError, match="channel must be in 0 .. 1, got 2"):
        plots.plot_filter_bank(bank, X, channel=2)
    with pytest.raises(ValueError, match="X must have an observation in case 0, got none"):
        plots.plot_filter_bank(bank, [(np.arange(3.0), np.full((3, 2), np.nan))])
    with pytest.raises(IndexError):
        plots.plot_filter_bank(bank, X, case=99)
