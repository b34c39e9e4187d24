"""The laws of the filter bank: what its features depend on, and what they do not."""

import numpy as np
import pytest
import torch

from latent_morph import FilterBank
from latent_morph.filters import BLOCKS, Bank, Modes, Observations, interpolate, split_by_size
from latent_morph.filters.modes import POOLS
from latent_morph.series import SeriesBatch, SeriesScaler, as_series

pytestmark = pytest.mark.usefixtures("float64")
NAN = float("nan")


def make_series(n_cases=12, n_channels=2, seed=0):
    """Waves and noise at irregular times, of unequal lengths, with gaps and absent channels."""
    rng = np.random.default_rng(seed)
    X = []
    for i in range(n_cases):
        times = np.sort(rng.uniform(0, 6, rng.integers(5, 40)))
        waves = np.sin(np.outer(times, 1 + np.arange(n_channels)) + rng.uniform(0, 6, n_channels))
        values = waves + 0.3 * rng.standard_normal(waves.shape)
        values[rng.random(values.shape) < 0.3] = NAN
        if i % 4 == 3:
            values[:, 1] = NAN
        X.append((times, values))
    return X


class Fitted:
    """A scaler and a bank in double precision, as an estimator has in single precision."""

    def __init__(self, X, seed=0):
        batch = as_series(X, dtype=torch.float64)
        self.scaler = SeriesScaler("robust").fit(batch)
        scaled = self.scaler.transform(batch)
        generator = torch.Generator().manual_seed(seed)
        self.bank = Bank.fit(scaled.values, scaled.times, scaled.mask, generator).double()

    def __call__(self, X):
        batch = X if isinstance(X, SeriesBatch) else as_series(X, dtype=torch.float64)
        scaled = self.scaler.transform(batch)
        return self.bank(scaled.values, scaled.times, scaled.mask)

    def columns(self, text):
        return [i for i, name in enumerate(self.bank.names()) if text in name]


@pytest.fixture(scope="module")
def fitted():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield Fitted(make_series())
    torch.set_default_dtype(before)


def assert_same(actual, expected, fitted, *, flips=0.0):
    """Equal to rounding; a share may differ where rounding moves an output across a bias."""
    is_share = torch.zeros(actual.shape[1], dtype=torch.bool)
    is_share[fitted.columns("share above")] = True
    torch.testing.assert_close(actual[:, ~is_share], expected[:, ~is_share], atol=1e-6, rtol=1e-6)
    difference = (actual - expected).abs()[:, is_share]
    assert (difference > 1e-6).double().mean() <= flips
    assert difference.max() <= 0.5


def test_bank_is_the_same_for_a_series_alone_or_in_a_batch(fitted):
    X = make_series(seed=1)
    together = fitted(X)
    for i in range(len(X)):
        assert_same(fitted(X[i : i + 1]), together[i : i + 1], fitted)
    assert_same(fitted(X[::-1]).flip(0), together, fitted)


def test_bank_ignores_padding_and_values_outside_the_mask(fitted):
    batch = as_series(make_series(seed=1), dtype=torch.float64)
    padded = batch._pad_to(batch.n_times + 13)
    noise = 1e4 * torch.randn(padded.values.shape, generator=torch.Generator().manual_seed(1))
    spoilt = torch.where(padded.mask, padded.values, noise)
    scaler, bank = fitted.scaler, fitted.bank
    expected = fitted(batch)
    assert_same(fitted(padded), expected, fitted)
    noisy = bank(scaler.transform_values(spoilt), scaler.transform(padded).times, padded.mask)
    assert_same(noisy, expected, fitted)


def test_bank_ignores_rows_without_observations(fitted):
    X, longer = make_series(seed=1), []
    for times, values in X:
        extra = np.array([times[0] - 2.0, times.mean(), times[-1] + 5.0])
        order = np.argsort(np.concatenate([times, extra]), kind="stable")
        blank = np.full((3, values.shape[1]), NAN)
        merged = np.concatenate([values, blank])[order]
        longer.append((np.concatenate([times, extra])[order], merged))
    assert_same(fitted(longer), fitted(X), fitted)
    # In the fit, too: only the unit in which times are counted internally changes.
    other = Fitted(longer)
    again, units = other(X), other.scaler.time_scale_ / Fitted(X).scaler.time_scale_
    expected = Fitted(X)(X)
    for text in ("span", "age of the last observation", "age of the normal scores"):
        again[:, other.columns(text)] *= units
    again[:, other.columns("slope")] /= units
    assert_same(again, expected, other)


