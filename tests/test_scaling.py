"""SeriesScaler sees observed values of training cases and nothing else."""

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


def test_observed_values_become_standard():
    data = batch()
    scaled = SeriesScaler().fit(data).transform(data)
    for c in range(3):
        seen = scaled.values[..., c][data.mask[..., c]].double()
        assert abs(seen.mean()) < 1e-5
        assert abs(seen.std(correction=0) - 1) < 1e-5
    assert (scaled.values[~data.mask] == 0).all()
    assert torch.equal(scaled.mask, data.mask) and torch.equal(scaled.lengths, data.lengths)


def test_what_is_masked_has_no_say():
    data = batch()
    noise = torch.where(data.mask, data.values, 1e6)
    spoilt = SeriesBatch(noise, data.times, data.mask, data.lengths)
    clean, other = SeriesScaler().fit(data), SeriesScaler().fit(spoilt)
    assert clean.state() == other.state()
    assert torch.equal(clean.transform(data).values, clean.transform(spoilt).values)


def test_channels_constant_or_never_seen_have_scale_one():
    X = np.random.default_rng(0).standard_normal((4, 5, 3)) + 0.1
    X[..., 1] = 0.1
    X[..., 2] = NAN
    scaler = SeriesScaler().fit(as_series(X))
    assert scaler.scale_[1:].tolist() == [1.0, 1.0]
    assert scaler.mean_[2] == 0.0


def test_times_start_at_zero_and_the_longest_ends_at_one():
    data = batch()
    scaled = SeriesScaler().fit(data).transform(data)
    assert (scaled.times[:, 0] == 0).all()
    assert scaled.times.max() == 1.0


def test_transform_depends_on_each_case_alone():
    scaler, data = SeriesScaler().fit(batch()), batch(1, offset=-3.0, start=0.0)
    whole = scaler.transform(data)
    for i in range(len(data)):
        alone = scaler.transform(data[i])
        assert torch.equal(alone.values[0], whole.values[i])
        assert torch.equal(alone.times[0], whole.times[i])


def test_absolute_times_share_one_origin():
    data = as_series([([10.0, 11.0], [0, 0]), ([12.0, 14.0], [0, 0])])
    scaler = SeriesScaler(origin="absolute").fit(data)
    assert (scaler.start_, scaler.time_scale_) == (10.0, 4.0)
    assert scaler.transform(data).times.tolist() == [[0.0, 0.25], [0.5, 1.0]]
    assert scaler.scale_times(torch.tensor([18.0]), data.times[:, 0]).tolist() == [2.0]


def test_query_times_scale_like_the_data():
    data = batch()
    scaler = SeriesScaler().fit(data)
    starts = data.times[:, 0]
    assert torch.equal(scaler.scale_times(data.times, starts), scaler.transform(data).times)
    shared = scaler.scale_times(torch.tensor([100.0, 101.0]), starts)
    assert shared.shape == (len(data), 2) and shared.dtype == torch.float64
    with pytest.raises(ValueError, match="times has 2 rows"):
        scaler.scale_times(torch.zeros(2, 1), starts)


def test_inverse():
    data = batch().to(dtype=torch.float64)
    scaler = SeriesScaler().fit(data)
    back = scaler.inverse_values(scaler.transform(data).values)
    torch.testing.assert_close(back[data.mask], data.values[data.mask])
    torch.testing.assert_close(
        scaler.inverse_scale(torch.ones(2, 3)).double()[0], scaler.scale_, rtol=1e-6, atol=0
    )


def test_values_can_be_left_alone():
    data = batch()
    scaled = SeriesScaler(values="none").fit(data).transform(data)
    assert torch.equal(scaled.values, data.values)


def test_a_single_time_has_scale_one():
    assert SeriesScaler().fit(as_series(np.ones((3, 1)))).time_scale_ == 1.0


