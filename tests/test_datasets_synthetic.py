"""Synthetic data sets: formulas, schemas, seeds, and how well they can be learned."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import balanced_accuracy_score

from latent_morph.datasets import (
    activity,
    ecg,
    make_activity,
    make_ecg,
    make_periodic,
    split_activity,
)
from latent_morph.series import as_series, subsample


@pytest.mark.parametrize("make", [make_periodic, make_activity, make_ecg])
def test_make_random_state(make):
    a, b, c = (make(30, random_state=seed) for seed in (0, 0, 1))
    assert torch.equal(a.data.values, b.data.values)
    assert torch.equal(a.data.times, b.data.times)
    assert a.data.shape != c.data.shape or not torch.equal(a.data.values, c.data.values)
    assert a.source == "synthetic" and a.DESCR and a.feature_names
    make(1, random_state=np.random.RandomState(0))
    with pytest.raises(ValueError, match="n_cases must be at least 1"):
        make(0)


# Periodic


def test_periodic_follows_its_formula():
    bunch = make_periodic(200, 50, noise=0.0, random_state=0, interval=(2.0, 7.0), amplitude=3.0)
    t = bunch.target.times[0] - 2.0
    sine = 3.0 * torch.sin(2 * torch.pi * torch.tensor(bunch.frequency)[:, None] * t)
    start = bunch.clean[:, :1, 0].double()  # t = 0 is among the times
    assert t[0] == 0 and t.max() <= 5
    torch.testing.assert_close(bunch.clean[..., 0].double(), start + sine, rtol=0, atol=1e-5)
    assert torch.equal(bunch.clean, bunch.target.values)
    assert abs(start.mean() - 1) < 0.03 and abs(start.std() - 0.1) < 0.02
    assert 0.4 <= bunch.frequency.min() and bunch.frequency.max() <= 0.8


def test_periodic_noise_and_subsampling():
    bunch = make_periodic(300, 100, random_state=0)
    assert abs((bunch.target.values - bunch.clean).std() - 0.01) < 0.001
    assert bunch.data.shape == (300, 5, 1) and bunch.target.shape == (300, 100, 1)
    assert (bunch.data.times.diff() > 0).all()
    row = torch.searchsorted(bunch.target.times, bunch.data.times)
    assert torch.equal(bunch.target.values[..., 0].gather(1, row), bunch.data.values[..., 0])
    assert len(row.unique()) > 90  # each series has points of its own
    assert make_periodic(3, 4, keep=0.01, random_state=0).data.shape == (3, 1, 1)
    assert make_periodic(3, 4, keep=1, random_state=0).data.shape == (3, 4, 1)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"keep": 0.0}, "keep must be a fraction .*, got 0.0"),
        ({"keep": 1.5}, "keep must be a fraction .*, got 1.5"),
        ({"frequency": (2.0, 1.0)}, "frequency must be .lowest, highest."),
        ({"interval": (2.0, 1.0)}, "interval must be .lowest, highest."),
        ({"noise": -1.0}, "noise must be at least 0, got -1.0"),
        ({"start_deviation": -1.0}, "start_deviation must be at least 0, got -1.0"),
    ],
)
def test_periodic_rejects_invalid_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        make_periodic(5, 5, **options)


def test_subsample_keeps_masks_and_lengths():
    rng = np.random.RandomState(0)
    cases = [np.where(rng.rand(n, 2) < 0.4, np.nan, rng.rand(n, 2)) for n in (1, 7, 20, 3)]
    batch = as_series(cases)
    subsampled = subsample(batch, 0.5, rng)
    assert subsampled.lengths.tolist() == [1, 4, 10, 2]
    for (times, values), case in zip(subsampled.to_ragged(), cases, strict=True):
        assert len(set(times)) == len(times)
        np.testing.assert_array_equal(values, case[times.astype(int)].astype(np.float32))
    assert subsample(batch, 1, rng) is batch


# Activity


@pytest.mark.parametrize("n_cases", [1, 7, 60])
def test_make_activity_schema(n_cases):
    bunch = make_activity(n_cases, random_state=0)
    assert bunch.data.shape == (n_cases, 50, 12) and bunch.target.shape == (n_cases, 50)
    assert bunch.target.dtype == np.int64 and bunch.data.values.dtype == torch.float32
    assert bunch.feature_names == activity.FEATURE_NAMES
    assert bunch.target_names == activity.TARGET_NAMES
    assert (bunch.data.mask.view(n_cases, 50, 4, 3).any(-1).sum(-1) == 1).all()  # one tag per tick
    assert (bunch.data.times[:, 0] == 0).all() and (bunch.data.times.diff() > 0).all()
    assert set(bunch.groups) <= set("ABCDE") and len(bunch.groups) == n_cases
    if n_cases >= 5:
        assert set(bunch.groups) == set("ABCDE")


def test_split_activity_protocols():
    bunch = make_activity(100, random_state=0)
    for protocol in ("windows", "person"):
        train, test = split_activity(bunch, protocol, person="B")
        assert sorted([*train, *test]) == list(range(100)) and len(test) == 20
    assert set(bunch.groups[test]) == {"B"}
    assert not np.array_equal(split_activity(bunch)[1], split_activity(bunch, random_state=0)[1])
    with pytest.raises(ValueError, match="protocol must be one of"):
        split_activity(bunch, "random")
    with pytest.raises(ValueError, match="person must be one of"):
        split_activity(bunch, "person", person="Z")


def test_make_activity_is_learnable_but_not_trivial():
    bunch = make_activity(500, random_state=0)
    train, test = split_activity(bunch, "person")
    # Mean height of each tag over the window, against the label in its middle.
    mask, values = bunch.data.mask[..., 2::3], bunch.data.values[..., 2::3]
    X = ((values * mask).sum(1) / mask.sum(1).clamp(min=1)).numpy()
    y = bunch.target[:, 25]
    forest = RandomForestClassifier(30, random_state=0).fit(X[train], y[train])
    score = balanced_accuracy_score(y[test], forest.predict(X[test]))
    assert 0.3 < score < 0.95


# ECG


def test_make_ecg_schema():
    bunch = make_ecg(400, random_state=0)
    data = bunch.data
    assert data.shape == (400, 187, 1) and bunch.target.shape == (400,)
    assert bunch.target.dtype == np.int64 and bunch.target_names == ecg.TARGET_NAMES
    shown = data.values.masked_fill(~data.mask, 0.5)
    assert torch.equal(shown.amin(1), torch.zeros(400, 1)) or shown.amin() >= 0
    assert shown.amax() == 1
    assert 60 < data.lengths.double().mean() < 160 and len(data.lengths.unique()) > 20
    assert (np.bincount(bunch.target, minlength=5) >= 2).all()
    assert np.bincount(bunch.target)[0] > 300
    equal = make_ecg(50, random_state=0, balanced=True).target
    assert np.bincount(equal).tolist() == [10] * 5


def test_make_ecg_keep():
    whole, half = (make_ecg(50, random_state=0, keep=keep).data for keep in (1.0, 0.5))
    ratio = half.lengths.double() / whole.lengths
    assert (ratio - 0.5).abs().max() < 0.01
    frame, y = make_ecg(50, random_state=0, as_frame=True, return_X_y=True)
    assert len(frame) == whole.lengths.sum() and len(y) == 50


def test_make_ecg_is_learnable_but_not_trivial():
    X, y = make_ecg(600, random_state=0, balanced=True, return_X_y=True)
    flat = X.values[..., 0].numpy()
    forest = RandomForestClassifier(30, random_state=0).fit(flat[:450], y[:450])
    score = balanced_accuracy_score(y[450:], forest.predict(flat[450:]))
    assert 0.6 < score < 0.97
