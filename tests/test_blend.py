"""Blends: their weights, their members, and series in every form."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from latent_morph import (
    BlendClassifier,
    BlendPointClassifier,
    FilterBankClassifier,
    FilterBankPointClassifier,
    SeriesStatistics,
    as_series,
)
from latent_morph.estimators.blend import fit_weights


def waves(n_cases=40, seed=0):
    rng = np.random.default_rng(seed)
    X, y = [], []
    for i in range(n_cases):
        t = np.sort(rng.uniform(0, 6, rng.integers(10, 25)))
        X.append((t, np.sin((1 + i % 2) * t + rng.uniform(0, 6))))
        y.append("fast" if i % 2 else "slow")
    return X, np.array(y)


def members():
    return [
        ("bank", FilterBankClassifier()),
        ("linear", make_pipeline(SeriesStatistics(), LogisticRegression(max_iter=1000))),
        ("constant", make_pipeline(SeriesStatistics(), DummyClassifier(strategy="prior"))),
    ]


def log_probabilities(truth, strength, noise, seed):
    """Of a member that knows the truth up to noise; (N, 2)."""
    logits = strength * (2 * np.eye(2)[truth] - 1)
    logits = logits + noise * np.random.default_rng(seed).standard_normal(logits.shape)
    return logits - np.logaddexp(*logits.T)[:, None]


def test_blend_weights_leave_out_what_adds_nothing():
    truth = np.arange(400) % 2
    good = log_probabilities(truth, 1.0, 1.0, 0)
    other = log_probabilities(truth, 1.0, 1.0, 1)
    constant = np.log(np.full((400, 2), 0.5))
    guess = log_probabilities(truth, 0.0, 1.0, 2)
    weights, _, losses = fit_weights(np.stack([good, constant, other, guess]), truth)
    assert weights[1] == weights[3] == 0
    assert weights[0] > 0.2 and weights[2] > 0.2
    assert losses[-1] < min(losses[:-1])


def test_blend_weights_calibrate_a_member_that_is_too_sure():
    truth = np.arange(1000) % 2
    honest = log_probabilities(truth, 0.5, 1.0, 0)
    sure = 4 * honest
    sure = sure - np.logaddexp(*sure.T)[:, None]
    weights, offsets, (alone, blended) = fit_weights(sure[None], truth)
    assert weights[0] < 0.6 and blended < alone
    assert np.abs(offsets).max() < 0.2


def test_blend_of_series():
    X, y = waves(60)
    new, truth = waves(60, seed=1)
    model = BlendClassifier(estimators=members(), cv=3, random_state=0).fit(X, y)
    assert model.weights_["constant"] == 0 and "constant" not in model.estimators_
    assert model.weights_["bank"] > 0 and set(model.losses_) == {*model.weights_, "blend"}
    assert model.score(new, truth) > 0.85
    proba = model.predict_proba(new)
    np.testing.assert_allclose(proba.sum(1), 1)
    again = BlendClassifier(estimators=members(), cv=3, random_state=0)
    again.fit(as_series(X, dtype=torch.float64), y)
    batch = as_series(new, dtype=torch.float64)
    np.testing.assert_allclose(again.predict_proba(batch), proba, atol=1e-5)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(new), proba)
    assert min(cross_val_score(model, X, y, cv=2)) > 0.7


class GroupSpy(ClassifierMixin, BaseEstimator):
    """Remembers the groups of the series it was fitted to, which their first values tell."""

    seen: list = []

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        GroupSpy.seen.append(set(X.values[:, 0, 0].round().tolist()))
        return self

    def predict_proba(self, X):
        GroupSpy.seen[-1] = GroupSpy.seen[-1], set(X.values[:, 0, 0].round().tolist())
        return np.full((len(X), len(self.classes_)), 1 / len(self.classes_))


def test_blend_keeps_groups_in_one_fold():
    groups = np.repeat(np.arange(6), 5)
    X = np.repeat(groups[:, None], 4, axis=1).astype(float)
    GroupSpy.seen.clear()
    BlendClassifier(estimators=[("spy", GroupSpy())], cv=3).fit(X, np.arange(30) % 2, groups)
    folds = [pair for pair in GroupSpy.seen if isinstance(pair, tuple)]
    assert len(folds) == 3
    assert all(not (train & test) and len(test) == 2 for train, test in folds)


def slopes(n_cases=24, seed=0):
    """Waves of unequal lengths, and at each row whether they rise."""
    rng = np.random.default_rng(seed)
    times = [np.sort(rng.uniform(0, 6, rng.integers(10, 25))) for _ in range(n_cases)]
    y = [np.where(np.cos(t) > 0, "rising", "falling") for t in times]
    return [(t, np.sin(t)) for t in times], y


def point_members():
    return [
        ("bank", FilterBankPointClassifier(n_units=100)),
        ("constant", FilterBankPointClassifier(head=DummyClassifier(strategy="prior"))),
    ]


def test_blend_of_time_points():
    X, y = slopes()
    new, truth = slopes(seed=1)
    model = BlendPointClassifier(estimators=point_members(), cv=3, random_state=0).fit(X, y)
    assert model.weights_["constant"] == 0 and set(model.estimators_) == {"bank"}
    assert model.score(new, truth) > 0.85
    proba = model.predict_proba(new)
    assert [len(rows) for rows in proba] == [len(labels) for labels in truth]
    np.testing.assert_allclose(np.concatenate(proba).sum(1), 1)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(new)[0], proba[0])
    # A query at the times of a series, all at once, asks for its rows.
    times = new[0][0]
    np.testing.assert_allclose(model.predict_proba(new[:1], times)[0], proba[0], atol=1e-6)
    assert model.predict(new[:2], times=[1.0, 3.0]).shape == (2, 2)


def test_blend_of_time_points_with_one_label_per_series():
    X, y = waves(30)
    members = [("bank", FilterBankPointClassifier(n_units=100))]
    model = BlendPointClassifier(estimators=members, cv=3, random_state=0).fit(X, y)
    assert model.one_label_per_series_ and model.predict(X).shape == (30,)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)


def test_blend_without_a_useful_member_predicts_the_shares_of_classes():
    X, _ = waves(30)
    y = np.arange(30) % 3 == 0
    constant = make_pipeline(SeriesStatistics(), DummyClassifier(strategy="uniform"))
    model = BlendClassifier(estimators=[("constant", constant)], random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X), [[2 / 3, 1 / 3]] * 30, atol=0.05)


def test_blend_of_time_points_gives_groups_to_members_that_take_them(monkeypatch):
    X, y = slopes()
    groups = np.repeat(["a", "b", "c", "d"], 6)
    seen = []
    fit = FilterBankPointClassifier.fit

    def spy(self, X, y, sample_weight=None, groups=None):
        seen.append(set(groups))
        return fit(self, X, y, sample_weight, groups)

    monkeypatch.setattr(FilterBankPointClassifier, "fit", spy)
    members = [("bank", FilterBankPointClassifier(n_units=10))]
    BlendPointClassifier(estimators=members, cv=9, random_state=0).fit(X, y, groups)
    assert sorted(map(len, seen)) == [3, 3, 3, 3, 4]


@pytest.mark.parametrize(
    ("estimators", "y", "message"),
    [
        ([], [0, 1] * 5, "estimators must be pairs"),
        ([("a", FilterBankClassifier())] * 2, [0, 1] * 5, "estimators must be pairs"),
        (None, [0] * 10, "at least 2 classes, got 1 class"),
        (None, ["a"] * 9 + ["rare"], "at least 2 series of each class, got 1 of class rare"),
    ],
)
def test_blend_errors(estimators, y, message):
    X = np.random.default_rng(0).normal(size=(10, 5))
    with pytest.raises(ValueError, match=message):
        BlendClassifier(estimators=estimators).fit(X, y)


@pytest.mark.parametrize("blend", [BlendClassifier, BlendPointClassifier])
def test_blend_needs_two_folds(blend):
    with pytest.raises(ValueError, match="'cv' parameter"):
        blend(cv=1).fit(np.zeros((4, 5)), [0, 1, 0, 1])


def test_blend_refuses_a_single_group():
    X, y = waves(12)
    with pytest.raises(ValueError, match="groups must have at least 2 different values, got 1"):
        BlendClassifier(estimators=members()).fit(X, y, groups=np.zeros(12))


@pytest.mark.slow
def test_sklearn_check_estimator_of_blend():
    members = list(BlendClassifier().default_members(0).items())[:2]  # those that take no time
    blend = BlendClassifier(estimators=members, cv=2)
    results = check_estimator(blend, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in results) > 45