@pytest.mark.parametrize("origin", ["case", "absolute"])
def test_state_survives_json(origin):
    data = batch()
    scaler = SeriesScaler(origin=origin).fit(data)
    twin = SeriesScaler.from_state(json.loads(json.dumps(scaler.state())))
    assert torch.equal(scaler.transform(data).values, twin.transform(data).values)
    assert torch.equal(scaler.transform(data).times, twin.transform(data).times)


def test_errors():
    with pytest.raises(ValueError, match="values must be one of"):
        SeriesScaler(values="max")
    with pytest.raises(ValueError, match="origin must be one of"):
        SeriesScaler(origin="zero")
    with pytest.raises(ValueError, match="not fitted"):
        SeriesScaler().transform(batch())
    with pytest.raises(TypeError, match="batch is of type ndarray"):
        SeriesScaler().fit(np.ones((2, 3)))
    with pytest.raises(ValueError, match="no cases"):
        SeriesScaler().fit(batch()[[]])
    with pytest.raises(ValueError, match="got 1 channels; wanted 3"):
        SeriesScaler().fit(batch()).transform(as_series(np.ones((2, 2))))
    with pytest.raises(ValueError, match="state lacks"):
        SeriesScaler.from_state({"values": "none"})


# One scale for all, logarithms, and a centre of one's own


def exponentials(n_times=50):
    t = torch.linspace(0, 1, n_times, dtype=torch.float64)
    values = torch.stack([1e-5 * (-4 * t).exp(), -100 * t.exp()], -1).unsqueeze(0)
    return SeriesBatch(values, t.unsqueeze(0), torch.ones(values.shape, dtype=torch.bool))


@pytest.mark.parametrize("values", ["standard", "shared", "log", "none"])
def test_every_scale_comes_back(values):
    batch = exponentials()
    scaler = SeriesScaler(values).fit(batch)
    again = SeriesScaler.from_state(scaler.state())
    for one in (scaler, again):
        torch.testing.assert_close(one.inverse_values(one.transform(batch).values), batch.values)


def test_a_shared_scale_keeps_ratios():
    scaler = SeriesScaler("shared").fit(exponentials())
    assert scaler.scale_[0] == scaler.scale_[1]


def test_logarithms_make_channels_of_any_size_count():
    scaled = SeriesScaler("log").fit(exponentials())
    values = scaled.transform(exponentials()).values[0]
    torch.testing.assert_close(values.std(0, correction=0), torch.ones(2, dtype=torch.float64))
    assert values[0, 0] > values[-1, 0] and values[0, 1] > values[-1, 1]


@pytest.mark.parametrize("values", ["standard", "shared", "log"])
def test_velocities_follow_the_scale(values):
    batch = exponentials(2001)
    scaler = SeriesScaler(values).fit(batch)
    scaled = scaler.transform(batch)
    speed = torch.gradient(scaled.values[0], spacing=(scaled.times[0],), dim=0)[0]
    found = scaler.inverse_velocity(scaled.values[0], speed)
    true = batch.values[0] * torch.tensor([-4.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(found[5:-5], true[5:-5], rtol=1e-4, atol=0)


def test_a_centre_becomes_the_origin_to_the_bit():
    center = torch.tensor([3e-6, -150.0], dtype=torch.float64)
    for values in ("standard", "shared", "none"):
        scaler = SeriesScaler(values).fit(exponentials(), center=center)
        assert torch.equal(scaler.transform_values(center), torch.zeros_like(center))
        assert torch.equal(scaler.inverse_values(torch.zeros_like(center)), center)


def test_deviations_of_logarithms_have_no_size():
    scaler = SeriesScaler("log").fit(exponentials())
    with pytest.raises(ValueError, match="no fixed size"):
        scaler.inverse_scale(torch.ones(2))


def test_files_written_before_there_were_logarithms_are_read():
    state = SeriesScaler().fit(exponentials()).state()
    del state["threshold"]
    assert SeriesScaler.from_state(state).threshold_ is None


@pytest.mark.parametrize("values", SCALES)
def test_a_weight_is_so_many_copies(values):
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
