"""Choices of learning: monitors, validation, members, summaries, starting from other weights."""

import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    log_loss,
    roc_auc_score,
)
from sklearn.model_selection import cross_val_score

from latent_morph import (
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    SeriesStatistics,
    as_series,
)
from latent_morph.estimators.classifier import calibrate
from latent_morph.estimators.monitors import MONITORS
from latent_morph.estimators.split import choose_fraction
from latent_morph.models import PointSummary, SeriesSummary
from latent_morph.series import Examples, SeriesScaler

SMALL = {"latent_dim": 4, "hidden_dim": 8, "ode": "linear", "max_epochs": 2, "random_state": 0}


def sines(n, seed=0):
    rng = np.random.default_rng(seed)
    X, y = [], []
    for i in range(n):
        times = np.sort(rng.uniform(0, 6, rng.integers(8, 16)))
        X.append((times, np.sin((1 + i % 2) * times + rng.uniform(0, 6))))
        y.append("fast" if i % 2 else "slow")
    return X, np.array(y)


# Monitors


@pytest.mark.parametrize("n_classes", [2, 3])
def test_monitors_equal_scores_of_sklearn(n_classes):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(n_classes), 80)
    codes, weight = rng.integers(0, n_classes, 80), rng.uniform(0.1, 2, 80)
    best = probabilities.argmax(1)
    of_class = range(n_classes) if n_classes > 2 else [1]

    def one_against_rest(score):
        return np.mean(
            [score(codes == k, probabilities[:, k], sample_weight=weight) for k in of_class]
        )

    expected = {
        "log_loss": -log_loss(codes, probabilities, sample_weight=weight),
        "accuracy": accuracy_score(codes, best, sample_weight=weight),
        "balanced_accuracy": balanced_accuracy_score(codes, best, sample_weight=weight),
        "roc_auc": one_against_rest(roc_auc_score),
        "average_precision": one_against_rest(average_precision_score),
    }
    assert expected.keys() == MONITORS.keys()
    for name, value in expected.items():
        assert MONITORS[name](probabilities, codes, weight) == pytest.approx(value)


def test_monitors_count_only_labels_with_weight():
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    codes, weight = np.array([0, 1, 0]), np.array([1.0, 0.0, 1.0])
    with pytest.raises(ValueError, match="single class"):
        MONITORS["roc_auc"](probabilities, codes, weight)
    absent = np.array([0, 0, 0])  # predictions of a class that validation lacks warn no one
    assert MONITORS["balanced_accuracy"](probabilities, absent, np.ones(3)) == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["roc_auc", "average_precision"])
def test_monitors_refuse_a_single_class(name):
    with pytest.raises(ValueError, match="monitor must be 'log_loss' or 'accuracy' for"):
        MONITORS[name](np.full((3, 2), 0.5), np.ones(3, dtype=int), np.ones(3))


@pytest.mark.parametrize("monitor", MONITORS)
def test_classifier_keeps_the_epoch_with_the_best_monitor(monitor):
    X, y = sines(60)
    params = SMALL | {"max_epochs": 6, "validation_fraction": 0.3, "monitor": monitor}
    model = LatentODEClassifier(**params).fit(X, y)
    scores = [row["validation_score"] for row in model.history_]
    assert scores[model.best_epoch_ - 1] == max(scores)
    assert (max(scores) <= 0) == (monitor == "log_loss")


@pytest.mark.parametrize(
    ("fraction", "n_cases", "groups", "patience", "expected"),
    [
        (0.3, 20, None, None, 0.3),
        ("auto", 999, None, None, 0.0),
        ("auto", 1000, None, None, 0.1),
        ("auto", 1000, [0, 1], None, 0.0),
        ("auto", 50, None, 3, 0.1),
        ("auto", 50, [0, 1], 3, 0.1),
    ],
)
def test_choose_fraction_holds_out_nothing_where_that_is_few(
    fraction, n_cases, groups, patience, expected
):
    assert choose_fraction(fraction, n_cases, groups, patience) == expected


def test_classifier_keeps_the_end_of_the_schedule_with_few_series():
    X, y = sines(40)
    model = LatentODEClassifier(**SMALL).fit(X, y)
    assert (model.n_train_, model.n_val_, model.best_epoch_) == (40, 0, 2)


