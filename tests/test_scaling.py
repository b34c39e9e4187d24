"""SeriesScaler: statistics of observed training values, their inverse, and torch.export."""

import json

import numpy as np
import pytest
import torch

from latent_morph.series import SCALES, SeriesBatch, SeriesScaler, as_series

NAN = float("nan")


def batch(seed=0, n=30, offset=5.0, start=100.0):
    rng = np.random.default_rng(seed)
    cases = []
    for _ in range(n):
        length = rng.integers(2, 9)
        values = offset + rng.standard_normal((length, 3)) * [1.0, 10.0, 0.1]
        values[rng.random(values.shape) < 0.3] = NAN
        cases.append((start + np.sort(rng.random(length)) * 4, values))
    return as_series(cases)


def test_scaler_standardises_observed_values():
    data = batch()
    scaled = SeriesScaler().fit(data).transform(data)
    for c in range(3):
        seen = scaled.values[..., c][data.mask[..., c]].double()
        assert abs(seen.mean()) < 1e-5
        assert abs(seen.std(correction=0) - 1) < 1e-5
    assert (scaled.values[~data.mask] == 0).all()
    assert torch.equal(scaled.mask, data.mask) and torch.equal(scaled.lengths, data.lengths)


def test_scaler_ignores_masked_values():
    data = batch()
    noise = torch.where(data.mask, data.values, 1e6)
    spoilt = SeriesBatch(noise, data.times, data.mask, data.lengths)
    clean, other = SeriesScaler().fit(data), SeriesScaler().fit(spoilt)
    assert clean.state() == other.state()
    assert torch.equal(clean.transform(data).values, clean.transform(spoilt).values)


def test_scaler_constant_or_unobserved_channel_has_scale_one():
    X = np.random.default_rng(0).standard_normal((4, 5, 3)) + 0.1
    X[..., 1] = 0.1
    X[..., 2] = NAN
    scaler = SeriesScaler().fit(as_series(X))
    assert scaler.scale_[1:].tolist() == [1.0, 1.0]
    assert scaler.mean_[2] == 0.0


@pytest.mark.parametrize("values", [name for name in SCALES if name != "none"])
def test_scaler_knows_nothing_of_channels_that_fit_did_not_see_vary(values):
    """A channel never seen in the fit stays missing; one that was constant stays constant."""
    X = np.random.default_rng(0).standard_normal((4, 5, 3)) + 5.0
    X[..., 1] = 0.1
    X[..., 2] = NAN
    scaler = SeriesScaler(values).fit(as_series(X))
    later = as_series(np.full((1, 5, 3), 7.0))
    for each in (scaler, SeriesScaler.from_state(scaler.state())):
        scaled = each.transform(later)
        assert scaled.mask[0, 0].tolist() == [True, True, False]
        assert (scaled.values[..., 0] != 0).all() and (scaled.values[..., 1:] == 0).all()


def test_scaler_times_run_from_zero_to_one():
    data = batch()
    scaled = SeriesScaler().fit(data).transform(data)
    assert (scaled.times[:, 0] == 0).all()
    assert scaled.times.max() == 1.0


def test_scaler_transform_is_independent_of_other_cases():
    scaler, data = SeriesScaler().fit(batch()), batch(1, offset=-3.0, start=0.0)
    whole = scaler.transform(data)
    for i in range(len(data)):
        alone = scaler.transform(data[i])
        assert torch.equal(alone.values[0], whole.values[i])
        assert torch.equal(alone.times[0], whole.times[i])


def test_scaler_absolute_origin():
    data = as_series([([10.0, 11.0], [0, 0]), ([12.0, 14.0], [0, 0])])
    scaler = SeriesScaler(origin="absolute").fit(data)
    assert (scaler.start_, scaler.time_scale_) == (10.0, 4.0)
    assert scaler.transform(data).times.tolist() == [[0.0, 0.25], [0.5, 1.0]]
    assert scaler.scale_times(torch.tensor([18.0]), data.times[:, 0]).tolist() == [2.0]


def test_scale_times_agrees_with_transform():
    data = batch()
    scaler = SeriesScaler().fit(data)
    starts = data.times[:, 0]
    assert torch.equal(scaler.scale_times(data.times, starts), scaler.transform(data).times)
    shared = scaler.scale_times(torch.tensor([100.0, 101.0]), starts)
    assert shared.shape == (len(data), 2) and shared.dtype == torch.float64
    with pytest.raises(ValueError, match="times must have 30 rows, one per start, got 2"):
        scaler.scale_times(torch.zeros(2, 1), starts)


def test_scaler_inverse_values_and_scale():
    data = batch().to(dtype=torch.float64)
    scaler = SeriesScaler().fit(data)
    back = scaler.inverse_values(scaler.transform(data).values)
    torch.testing.assert_close(back[data.mask], data.values[data.mask])
    torch.testing.assert_close(
        scaler.inverse_deviation(torch.zeros(2, 3), torch.ones(2, 3)).double()[0],
        scaler.scale_,
        rtol=1e-6,
        atol=0,
    )