def test_bank_fit_ignores_padding():
    batch = as_series(make_series(), dtype=torch.float64)
    bursts = [(np.array([0.0, 0.01, 0.02, 0.03, 0.04, 6.0]), np.arange(6.0))] * 4
    for data in (batch, as_series(bursts, dtype=torch.float64)):
        first, second = Fitted(data), Fitted(data._pad_to(data.n_times + 100))
        for name, tensor in first.bank.state_dict().items():
            torch.testing.assert_close(second.bank.state_dict()[name], tensor, msg=name)


@pytest.mark.parametrize("unit", [1 / 86400, 1 / 7, 1000.0])
def test_bank_does_not_depend_on_units_and_origins_of_time(fitted, unit):
    X, Z = make_series(), make_series(seed=1)
    expected = fitted(Z)
    other = Fitted([(1e3 + unit * times, values) for times, values in X])
    actual = other([(1e3 + unit * times, values) for times, values in Z])
    # Times beside 1e3 have some 12 digits left in the smallest unit.
    assert_same(actual, expected, other, flips=1e-3)
    # Each series has an origin of its own.
    shifted = [(times + 100 * i, values) for i, (times, values) in enumerate(Z)]
    assert_same(fitted(shifted), expected, fitted, flips=1e-3)


@pytest.mark.parametrize("scale", [1e-6, 1 / 3, 1e5])
def test_bank_does_not_depend_on_units_of_values(fitted, scale):
    def convert(X):
        return [(times, scale * values * [1.0, 10.0] + [0.0, 5 * scale]) for times, values in X]

    other = Fitted(convert(make_series()))
    actual = other(convert(make_series(seed=1)))
    assert_same(actual, fitted(make_series(seed=1)), fitted, flips=1e-3)


def smooth(times, phases):
    return sum(np.sin((k + 1) * times + phase) / (k + 1) for k, phase in enumerate(phases))


def test_bank_converges_as_irregular_samples_get_denser():
    """To the features of a regular grid, dense enough to be the curve itself.

    Interpolation has an error of second order in the gaps, and so have means over time. A share
    changes where the output crosses a bias; over many biases it follows the error of the output.
    """
    rng = np.random.default_rng(0)
    phases = rng.uniform(0, 6, (4, 3))
    ends = np.array([0.0, 6.0])

    def sample(n_times):
        clocks = [np.sort(np.concatenate([ends, rng.uniform(0, 6, n_times - 2)])) for _ in phases]
        return [(t, smooth(t, phase)) for t, phase in zip(clocks, phases, strict=True)]

    fitted = Fitted(sample(60))
    grid = np.linspace(0, 6, 1201)
    limit = fitted([(grid, smooth(grid, phase)) for phase in phases])
    sizes = (25, 50, 100, 200)
    errors = [(fitted(sample(n_times)) - limit).abs().mean(0) for n_times in sizes]

    def rate(columns):
        return -np.polyfit(np.log(sizes), [e[columns].mean().log().item() for e in errors], 1)[0]

    names = fitted.bank.names()
    for pool, least in [("mean", 1.5), ("modulus", 1.5), ("maximum", 1.0), ("end", 1.5)]:
        chosen = [i for i, name in enumerate(names) if name.endswith(f": {pool}")]
        assert rate(chosen) > least, pool
    shares = set(fitted.columns("share"))
    for kind, least in ((" mode ", 0.9), (" kernel ", 1.0)):
        assert rate([i for i in fitted.columns(kind) if i in shares]) > least, kind