@pytest.mark.parametrize("kind", [LatentODEClassifier, LatentODEPointClassifier])
def test_calibrate_undoes_a_wrong_temperature(kind):
    X, y = sines(60)
    y[::5] = "slow"  # so that no model is right about all
    model = kind(**SMALL | {"max_epochs": 30, "learning_rate": 0.02}).fit(X, y)
    codes = np.searchsorted(model.classes_, y)
    labels = codes if kind is LatentODEClassifier else None
    batch = model._scale(as_series(X, dtype=torch.float64))
    if labels is None:
        labels = np.where(batch.present, codes[:, None], -1)
    examples = Examples(batch, labels=torch.from_numpy(labels))
    calibrate(model.model_, examples, None, 16)
    expected = model.predict_proba(X)
    for factor in (4.0, 0.25):
        with torch.no_grad():
            for parameter in model.model_.head.network[-1].parameters():
                parameter *= factor
        assert np.abs(model.predict_proba(X) - expected).max() > 0.02
        calibrate(model.model_, examples, None, 16)
        np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-3)


# Members


def test_calibrate_stays_modest_on_few_series_that_are_told_apart():
    X, y = sines(40)
    model = LatentODEClassifier(**SMALL | {"max_epochs": 60, "learning_rate": 0.02}).fit(X, y)
    right = np.flatnonzero(model.predict(X) == y)[:4]
    batch = model._scale(as_series(X, dtype=torch.float64))[right]
    labels = torch.from_numpy(np.searchsorted(model.classes_, y[right]))
    calibrate(model.model_, Examples(batch, labels=labels), None, 16)
    # Four series and one more for each class; without these, confidence would have no limit.
    assert 0.7 < model.predict_proba([X[i] for i in right]).max(1).mean() < 0.95