def test_scaler_none_keeps_values():
    data = batch()
    scaled = SeriesScaler(values="none").fit(data).transform(data)
    assert torch.equal(scaled.values, data.values)


def test_scaler_single_time_has_time_scale_one():
    assert SeriesScaler().fit(as_series(np.ones((3, 1)))).time_scale_ == 1.0


@pytest.mark.parametrize("origin", ["case", "absolute"])
def test_scaler_state_json_round_trip(origin):
    data = batch()
    scaler = SeriesScaler(origin=origin).fit(data)
    twin = SeriesScaler.from_state(json.loads(json.dumps(scaler.state())))
    assert torch.equal(scaler.transform(data).values, twin.transform(data).values)
    assert torch.equal(scaler.transform(data).times, twin.transform(data).times)


def test_scaler_rejects_invalid_arguments():
    with pytest.raises(ValueError, match="values must be one of"):
        SeriesScaler(values="max")
    with pytest.raises(ValueError, match="origin must be one of"):
        SeriesScaler(origin="zero")
    with pytest.raises(ValueError, match="not fitted"):
        SeriesScaler().transform(batch())
    with pytest.raises(TypeError, match="batch must be a SeriesBatch, got ndarray"):
        SeriesScaler().fit(np.ones((2, 3)))
    with pytest.raises(ValueError, match="batch must have at least one case"):
        SeriesScaler().fit(batch()[[]])
    with pytest.raises(ValueError, match="batch must have 3 channels, got 1"):
        SeriesScaler().fit(batch()).transform(as_series(np.ones((2, 2))))
    with pytest.raises(ValueError, match="state must have the keys .*'mean'"):
        SeriesScaler.from_state({"values": "none"})


# Shared scale, logarithm, center and weight


def exponentials(n_times=50):
    t = torch.linspace(0, 1, n_times, dtype=torch.float64)
    values = torch.stack([1e-5 * (-4 * t).exp(), -100 * t.exp()], -1).unsqueeze(0)
    return SeriesBatch(values, t.unsqueeze(0), torch.ones(values.shape, dtype=torch.bool))


@pytest.mark.parametrize("values", SCALES)
def test_scaler_inverse_values_round_trip(values):
    batch = exponentials()
    scaler = SeriesScaler(values).fit(batch)
    again = SeriesScaler.from_state(scaler.state())
    for one in (scaler, again):
        torch.testing.assert_close(one.inverse_values(one.transform(batch).values), batch.values)


def test_scaler_shared_scale_is_equal_for_all_channels():
    scaler = SeriesScaler("shared").fit(exponentials())
    assert scaler.scale_[0] == scaler.scale_[1]


