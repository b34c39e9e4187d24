"""The estimators learn, answer the same however they are asked, and refuse in clear words."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

import latent_morph
from benchmarks.memory import peak_above
from latent_morph import (
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    SeriesBatch,
    as_series,
)
from latent_morph.estimators.classifier import accuracy
from latent_morph.estimators.split import split_cases
from latent_morph.series import Examples

NAN = float("nan")
SMALL = {
    "latent_dim": 4,
    "hidden_dim": 16,
    "decoder_width": 16,
    "ode_options": {"inn": {"blocks": 2, "width": 16}},
    "learning_rate": 0.02,
    "batch_size": 16,
    "random_state": 0,
}
TINY = {**SMALL, "hidden_dim": 4, "decoder_width": 4, "max_epochs": 1, "ode": "linear"}
TINY["ode_options"] = None
# Nothing about a step is random.
EXACT = {"batch_size": 256, "sample_z0": False, "dtype": "float64"}
NO_DROPOUT = {"encoder_options": {"dropout": 0.0}}  # of the encoder "morph"
ALL = (LatentODEClassifier, LatentODEPointClassifier, LatentODEReconstructor)


def sines(n, seed=0):
    """Irregular, ragged, of random phase; the label is the frequency."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for i in range(n):
        times = np.sort(rng.uniform(0, 6, rng.integers(8, 16)))
        X.append((times, np.sin((1 + i % 2) * times + rng.uniform(0, 6))))
        y.append("fast" if i % 2 else "slow")
    return X, np.array(y)


def rising(n, seed=0):
    """The label of a point says which way the wave goes there."""
    rng = np.random.default_rng(seed)
    times = [np.sort(rng.uniform(0, 6, rng.integers(12, 20))) for _ in range(n)]
    X = [(t, np.sin(t)) for t in times]
    return X, [np.where(np.cos(t) > 0, "up", "down") for t in times]


def decays(n, seed=0):
    """Two channels that decay from random heights; some values are missing."""
    rng = np.random.default_rng(seed)
    X = []
    for _ in range(n):
        times = np.sort(rng.uniform(0, 3, rng.integers(8, 14)))
        values = rng.uniform(1, 3, 2) * np.exp(-times[:, None] * [1.0, 0.5])
        values[rng.random(values.shape) < 0.2] = NAN
        X.append((times, values))
    return X


@pytest.fixture(scope="module")
def classifier():
    X, y = sines(100)
    return LatentODEClassifier(max_epochs=20, **SMALL).fit(X, y)


@pytest.fixture(scope="module")
def points():
    X, y = rising(60)
    return LatentODEPointClassifier(max_epochs=15, **SMALL).fit(X, y)


@pytest.fixture(scope="module")
def reconstructor():
    return LatentODEReconstructor(max_epochs=40, keep=0.6, noise_std=0.1, **SMALL).fit(decays(160))


# Learning


def test_classifies_series_it_has_not_seen(classifier):
    X, y = sines(80, seed=1)
    assert classifier.score(X, y) > 0.9
    assert set(classifier.predict(X)) == {"fast", "slow"}


def test_classifies_time_points_of_series_it_has_not_seen(points):
    X, y = rising(40, seed=1)
    assert points.score(X, y) > 0.9


def test_reconstructs_what_it_was_not_shown(reconstructor):
    truth = decays(40, seed=1)
    fewer = [(times[::2], values[::2]) for times, values in truth]
    variance = np.nanvar(np.concatenate([values for _, values in truth]))
    assert reconstructor.score(fewer, truth) > -0.1 * variance
    assert reconstructor.score(truth) > -0.1 * variance


def test_the_standard_deviation_is_about_the_error(reconstructor):
    truth = decays(40, seed=1)
    mean, std = reconstructor.reconstruct(truth, return_std=True)
    values = np.full_like(mean, NAN)
    for i, (_, rows) in enumerate(truth):
        values[i, : len(rows)] = rows
    z = ((values - mean) / std)[~np.isnan(values)]
    assert 0.3 < np.sqrt(np.mean(z**2)) < 2


def test_learns_to_fill_in_and_from_richer_targets():
    X = decays(30)
    fewer = [(times[::2], values[::2]) for times, values in X]
    settings = {**SMALL, "max_epochs": 3}
    filled = LatentODEReconstructor(keep=0.5, **settings).fit(X)
    taught = LatentODEReconstructor(**settings).fit(fewer, X)
    assert taught.history_[-1]["train_loss"] < taught.history_[0]["train_loss"]
    assert filled.history_[-1]["train_loss"] < filled.history_[0]["train_loss"]
    with pytest.raises(
        ValueError, match="y must have 30 series of 2 channels as X has, got 29 of 2"
    ):
        taught.fit(fewer, X[:-1])