def test_members_average_probabilities(tmp_path):
    X, y = sines(40)
    params = SMALL | {"validation_fraction": 0.2}
    model = LatentODEClassifier(**params, n_members=3).fit(X, y)
    members = list(model.model_.members)
    batch = model._scale(as_series(X, dtype=torch.float64))
    with torch.no_grad():
        each = torch.stack([member(batch).logits.softmax(-1) for member in members])
    assert (each[0] - each[1]).abs().max() > 1e-3
    expected = each.mean(0).numpy()
    np.testing.assert_allclose(model.predict_proba(X), expected, atol=1e-6)
    # The first member is what a single one is; latent states are its own.
    alone = LatentODEClassifier(**params).fit(X, y)
    assert [row["train_loss"] for row in alone.history_] != []
    again = LatentODEClassifier.load(model.save(tmp_path / "members.safetensors"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.latent_trajectory(X[:2], [0.0, 1.0]).shape == (2, 2, 4)


def test_members_of_points_answer_queries():
    X, y = sines(30)
    model = LatentODEPointClassifier(**SMALL, n_members=2).fit(X, y)
    assert model.predict_proba(X).shape == (30, 2)
    assert model.predict_proba(X, times=[0.5, 1.0]).shape == (30, 2, 2)


def test_members_resume_from_checkpoints_of_their_own(tmp_path):
    X, y = sines(30)
    path = tmp_path / "state.pt"
    params = SMALL | {"max_epochs": 3, "n_members": 2}
    whole = LatentODEClassifier(**params).fit(X, y)
    LatentODEClassifier(**params, checkpoint=path).fit(X, y)
    assert {file.name for file in tmp_path.iterdir()} == {"state.pt", "state-1.pt"}
    resumed = LatentODEClassifier(**params, checkpoint=path, resume=True).fit(X, y)
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


# Summary


@pytest.mark.parametrize("kind", [LatentODEClassifier, LatentODEPointClassifier])
def test_summary_tells_what_the_trajectory_does_not(kind):
    """Noise has no trajectory that would tell how large its largest value is."""
    rng = np.random.default_rng(0)

    def draw(n):
        X = rng.standard_normal((n, 40))
        return X, np.where(X.max(1) > 2.2, "high", "low")

    X, y = draw(300)
    new, truth = draw(300)
    params = SMALL | {"max_epochs": 30, "learning_rate": 0.01, "head": "trajectory"}
    params["summary_dropout"] = 0.0
    scores = {
        summary: kind(**params, summary=summary).fit(X, y).score(new, truth)
        for summary in (True, False)
    }
    assert scores[True] > 0.9 > 0.75 > scores[False]


def test_point_summary_tells_the_past_of_a_row():
    rng = np.random.default_rng(0)

    def draw(n):
        X = rng.standard_normal((n, 40))
        return X, np.diff(X, axis=1, prepend=0.0) > 0  # whether the value is above the last one

    X, y = draw(200)
    new, truth = draw(100)
    params = SMALL | {"max_epochs": 30, "learning_rate": 0.01, "head": "trajectory"}
    scores = {
        summary: LatentODEPointClassifier(**params, summary_dropout=0.0, summary=summary)
        .fit(X, y)
        .score(new, truth)
        for summary in (True, False)
    }
    # The value itself tells three quarters, at most.
    assert scores[True] > 0.85 > 0.75 > scores[False]


@pytest.mark.parametrize("kind", [SeriesSummary, PointSummary])
def test_summary_standardises_by_weight_and_ignores_padding(kind):
    X, _ = sines(12)
    batch = as_series(X, dtype=torch.float64)
    scaled = SeriesScaler("robust").fit(batch).transform(batch)
    counts = torch.tensor([1, 3, 1, 2, 1, 1, 1, 4, 1, 1, 1, 1])
    weighted, copied = kind(1, 4, 0.0).double(), kind(1, 4, 0.0).double()
    weighted.fit(scaled, counts)
    copied.fit(scaled[torch.arange(12).repeat_interleave(counts)])
    torch.testing.assert_close(weighted.mean, copied.mean)
    torch.testing.assert_close(weighted.factor, copied.factor)
    padded = scaled._pad_to(30)
    answers = [weighted(part.values, part.times, part.mask) for part in (scaled, padded)]
    if kind is PointSummary:
        answers = [answer[:, : scaled.n_times] for answer in answers]
    torch.testing.assert_close(*answers)


# Starting from other weights


def test_init_starts_from_a_reconstructor(tmp_path):
    X, y = sines(40)
    source = LatentODEReconstructor(**SMALL).fit(X)
    frozen = {"learning_rate": 1e-12, "weight_decay": 0.0, "summary": False}
    expected = source.reconstruct(X[:3], [0.5, 2.0], n_samples=0)
    path = source.save(tmp_path / "source.safetensors")
    for init in (source, FrozenEstimator(source), path, str(path)):
        model = LatentODEClassifier(**SMALL | frozen, init=init).fit(X, y)
        np.testing.assert_allclose(
            model.reconstruct(X[:3], [0.5, 2.0], n_samples=0), expected, atol=1e-5
        )
    assert model.scaler_.state() == source.scaler_.state()
    saved = LatentODEClassifier.load(model.save(tmp_path / "model.safetensors"))
    assert saved.init is None
    np.testing.assert_array_equal(saved.predict_proba(X), model.predict_proba(X))


def test_init_survives_cross_validation_when_frozen():
    X, y = sines(40)
    source = LatentODEReconstructor(**SMALL).fit(X)
    frozen = LatentODEClassifier(**SMALL, init=FrozenEstimator(source))
    assert len(cross_val_score(frozen, X, y, cv=2)) == 2
    with pytest.raises(ValueError, match="init must be fitted"):
        cross_val_score(LatentODEClassifier(**SMALL, init=source), X, y, error_score="raise")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden_dim": 16}, "init must have the same channels, ode, encoder"),
        ({"ode": "morph"}, "another flow"),
    ],
)
def test_init_of_other_sizes_is_refused(params, message):
    X, y = sines(20)
    source = LatentODEReconstructor(**SMALL).fit(X)
    with pytest.raises(ValueError, match=message):
        LatentODEClassifier(**SMALL | params, init=source).fit(X, y)


def test_init_of_other_channels_or_kinds_is_refused():
    X, y = sines(20)
    source = LatentODEReconstructor(**SMALL).fit(X)
    wide = [(t, np.c_[v, v]) for t, v in X]
    with pytest.raises(ValueError, match="init must have 2 channels as X has, got 1"):
        LatentODEClassifier(**SMALL, init=source).fit(wide, y)
    with pytest.raises(TypeError, match="init must be a fitted LatentODEReconstructor"):
        LatentODEClassifier(**SMALL, init=SeriesStatistics().fit(X)).fit(X, y)