def test_scaler_log_standardises_channels_of_any_size():
    scaled = SeriesScaler("log").fit(exponentials())
    values = scaled.transform(exponentials()).values[0]
    torch.testing.assert_close(values.std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert values[0, 0] > values[-1, 0] and values[0, 1] > values[-1, 1]


@pytest.mark.parametrize("values", ["standard", "shared", "log", "robust"])
def test_scaler_inverse_velocity_matches_derivative(values):
    batch = exponentials(2001)
    scaler = SeriesScaler(values).fit(batch)
    scaled = scaler.transform(batch)
    speed = torch.gradient(scaled.values[0], spacing=(scaled.times[0],), dim=0)[0]
    actual = scaler.inverse_velocity(scaled.values[0], speed)
    expected = batch.values[0] * torch.tensor([-4.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(actual[5:-5], expected[5:-5], rtol=1e-4, atol=0)


def test_scaler_center_maps_to_zero_exactly():
    center = torch.tensor([3e-6, -150.0], dtype=torch.float64)
    for values in ("standard", "shared", "robust", "none"):
        scaler = SeriesScaler(values).fit(exponentials(), center=center)
        assert torch.equal(scaler.transform_values(center), torch.zeros_like(center))
        assert torch.equal(scaler.inverse_values(torch.zeros_like(center)), center)


@pytest.mark.parametrize("values", SCALES)
def test_scaler_inverse_deviation_is_the_difference_of_close_values(values):
    scaler = SeriesScaler(values).fit(exponentials())
    scaled = scaler.transform(exponentials()).values
    small = torch.full_like(scaled, 1e-6)
    expected = scaler.inverse_values(scaled + small) - scaler.inverse_values(scaled - small)
    actual = scaler.inverse_deviation(scaled, 2 * small)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-12)


# Robust scale


def normal(n_cases=200, seed=0):
    return np.random.default_rng(seed).standard_normal((n_cases, 20, 2)) * [3.0, 0.1] + [5.0, -1.0]


def test_scaler_robust_of_normal_values_is_their_standard_deviation():
    scaler = SeriesScaler("robust").fit(as_series(normal(), dtype=torch.float64))
    np.testing.assert_allclose(scaler.scale_, [3.0, 0.1], rtol=0.05)
    np.testing.assert_allclose(scaler.mean_, [5.0, -1.0], atol=0.1)
    # Values within a scale are nearly unchanged, and order is kept.
    values = torch.linspace(-1, 1, 101, dtype=torch.float64).unsqueeze(1).expand(-1, 2)
    scaled = scaler.transform_values(values * scaler.scale_ + scaler.mean_)
    torch.testing.assert_close(scaled, values, atol=0.02, rtol=0)
    assert (scaled.diff(dim=0) > 0).all()


@pytest.mark.parametrize("absurd", [1e9, -1e30])
def test_scaler_robust_ignores_an_absurd_value(absurd):
    X = normal()
    clean = SeriesScaler("robust").fit(as_series(X, dtype=torch.float64))
    X[17, 3, 0] = absurd
    batch = as_series(X, dtype=torch.float64)
    scaler = SeriesScaler("robust").fit(batch)
    torch.testing.assert_close(scaler.scale_, clean.scale_, rtol=2e-3, atol=0)
    torch.testing.assert_close(scaler.mean_, clean.mean_, rtol=2e-3, atol=0)
    scaled = scaler.transform(batch).values
    assert scaled[17, 3, 0].sign() == np.sign(absurd) and scaled.abs().max() < 250
    torch.testing.assert_close(scaler.inverse_values(scaled), batch.values, rtol=1e-9, atol=1e-9)
    standard = SeriesScaler("standard").fit(batch)
    assert standard.scale_[0] > 1e5 * clean.scale_[0]  # what this scale avoids


def test_scaler_robust_of_constant_sparse_and_unobserved_channels():
    X = np.full((8, 10, 4), 7.0)
    X[..., 1] = np.where(np.arange(80).reshape(8, 10) % 8 == 0, 2.0, 0.0)  # mostly zeros
    X[..., 2] = NAN
    X[..., 3] = np.arange(80).reshape(8, 10) % 2
    scaler = SeriesScaler("robust").fit(as_series(X, dtype=torch.float64))
    std = X[..., 1].std()
    np.testing.assert_allclose(scaler.scale_, [1.0, std, 1.0, 1 / 1.349], rtol=1e-12)
    assert scaler.mean_.tolist() == [7.0, 0.0, 0.0, 0.0]
    assert scaler.transform(as_series(X, dtype=torch.float64)).values.isfinite().all()


def test_scaler_robust_weight_moves_the_median():
    X = as_series(np.array([[0.0], [1.0], [2.0], [10.0]]), dtype=torch.float64)
    for heavy in range(4):
        weight = torch.ones(4)
        weight[heavy] = 100.0
        scaler = SeriesScaler("robust").fit(X, weight=weight)
        assert scaler.mean_.item() == X.values[heavy, 0, 0].item()


def test_scaler_from_an_older_state():
    data = exponentials()
    scaler = SeriesScaler().fit(data)
    state = scaler.state()
    for name in ("threshold", "seen", "varies"):  # later than the format
        del state[name]
    older = SeriesScaler.from_state(state)
    assert older.threshold_ is None
    assert torch.equal(older.transform(data).values, scaler.transform(data).values)


@pytest.mark.parametrize("values", SCALES)
def test_scaler_weight_equals_copies(values):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(9, 40, 2, generator=generator, dtype=torch.float64).exp()
    X[torch.rand(X.shape, generator=generator) < 0.2] = torch.nan
    cases, counts = as_series(X, dtype=torch.float64), torch.tensor([1, 3, 1, 2, 50, 1, 1, 4, 1])
    weighted = SeriesScaler(values).fit(cases, weight=counts)
    repeated = SeriesScaler(values).fit(cases[torch.arange(9).repeat_interleave(counts)])
    for name, number in repeated.state().items():
        if not isinstance(number, (str, type(None))):
            np.testing.assert_allclose(weighted.state()[name], number, rtol=1e-12)
    with pytest.raises(ValueError, match="weight must be 9 positive numbers"):
        SeriesScaler(values).fit(cases, weight=0 * counts)


class _RoundTrip(torch.nn.Module):
    def __init__(self, scaler):
        super().__init__()
        self.scaler = scaler

    def forward(self, values, times):
        scaled = self.scaler.transform_values(values)
        return (
            scaled,
            self.scaler.scale_times(times, times[:, 0]),
            self.scaler.inverse_values(scaled),
            self.scaler.inverse_velocity(scaled, scaled),
        )


@pytest.mark.parametrize("origin", ["case", "absolute"])
@pytest.mark.parametrize("values", ["standard", "log", "robust"])
def test_scaler_exports(values, origin):
    scaler = SeriesScaler(values, origin).fit(batch())
    module, data = _RoundTrip(scaler), batch(1, n=5)
    n_cases, n_times = torch.export.Dim("N", min=2), torch.export.Dim("T", min=2)
    axes = {0: n_cases, 1: n_times}
    arguments = (data.values.double(), data.times)
    program = torch.export.export(module, arguments, dynamic_shapes=(axes, axes))
    other = batch(2, n=7)
    arguments = (other.values.double(), other.times)
    for actual, expected in zip(program.module()(*arguments), module(*arguments), strict=True):
        assert torch.equal(actual, expected) and actual.dtype == torch.float64
    # No float is left in the graph that ONNX would round to single precision.
    floats = [
        argument
        for node in program.graph.nodes
        for argument in node.args
        if isinstance(argument, float) and argument != np.float32(argument)
    ]
    assert floats == []