def test_bank_agrees_on_a_regular_grid_and_twice_as_many_rows():
    """Rows on the straight lines between others change nothing but what counts rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6, 30, 1))
    fitted = Fitted(X)
    dense = [(np.arange(59) / 2, np.interp(np.arange(59) / 2, np.arange(30), x[:, 0])) for x in X]
    # Without compression and normal scores, which bend lines.
    scaled = SeriesScaler("none").fit(as_series(X))
    scaled.time_scale_ = fitted.scaler.time_scale_
    fitted.scaler, fitted.bank.scores = scaled, torch.nn.Identity()
    left, right = fitted(X), fitted(dense)
    for text in ("kernel", ": end"):
        columns = fitted.columns(text)
        torch.testing.assert_close(left[:, columns], right[:, columns], atol=1e-9, rtol=0)


def test_bank_names_are_unique_and_as_many_as_features(fitted):
    X = make_series()
    for bank, n_features in ((fitted.bank, fitted(X).shape[1]), (Bank(7, 12), None)):
        names = bank.names()
        assert len(set(names)) == len(names) == sum(bank.sizes())
        assert n_features in (None, len(names))
    assert len(fitted.bank.sizes()) == len(BLOCKS)


@pytest.mark.parametrize(
    "X",
    [
        [(np.array([3.0]), np.array([[1.0, NAN]]))],
        [(np.array([3.0, 4.0]), np.full((2, 2), NAN))],
        [(np.array([1.0, 1.0, 1.0]), np.array([[1.0, NAN], [NAN, 2.0], [3.0, 4.0]]))],
        [(np.array([0.0, 1e9]), np.ones((2, 2)))],
        [(np.array([0.0, 1.0]), np.array([[1e300, -1e300], [-1e300, 0.0]]))],
    ],
    ids=["one row", "no observation", "one time", "long", "large"],
)
def test_bank_is_finite_for_unusual_series(fitted, X):
    assert fitted(X).isfinite().all()
    if np.isfinite(X[0][1]).sum() == 0:
        shares = fitted.columns("observed")
        assert (fitted(X)[:, shares] == 0).all()
    assert Fitted(X)(X).isfinite().all()  # and for a fit to nothing else


def test_bank_seeds():
    X = make_series()
    first, second, third = Fitted(X)(X), Fitted(X)(X), Fitted(X, seed=1)(X)
    assert torch.equal(first, second) and not torch.equal(first, third)


def test_bank_biases_come_from_series_with_observations():
    """However few they are among the training series."""
    blank = (np.array([0.0, 1.0]), np.full((2, 2), NAN))
    X = make_series(4)
    bank = Fitted([blank] * 500 + X).bank
    assert (bank.modes.biases != 0).double().mean() > 0.9


def test_bank_draws_the_same_biases_in_parts():
    batch = as_series(make_series(), dtype=torch.float64)
    scaled = SeriesScaler("robust").fit(batch).transform(batch)
    whole, parts = (
        Bank.fit(
            scaled.values,
            scaled.times,
            scaled.mask,
            torch.Generator().manual_seed(0),
            max_numbers=max_numbers,
        ).state_dict()
        for max_numbers in (float("inf"), 1.0)
    )
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, msg=name)


def test_split_by_size_keeps_sums_below_the_limit():
    sizes = torch.tensor([3.0, 9.0, 1.0, 4.0, 2.0])
    parts = list(split_by_size(sizes, 8.0))
    assert [part.tolist() for part in parts] == [[1], [3, 0], [4, 2]]
    assert len(list(split_by_size(sizes, float("inf")))) == 1


def test_filter_bank_max_memory_changes_nothing():
    X = make_series(20)
    batch = as_series(X)
    expected = FilterBank(random_state=0).fit(X).transform(X)
    for size in (1e-9, 1.0, 3.0):
        model = FilterBank(random_state=0, max_memory=size).fit(X)
        numbers = model._count_numbers(model.model_, batch)
        parts = list(model._each_part(lambda values, times, mask, static: values, batch, numbers))
        assert len(parts) > 1
        actual = model.transform(X)
        shares = ["share" in name for name in model.get_feature_names_out()]
        np.testing.assert_allclose(
            actual[:, ~np.array(shares)], expected[:, ~np.array(shares)], atol=2e-5
        )
        assert (np.abs(actual - expected) > 2e-5).mean() < 1e-4


# Blocks


def test_modes_equal_the_integral_over_the_past():
    """-lambda times the integral of exp(lambda (t - s)) x(s), by quadrature."""
    X = make_series(2)
    batch = as_series(X, dtype=torch.float64)
    interpolant = interpolate(batch.values, batch.times, batch.mask)
    modes = Modes(2, 5).double()
    modes.draw(0.5, 5.0, torch.Generator().manual_seed(0))
    outputs, moduli = modes.outputs(interpolant)
    exponent = torch.complex(-modes.rates, modes.frequencies).numpy()
    for case, row in ((0, 3), (0, -1), (1, 4)):
        times = interpolant.times[case].numpy()
        now = times[row]
        for direction, sign in ((0, 1.0), (1, -1.0)):
            age = np.linspace(0, 80, 800_001)
            for channel in range(2):
                x = np.interp(
                    now - sign * age, times, interpolant.values[case, :, channel].numpy()
                )
                for p in range(5):
                    state = np.trapezoid(np.exp(exponent[p] * age) * x, age)
                    value = -exponent[p] * state
                    # The projection on the phase: cos and -sin, of the conjugate for -D.
                    place = row, case, direction, channel, p
                    np.testing.assert_allclose(moduli[place], abs(value), atol=1e-5)
                    phase = modes.phases[direction, channel, p].item()
                    expected = np.cos(phase) * value.real - np.sin(phase) * value.imag
                    np.testing.assert_allclose(outputs[place], expected, atol=1e-5)


def test_modes_pool_over_time():
    batch = as_series(make_series(3), dtype=torch.float64)
    interpolant = interpolate(batch.values, batch.times, batch.mask)
    modes = Modes(2, 3).double()
    modes.draw(0.5, 5.0, torch.Generator().manual_seed(0))
    modes.fit(modes.sample(interpolant, 1000), torch.Generator().manual_seed(0))
    outputs, moduli = modes.outputs(interpolant)
    features = dict(zip(modes.names(), modes(interpolant).T, strict=True))
    weights = interpolant.weights
    for direction, word in enumerate(("forward", "backward")):
        for channel in range(2):
            y = outputs[:, :, direction, channel, 1].T
            r = moduli[:, :, direction, channel, 1].T
            bias = modes.biases[1, direction, channel, 1]
            expected = {
                "share above bias 1": (weights * (y > bias)).sum(1),
                "maximum": torch.where(interpolant.observed, y, -torch.inf).amax(1),
                "mean": (weights * y).sum(1),
                "modulus": (weights * r).sum(1),
                "end": y[:, -1] if direction == 0 else y[:, 0],
            }
            assert set(expected) | {"share above bias 0"} == set(POOLS)
            for pool, value in expected.items():
                torch.testing.assert_close(features[f"x{channel} {word} mode 1: {pool}"], value)


def test_observations_count_and_decay():
    times = np.array([10.0, 11.0, 13.0, 14.0])
    values = np.array([[1.0, NAN], [2.0, 7.0], [NAN, NAN], [3.0, NAN]])
    batch = as_series([(times, values)], dtype=torch.float64)
    part = Observations(2, 2).double()
    part.rates = torch.tensor([0.5, 2.0])
    answer = part(batch.times, batch.mask, batch.mask.any(-1))[0]
    features = dict(zip(part.names(), answer.tolist(), strict=True))
    assert features["number of rows"] == pytest.approx(np.log(4))
    assert features["span"] == 4.0
    assert features["x0 age of the last observation"] == 0.0
    assert features["x1 age of the last observation"] == 3.0
    assert features["x0 count"] == pytest.approx(np.log(4))
    ages = {
        "x0 forward": [4, 3, 0],
        "x0 backward": [0, 1, 4],
        "x1 forward": [3],
        "x1 backward": [1],
    }
    for name, age in ages.items():
        for i, rate in enumerate((0.5, 2.0)):
            expected = np.log1p(np.exp(-rate * np.array(age)).sum())
            assert features[f"{name} decayed count {i}"] == pytest.approx(expected)


def test_filter_bank_does_not_depend_on_the_default_dtype():
    """Here the default is double; the estimator works in single precision all the same."""
    X = make_series()
    doubles = FilterBank(random_state=0).fit(X)
    torch.set_default_dtype(torch.float32)
    floats = FilterBank(random_state=0).fit(X)
    for name, tensor in floats.model_.state_dict().items():
        torch.testing.assert_close(doubles.model_.state_dict()[name], tensor, msg=name)


def test_bank_on_one_clock_sees_when_a_series_was_observed():
    """Two pieces of the same curve differ, and a series longer than the frame keeps its ends."""
    times = np.linspace(0, 6, 31)
    X = [(times, np.sin(times + phase)) for phase in range(4)]
    early = [(times[:10], np.ones(10))]
    late = [(times[10:20], np.ones(10))]
    longer = [(np.array([-3.0, 1.0, 9.0]), np.array([1.0, 2.0, 3.0]))]
    for origin, differs in (("case", False), ("absolute", True)):
        bank = FilterBank(time_origin=origin, random_state=0).fit(X)
        features = bank.transform(early + late)
        assert (np.abs(features[0] - features[1]).max() > 1e-3) == differs
        span = list(bank.get_feature_names_out()).index("span")
        unit = bank.scaler_.time_scale_
        assert bank.transform(longer)[0, span] * unit == pytest.approx(12.0)
        assert bank.transform(late)[0, span] * unit == pytest.approx(6.0 if differs else 1.8)


def test_bank_on_one_clock_shows_a_series_whole_as_without():
    """But for biases, which the additional rows at the ends move a little."""
    X = [(np.linspace(0, 6, 31), np.sin(np.linspace(0, 6, 31) + phase)) for phase in range(4)]
    case, absolute = (
        FilterBank(time_origin=origin, random_state=0).fit(X) for origin in ("case", "absolute")
    )
    absolute.model_.modes.biases = case.model_.modes.biases
    np.testing.assert_allclose(absolute.transform(X), case.transform(X), atol=1e-5)