@pytest.mark.parametrize("ode", latent_morph.FLOWS)
def test_every_ode_fits_and_answers_in_numbers(ode):
    X, y = sines(6)
    X = [(times[:4] / 6, values[:4]) for times, values in X]
    model = LatentODEClassifier(**{**TINY, "ode": ode}).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.history_[0]["train_loss"])


@pytest.mark.parametrize("ode", ["linear", "morph", "euler", "dopri5"])
def test_gru_ode_encoder_takes_every_kind_of_ode(ode):
    X, y = sines(6)
    X = [(times[:4] / 6, values[:4]) for times, values in X]
    options = {"encoder": "gru-ode", "encoder_options": {"ode": ode}}
    model = LatentODEClassifier(**TINY, **options).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()


def test_a_recipe_serves_as_ode():
    X, y = sines(6)

    def recipe(latent_dim, stable):
        return latent_morph.LinearFlow(latent_dim, stable=stable)

    model = LatentODEClassifier(**{**TINY, "ode": recipe, "ode_options": {"stable": True}})
    assert model.fit(X, y).model_.flow.stable


# Answers


def test_probabilities_sum_to_one(classifier, points):
    proba = classifier.predict_proba(sines(9)[0])
    assert proba.shape == (9, 2)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    for part, (times, _) in zip(points.predict_proba(rising(9)[0]), rising(9)[0], strict=True):
        assert part.shape == (len(times), 2)
        np.testing.assert_allclose(part.sum(1), 1, atol=1e-6)


def test_answers_do_not_depend_on_batch_mates(classifier, points, reconstructor):
    X, _ = sines(30, seed=2)
    together = classifier.predict_proba(X)
    alone = np.concatenate([classifier.predict_proba([case]) for case in X[:5]])
    np.testing.assert_allclose(together[:5], alone, atol=1e-5)
    X, _ = rising(30, seed=2)
    together = points.predict_proba(X)
    for case in range(5):
        alone = points.predict_proba(X[case : case + 1])
        np.testing.assert_allclose(together[case], alone[0], atol=1e-5)
    X = decays(30, seed=2)
    mean, std = reconstructor.reconstruct(X, [0.5, 1.0], return_std=True)
    mean_alone, std_alone = reconstructor.reconstruct(X[3:4], [0.5, 1.0], return_std=True)
    np.testing.assert_allclose(mean[3:4], mean_alone, atol=1e-5)
    np.testing.assert_allclose(std[3:4], std_alone, atol=1e-5)
    np.testing.assert_allclose(
        reconstructor.transform(X)[3:4], reconstructor.transform(X[3:4]), atol=1e-5
    )


def test_many_series_are_answered_as_few_are(classifier):
    X, _ = sines(10)
    many = classifier.predict_proba(X * 60)  # more than a chunk
    np.testing.assert_allclose(many, np.tile(classifier.predict_proba(X), (60, 1)), atol=1e-5)


def test_neither_padding_nor_what_is_not_observed_moves_an_answer(classifier, points):
    for model, X in ((classifier, sines(8)[0]), (points, rising(8)[0])):
        batch = as_series([(t, np.where(np.arange(len(t)) % 5 == 2, NAN, v)) for t, v in X])
        wide = batch._pad_to(batch.n_times + 4)
        noisy = SeriesBatch(
            torch.where(wide.mask, wide.values, 1e6), wide.times, wide.mask, wide.lengths
        )
        plain, answer = model.predict_proba(batch), model.predict_proba(noisy)
        for one, other in zip(plain, answer, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_points_never_observed_are_answered_as_if_they_were_rows(points):
    X, _ = rising(5, seed=3)
    times = np.array([4.4, -0.5, 1.0, 7.5])
    answer = points.predict_proba(X, times)
    assert answer.shape == (5, 4, 2) and points.predict(X, times).shape == (5, 4)
    for case, (t, values) in enumerate(X):
        for k in (0, 2):
            row = np.searchsorted(t, times[k])
            if row == 0:  # another start, so another clock
                continue
            asked = (np.insert(t, row, times[k]), np.insert(values, row, NAN))
            np.testing.assert_allclose(
                points.predict_proba([asked])[0][row], answer[case, k], atol=1e-5
            )
    own = points.predict_proba(X[:1], X[0][0])  # at observed times: what is known of the row
    np.testing.assert_allclose(own[0].sum(-1), 1, atol=1e-6)
    inside = np.linspace(0.5, 5.5, 21)
    right = points.predict(X, inside) == np.where(np.cos(inside) > 0, "up", "down")
    assert right.mean() > 0.8


def test_epoch_seconds_are_as_good_as_small_numbers(classifier, points, reconstructor):
    def later(X):
        return [(times + 1.7e9, values) for times, values in X]

    X = sines(8)[0]
    np.testing.assert_allclose(
        classifier.predict_proba(later(X)), classifier.predict_proba(X), atol=1e-4
    )
    X = rising(8)[0]
    for one, other in zip(points.predict_proba(later(X)), points.predict_proba(X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    X = decays(8)
    starts = np.array([[times[0]] for times, _ in X])
    one = reconstructor.reconstruct(later(X), starts + 1.7e9 + [0.5, 1.0])
    np.testing.assert_allclose(one, reconstructor.reconstruct(X, starts + [0.5, 1.0]), atol=1e-4)
    fitted = LatentODEReconstructor(**TINY).fit(later(X))
    plain = LatentODEReconstructor(**TINY).fit(X)
    np.testing.assert_allclose(fitted.transform(later(X)), plain.transform(X), atol=1e-4)


def test_values_on_a_large_offset_keep_their_changes():
    X = np.sin(np.random.default_rng(0).uniform(0, 6, (12, 8)))
    one = LatentODEReconstructor(**TINY).fit(X)
    other = LatentODEReconstructor(**TINY).fit(X + 1e7)
    np.testing.assert_allclose(one.predict(X), other.predict(X + 1e7) - 1e7, atol=1e-3)


def test_when_a_series_starts_matters_only_on_an_absolute_clock():
    X, y = sines(12)
    later = [(times + 2.0, values) for times, values in X]
    for origin, same in (("case", True), ("absolute", False)):
        model = LatentODEClassifier(**TINY, time_origin=origin).fit(X, y)
        assert np.allclose(model.predict_proba(later), model.predict_proba(X), atol=1e-5) is same
        assert model.reconstruct(X, [1.0, 2.0]).shape == (12, 2, 1)


def test_reconstruct_forecast_and_sample_have_the_shapes_they_promise(reconstructor):
    X = decays(6)
    lengths = [len(times) for times, _ in X]
    mean, std = reconstructor.reconstruct(X, return_std=True)
    assert mean.shape == std.shape == (6, max(lengths), 2)
    beyond = np.arange(max(lengths)) >= np.array(lengths)[:, None]
    np.testing.assert_array_equal(np.isnan(mean), np.repeat(beyond[..., None], 2, axis=-1))
    np.testing.assert_array_equal(np.isnan(std), np.isnan(mean))
    assert (std[~np.isnan(std)] > 0).all()
    assert reconstructor.reconstruct(X, np.zeros((6, 3))).shape == (6, 3, 2)
    assert reconstructor.predict(X, [0.1]).shape == (6, 1, 2)
    assert reconstructor.transform(X).shape == (6, 4)
    assert list(reconstructor.get_feature_names_out()) == ["z0", "z1", "z2", "z3"]
    ahead = reconstructor.forecast(X, [0.1, 0.2, 0.3])
    last = np.array([[times[-1]] for times, _ in X])
    at_those_times = reconstructor.reconstruct(X, last + [0.1, 0.2, 0.3])
    np.testing.assert_allclose(ahead, at_those_times, atol=1e-6)
    drawn = reconstructor.sample(5, [0.0, 1.0, 2.0], random_state=0)
    assert drawn.shape == (5, 3, 2)
    np.testing.assert_array_equal(drawn, reconstructor.sample(5, [0.0, 1.0, 2.0], random_state=0))
    assert not np.array_equal(drawn, reconstructor.sample(5, [0.0, 1.0, 2.0], random_state=1))


def test_timedeltas_are_seconds(reconstructor):
    X = decays(3)
    np.testing.assert_array_equal(
        reconstructor.reconstruct(X, pd.to_timedelta([500, 1500], unit="ms")),
        reconstructor.reconstruct(X, [0.5, 1.5]),
    )


def test_latent_trajectories_start_where_transform_says_and_decode_to_the_answer(reconstructor):
    X = decays(5, seed=3)
    own = reconstructor.latent_trajectory(X)
    longest = max(len(times) for times, _ in X)
    assert own.shape == (5, longest, 4)
    starts = np.array([times[:1] for times, _ in X])
    at_start = reconstructor.latent_trajectory(X, starts)
    np.testing.assert_allclose(at_start[:, 0], reconstructor.transform(X), atol=1e-5)
    for (times, _), states in zip(X, own, strict=True):
        assert np.isnan(states[len(times) :]).all() and np.isfinite(states[: len(times)]).all()
    with torch.no_grad():
        decoded = reconstructor.model_.decoder(torch.from_numpy(own)).mean
    wanted = reconstructor.reconstruct(X, n_samples=0)
    found = reconstructor.scaler_.inverse_values(decoded.double())
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    with pytest.raises(ValueError, match=r"times must have shape \(Q,\) or \(5, Q\)"):
        reconstructor.latent_trajectory(X, np.zeros((4, 2)))


def test_fewer_draws_of_the_posterior_are_its_mean(reconstructor):
    X = decays(4)
    mean = reconstructor.predict(X)
    many = reconstructor.reconstruct(X, n_samples=64)
    np.testing.assert_allclose(many, mean, atol=0.3)
    assert np.nanmax(np.abs(many - mean)) > 0
    with pytest.raises(ValueError, match="n_samples must be at least 0"):
        reconstructor.reconstruct(X, n_samples=-1)


# Input


def forms():
    """The same two-channel series in every form that is accepted."""
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((12, 5, 2))
    dense[3, 2] = NAN
    dense[4, 1, 0] = NAN
    clock = np.arange(5.0)
    objects = np.empty(12, dtype=object)
    objects[:] = list(dense)
    return {
        "array": dense,
        "tensor": torch.from_numpy(dense),
        "list": list(dense),
        "objects": objects,
        "pairs": [(clock, values) for values in dense],
        "frames": [pd.DataFrame(values, columns=["u", "v"]) for values in dense],
        "batch": as_series(dense),
        "batch64": as_series(dense, dtype=torch.float64),
    }


@pytest.mark.parametrize("form", forms())
@pytest.mark.parametrize("kind", ALL)
def test_every_form_of_series_gives_the_same_answer(kind, form):
    X, y = forms(), np.arange(12) % 2
    reference = kind(**TINY).fit(X["array"], y)
    model = kind(**TINY).fit(X[form], y)
    np.testing.assert_allclose(model.predict(X[form]), reference.predict(X["array"]), atol=1e-5)
    np.testing.assert_allclose(model.predict(X["array"]), reference.predict(X[form]), atol=1e-5)
    assert (model.n_channels_, model.n_features_in_) == (2, 2)


def test_a_list_of_unequal_series_may_be_asked_about_equal_ones():
    X, y = [np.ones(3), np.zeros(5), np.ones(4)] * 4, [0, 1, 0] * 4
    model = LatentODEClassifier(**TINY).fit(X, y)
    assert model.predict(X[:1]).shape == (1,)
    assert model.predict(np.ones((3, 7))).shape == (3,)
    assert model.predict([[1.0, 2.0], [3.0, 4.0]]).shape == (2,)


def test_a_fit_on_series_forgets_the_columns_of_a_fit_on_a_frame():
    frame = pd.DataFrame(np.random.default_rng(0).random((12, 4)), columns=list("abcd"))
    y = np.arange(12) % 2
    model = LatentODEClassifier(**TINY).fit(frame, y)
    assert list(model.feature_names_in_) == list("abcd") and model.n_features_in_ == 4
    model.fit(frame.to_numpy()[..., None], y)
    assert not hasattr(model, "feature_names_in_") and model.n_features_in_ == 1
    assert model.predict(frame).shape == (12,)


@pytest.mark.parametrize(
    "labels", [["a", "b"], [3, 7], [0.0, 1.0], [False, True], pd.array(["x", "y"])], ids=str
)
def test_labels_come_back_as_they_went_in(labels):
    X = [np.full(4, float(i % 2)) for i in range(12)]
    y = [labels[i % 2] for i in range(12)]
    model = LatentODEClassifier(**{**TINY, "max_epochs": 15, "learning_rate": 0.1}).fit(X, y)
    assert list(model.classes_) == list(labels)
    assert list(model.predict(X)) == y


def test_one_label_per_series_gives_one_answer_a_series():
    X, y = sines(12)
    model = LatentODEPointClassifier(**TINY).fit(X, y)
    assert model.one_label_per_series_
    assert model.predict_proba(X).shape == (12, 2) and model.predict(X).shape == (12,)
    assert model.predict(X, [1.0, 2.0]).shape == (12, 2)
    assert 0 <= model.score(X, y) <= 1


def test_labels_of_points_as_array_frame_and_list():
    X = np.random.default_rng(0).random((12, 4))
    y = (X > 0.5).astype(int)
    answers = [
        LatentODEPointClassifier(**TINY).fit(X, labels).predict_proba(X)
        for labels in (y, pd.DataFrame(y), y.tolist(), list(y), torch.from_numpy(y))
    ]
    assert answers[0].shape == (12, 4, 2)
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


# Weights, groups, splits


def test_weights_decide_between_contradicting_labels():
    X, y = [np.zeros(2)] * 20, np.arange(20) % 2
    settings = {**TINY, "max_epochs": 8, "batch_size": 1, "validation_fraction": 0.0}
    settings |= {"gradient_clip": None, **NO_DROPOUT}  # a clipped step has lost its weight
    weight = np.where(y == 1, 9.0, 1.0)
    by_case = LatentODEClassifier(**settings).fit(X, y, sample_weight=weight)
    assert by_case.predict_proba(X[:1])[0, 1] > 0.7
    by_class = LatentODEClassifier(class_weight={0: 1.0, 1: 9.0}, **settings).fit(X, y)
    assert by_class.predict_proba(X[:1])[0, 1] > 0.7
    rare = np.arange(20) % 10 == 0
    settings["batch_size"] = 20
    balanced = LatentODEClassifier(class_weight="balanced", **settings).fit(X, rare)
    assert 0.3 < balanced.predict_proba(X[:1])[0, 1] < 0.7


def test_weights_of_one_and_of_any_other_constant_change_nothing():
    X, y = sines(12)
    plain = LatentODEClassifier(**TINY).fit(X, y).predict_proba(X)
    for constant in (1.0, 1000.0):
        model = LatentODEClassifier(**TINY).fit(X, y, sample_weight=np.full(12, constant))
        np.testing.assert_allclose(model.predict_proba(X), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "match"), [(-np.ones(12), "[Nn]egative"), (np.zeros(12), "zero"), ([1.0], "shape")]
)
def test_refuses_other_weights(weight, match):
    with pytest.raises(ValueError, match=match):
        LatentODEClassifier(**TINY).fit(*sines(12), sample_weight=weight)


@pytest.mark.parametrize("kind", ALL)
def test_a_weight_of_zero_is_an_absent_series(kind):
    """Whatever it holds: neither scales, nor splits, nor classes know of it."""
    X, y = sines(24)
    y[3] = "neither"
    X[3] = (np.array([0.0, 1e3]), np.array([1e6, -1e6]))
    weight, there = np.ones(24), np.arange(24) != 3
    weight[3] = 0
    model = kind(**{**TINY, "max_epochs": 3, "validation_fraction": 0.25})
    few = model.fit([x for x, t in zip(X, there, strict=True) if t], y[there])
    answers, history = few.reconstruct(X), timeless(few)
    weighted = model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(weighted.reconstruct(X), answers)
    assert timeless(weighted) == history and weighted.n_train_ + weighted.n_val_ == 23
    if hasattr(model, "classes_"):
        assert list(weighted.classes_) == ["fast", "slow"]


@pytest.mark.parametrize("params", [{"ode": "linear"}, {"ode": "morph", "encoder": "gru-ode"}])
@pytest.mark.parametrize("kind", ALL)
def test_a_whole_weight_is_so_many_copies(kind, params):
    """In scales, balance, loss, split and choice of the epoch, where copies stay together."""
    X, y = sines(24)
    counts = np.random.default_rng(0).integers(0, 4, 24)
    copies = np.repeat(np.arange(24), counts)
    settings = {**TINY, **params, **EXACT, "max_epochs": 6, "validation_fraction": 0.25}
    settings |= {} if "encoder" in params else NO_DROPOUT
    if kind is not LatentODEReconstructor:
        settings["class_weight"] = "balanced"
    weighted = kind(**settings).fit(X, y, sample_weight=counts, groups=np.arange(24))
    repeated = kind(**settings).fit([X[i] for i in copies], y[copies], groups=copies)
    np.testing.assert_allclose(weighted.reconstruct(X), repeated.reconstruct(X), rtol=1e-7)
    assert weighted.best_epoch_ == repeated.best_epoch_
    assert weighted.n_val_ < repeated.n_val_
    for one, other in zip(timeless(weighted), timeless(repeated), strict=True):
        assert one == pytest.approx(other, rel=1e-9)


def timeless(model):
    """The history without what depends on the machine."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in model.history_]


def test_validation_and_balance_go_by_weights():
    """Three copies of one series say what a weight of three says."""
    X = as_series(np.stack([np.ones(4), -np.ones(4)]))
    labels = torch.tensor([0, 1])
    once = Examples(X, labels=labels, weight=torch.tensor([3.0, 1.0]))
    often = Examples(X[[0, 0, 0, 1]], labels=labels[[0, 0, 0, 1]])
    model = LatentODEClassifier(**TINY, class_weight="balanced").fit(X, labels)
    assert accuracy(model.model_, once, None, 8) == accuracy(model.model_, often, None, 8)
    codes, weight = labels.numpy(), np.array([3.0, 1.0])
    balanced = model._class_factors(codes.repeat([3, 1]), None)
    torch.testing.assert_close(model._class_factors(codes, weight), balanced)
    fill = LatentODEReconstructor(**TINY).fit(X)
    with torch.no_grad():
        scores = [fill._validation_score(fill.model_, part, None) for part in (once, often)]
    np.testing.assert_allclose(*scores, rtol=1e-6)


def test_groups_stay_together():
    groups = np.repeat(np.arange(6), 4)
    learn, check = split_cases(24, 0.3, 0, None, groups)
    assert len(check) and not set(groups[learn]) & set(groups[check])
    assert sorted([*learn, *check]) == list(range(24))
    model = LatentODEClassifier(**{**TINY, "validation_fraction": 0.3})
    model.fit(*sines(24), groups=groups)
    assert (model.n_train_ + model.n_val_, model.n_val_ % 4) == (24, 0)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(*sines(24), groups=groups[:-1])


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9, 0.99])
def test_no_class_is_lost_to_validation_and_shares_are_kept(fraction):
    strata = np.array([0] * 60 + [1] * 30 + [2] * 9 + [3])
    learn, check = split_cases(100, fraction, 0, strata, None)
    assert sorted([*learn, *check]) == list(range(100))
    assert set(strata[learn]) == {0, 1, 2, 3} and 3 not in strata[check]
    assert abs((strata[check] == 1).mean() - 0.3) < 0.1
    learn, check = split_cases(100, fraction, 0, None, None)
    assert len(learn) >= 1 and len(check) == min(round(100 * fraction), 99)


def test_few_cases_are_all_learned_from():
    assert [len(part) for part in split_cases(9, 0.5, 0, None, None)] == [9, 0]
    assert [len(part) for part in split_cases(50, 0.0, 0, None, None)] == [50, 0]


# Random state and precision


@pytest.mark.parametrize("kind", ALL)
def test_double_precision_throughout(kind):
    X, y = sines(12)
    single, double = (
        kind(**TINY | NO_DROPOUT, dtype=dtype).fit(X, y) for dtype in ("float32", "float64")
    )
    assert {p.dtype for p in double.model_.parameters()} == {torch.float64}
    answers = [
        double.set_params(dtype=dtype)._posterior_means(X) for dtype in ("float64", "float32")
    ]  # parameters set later say nothing of the model that is there
    assert answers[0].dtype == np.float64 and single._posterior_means(X).dtype == np.float32
    np.testing.assert_array_equal(*answers)
    if hasattr(double, "predict_proba"):
        assert double.predict_proba(X).dtype == np.float64
    # The same start and the same draws for answers, but rounding goes other ways.
    np.testing.assert_allclose(
        double.sample(3, [0.0, 1.0], random_state=0),
        single.sample(3, [0.0, 1.0], random_state=0),
        atol=0.05,
    )


@pytest.mark.parametrize("kind", ALL)
def test_without_samples_of_z0_the_order_of_series_is_no_matter(kind):
    X, y = sines(12)
    settings = {**TINY, **EXACT, **NO_DROPOUT, "validation_fraction": 0.0, "max_epochs": 4}
    one = kind(**settings).fit(X, y).reconstruct(X)
    np.testing.assert_allclose(kind(**settings).fit(X[::-1], y[::-1]).reconstruct(X), one)
    sampled = kind(**settings | {"sample_z0": True})
    assert abs(sampled.fit(X[::-1], y[::-1]).reconstruct(X) - one)[:, 0].max() > 1e-4


@pytest.mark.parametrize("kind", ALL)
def test_nobodys_random_state_is_touched(kind):
    X, y = sines(12)
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), np.random.get_state()[2]
    model = kind(**{**TINY, "ode": "morph"}).fit(X, y)
    model.predict(X)
    model.reconstruct(X)
    model.sample(2, [0.0], random_state=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert np.random.get_state()[2] == before[2]


@pytest.mark.parametrize("kind", ALL)
def test_one_seed_one_result(kind):
    X, y = sines(12)
    settings = {**TINY, "ode": "morph"}
    torch.manual_seed(0)
    one = kind(**settings).fit(X, y)
    torch.manual_seed(1)
    other = kind(**settings).fit(X, y)
    for a, b in zip(one.model_.parameters(), other.model_.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    third = kind(**{**settings, "random_state": 1}).fit(X, y)
    assert any(
        not torch.equal(a, b)
        for a, b in zip(one.model_.parameters(), third.model_.parameters(), strict=True)
    )


def test_a_fit_can_be_interrupted_and_resumed(tmp_path):
    X, y = sines(12)
    settings = {**TINY, "max_epochs": 3, "checkpoint": tmp_path / "run.pt"}
    whole = LatentODEClassifier(**settings).fit(X, y)
    (tmp_path / "run.pt").unlink()

    def stop(history, _):
        if len(history.rows) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LatentODEClassifier(**settings, callbacks=[stop]).fit(X, y)
    resumed = LatentODEClassifier(**settings, resume=True).fit(X, y)
    assert resumed.n_iter_ == 3 and len(resumed.history_) == 3
    np.testing.assert_array_equal(resumed.predict_proba(X), whole.predict_proba(X))


def test_verbose_logs_a_line_an_epoch(caplog):
    with caplog.at_level("INFO", logger="latent_morph"):
        LatentODEClassifier(**{**TINY, "max_epochs": 2}, verbose=1).fit(*sines(12))
    assert [r.message.split("  ")[0] for r in caplog.records] == ["epoch 1/2", "epoch 2/2"]


# Refusals


def test_refuses_series_of_other_channels(classifier, reconstructor):
    with pytest.raises(ValueError, match="X has 2 channels, but LatentODEClassifier was fitted"):
        classifier.predict(decays(2))
    with pytest.raises(ValueError, match="X has 1 channels, but LatentODEReconstructor was fit"):
        reconstructor.score(sines(2)[0])


@pytest.mark.parametrize("X", [[], np.ones((0, 4, 1)), as_series(np.ones((2, 4)))[[]]])
def test_refuses_no_series_at_all(classifier, X):
    for ask in (classifier.predict, lambda X: LatentODEClassifier(**TINY).fit(X, [])):
        with pytest.raises(ValueError, match="at least one"):
            ask(X)


@pytest.mark.parametrize(
    ("y", "match"),
    [
        ([0, 1], r"inconsistent numbers of samples: \[3, 2\]"),
        (None, "requires y to be passed"),
        ([0.5, 1.2, 3.3], "Unknown label type"),
        ([[0, 1], [1, 0], [1, 1]], "y should be a 1d array"),
    ],
)
def test_refuses_labels_of_series(y, match):
    with pytest.raises(ValueError, match=match):
        LatentODEClassifier(**TINY).fit(np.ones((3, 4)), y)


@pytest.mark.parametrize(
    ("y", "match"),
    [
        ([0, 1], "y must have 3 entries, one per series of X, got 2"),
        (None, "requires y to be passed"),
        (np.zeros((3, 5), int), r"y of case 0 must have shape \(4,\).*got \(5,\)"),
        ([np.zeros(4), np.zeros(4), np.zeros(3)], r"y of case 2 must have shape \(4,\)"),
        (np.linspace(0, 1, 12).reshape(3, 4), "Unknown label type"),
    ],
)
def test_refuses_labels_of_points(y, match):
    with pytest.raises(ValueError, match=match):
        LatentODEPointClassifier(**TINY).fit(np.ones((3, 4)), y)


def test_refuses_labels_of_points_out_of_order():
    """Rows are sorted by time, labels are not: they would belong to others."""
    X, y = [([1.0, 0.0], [1.0, 2.0])] * 12, [[0, 1]] * 12
    with pytest.raises(ValueError, match="times of case 0 must be sorted"):
        LatentODEPointClassifier(**TINY).fit(X, y)
    frames = [pd.DataFrame({"u": [1.0, 2.0]}, index=[1.0, 0.0])] * 12
    with pytest.raises(ValueError, match="times of case 0 must be sorted"):
        LatentODEPointClassifier(**TINY).fit(frames, y)
    model = LatentODEPointClassifier(**TINY).fit([([0.0, 1.0], [1.0, 2.0])] * 12, y)
    for ask in (model.predict, model.predict_proba, lambda X: model.score(X, y)):
        with pytest.raises(ValueError, match="times of case 0 must be sorted"):
            ask(X)


def test_refuses_unknown_odes_with_the_known_ones():
    words = "ode must be one of morph,.*did you mean 'dopri"
    with pytest.raises(ValueError, match=words):
        LatentODEClassifier(**{**TINY, "ode": "dopri"}).fit(*sines(4))
    options = {"encoder": "gru-ode", "encoder_options": {"ode": "dopri"}}
    with pytest.raises(ValueError, match=words.replace("ode must", "ode of the encoder must")):
        LatentODEClassifier(**TINY, **options).fit(*sines(4))
    with pytest.raises(ValueError, match="encoder must be one of morph, gru-ode.*; got 'gru'"):
        LatentODEClassifier(**TINY, encoder="gru").fit(*sines(4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'rtolerance'"):
        LatentODEClassifier(**{**TINY, "ode_options": {"rtolerance": 1}}).fit(*sines(4))


@pytest.mark.parametrize(
    ("times", "match"),
    [
        ([0.0, NAN], "times must be finite"),
        (np.zeros((3, 2)), r"times must have shape \(Q,\) or \(2, Q\), got \(3, 2\)"),
        (1.0, "times must have shape"),
        (["noon"], "times must be numbers"),
        (pd.to_datetime(["2024-01-01"]), "times must be numbers in the units of the data: dates"),
    ],
)
def test_refuses_bad_times(points, reconstructor, times, match):
    with pytest.raises(ValueError, match=match):
        reconstructor.reconstruct(decays(2), times)
    with pytest.raises(ValueError, match=match):
        points.predict(rising(2)[0], times)
    with pytest.raises(ValueError, match="times must"):
        reconstructor.sample(1, times)
    with pytest.raises(ValueError, match="ahead must"):
        reconstructor.forecast(decays(2), times)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("method", ["predict", "reconstruct", "save", "score", "sample"])
def test_says_when_it_is_not_fitted(kind, method, tmp_path):
    arguments = {
        "score": (np.ones((2, 3)), [0, 1]),
        "save": (tmp_path / "m",),
        "sample": (1, [0.0]),
    }
    with pytest.raises(NotFittedError):
        getattr(kind(), method)(*arguments.get(method, (np.ones((2, 3)),)))


@pytest.mark.parametrize(
    "wrong", [{"latent_dim": 0}, {"encoder": 3}, {"budget": -1}, {"head": "none"}], ids=str
)
def test_refuses_parameters_by_name(wrong):
    with pytest.raises(ValueError, match=f"The '{next(iter(wrong))}' parameter"):
        LatentODEClassifier(**{**TINY, **wrong}).fit(*sines(4))


def test_a_fit_that_was_broken_off_does_not_count():
    def stop(history, settings):
        raise KeyboardInterrupt

    X = np.sin(np.arange(12.0) * np.ones((12, 1)))
    model = LatentODEReconstructor(max_epochs=1, random_state=0).fit(X)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(callbacks=[stop]).fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_a_target_may_come_in_any_form_of_series():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 3, (12, 8)))
    seen = [(t[::2], np.exp(-t[::2])) for t in times]
    whole = [(t, np.exp(-t)) for t in times]
    frames = [pd.DataFrame({"x": values}, index=t) for t, values in whole]
    losses = [
        LatentODEReconstructor(max_epochs=1, random_state=0).fit(seen, y).history_[0]["train_loss"]
        for y in (whole, frames, as_series(whole), None)
    ]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-4)
    assert losses[3] != pytest.approx(losses[0], rel=1e-4)


def test_an_unusable_device_is_named():
    with pytest.raises(ValueError, match="device 'warp' cannot be used"):
        LatentODEReconstructor(device="warp").fit(np.ones((3, 4)))


def test_resuming_needs_a_seed(tmp_path):
    model = LatentODEReconstructor(resume=True, checkpoint=tmp_path / "c.pt")
    with pytest.raises(ValueError, match="random_state must be an integer to resume, got None"):
        model.fit(np.ones((3, 4)))


def test_memory_of_predictions_stays_bounded():
    """100,000 series of 200 points are promised 1 GB; a fifth of them gets a fifth of it."""
    X, y = sines(12)
    model = LatentODEClassifier(**TINY, encoder_options={"pool": 8, "layers": 1}).fit(X, y)
    many = np.random.default_rng(0).normal(size=(20_000, 200, 1))
    many[many < -1.5] = NAN
    peak = peak_above(lambda: model.predict(many))
    assert peak is None or peak < 200
