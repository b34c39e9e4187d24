"""The latent ODE estimators: accuracy, consistent predictions, weights and errors."""

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
from latent_morph.estimators.classifier import evaluate_classes
from latent_morph.estimators.monitors import MONITORS
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
# Without randomness in a training step.
EXACT = {"batch_size": 256, "sample_z0": False, "dtype": "float64"}
ALL = (LatentODEClassifier, LatentODEPointClassifier, LatentODEReconstructor)


def without_dropout(kind, encoder="morph"):
    """The parameters that turn dropout off."""
    options = {"encoder_options": {"dropout": 0.0}} if encoder == "morph" else {}
    return options if kind is LatentODEReconstructor else options | {"summary_dropout": 0.0}


def sines(n, seed=0):
    """Irregular sine waves of unequal length and random phase; the label is the frequency."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for i in range(n):
        times = np.sort(rng.uniform(0, 6, rng.integers(8, 16)))
        X.append((times, np.sin((1 + i % 2) * times + rng.uniform(0, 6))))
        y.append("fast" if i % 2 else "slow")
    return X, np.array(y)


def rising(n, seed=0):
    """Sine waves with a label per point: whether the wave rises or falls there."""
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
def point_classifier():
    X, y = rising(60)
    return LatentODEPointClassifier(max_epochs=15, **SMALL).fit(X, y)


@pytest.fixture(scope="module")
def reconstructor():
    return LatentODEReconstructor(max_epochs=40, keep=0.6, noise_std=0.1, **SMALL).fit(decays(160))


# Learning


def test_classifier_score_on_new_series(classifier):
    X, y = sines(80, seed=1)
    assert classifier.score(X, y) > 0.9
    assert set(classifier.predict(X)) == {"fast", "slow"}


def test_point_classifier_score_on_new_series(point_classifier):
    X, y = rising(40, seed=1)
    assert point_classifier.score(X, y) > 0.9


def test_reconstructor_score_on_hidden_points(reconstructor):
    truth = decays(40, seed=1)
    fewer = [(times[::2], values[::2]) for times, values in truth]
    variance = np.nanvar(np.concatenate([values for _, values in truth]))
    assert reconstructor.score(fewer, truth) > -0.1 * variance
    assert reconstructor.score(truth) > -0.1 * variance


def test_reconstructor_std_matches_error(reconstructor):
    truth = decays(40, seed=1)
    mean, std = reconstructor.reconstruct(truth, return_std=True)
    values = np.full_like(mean, NAN)
    for i, (_, rows) in enumerate(truth):
        values[i, : len(rows)] = rows
    z = ((values - mean) / std)[~np.isnan(values)]
    assert 0.3 < np.sqrt(np.mean(z**2)) < 2


def test_reconstructor_learns_with_keep_and_with_targets():
    X = decays(30)
    fewer = [(times[::2], values[::2]) for times, values in X]
    settings = {**SMALL, "max_epochs": 3}
    with_keep = LatentODEReconstructor(keep=0.5, **settings).fit(X)
    with_targets = LatentODEReconstructor(**settings).fit(fewer, X)
    assert with_targets.history_[-1]["train_loss"] < with_targets.history_[0]["train_loss"]
    assert with_keep.history_[-1]["train_loss"] < with_keep.history_[0]["train_loss"]
    with pytest.raises(
        ValueError, match="y must have 30 series of 2 channels as X has, got 29 of 2"
    ):
        with_targets.fit(fewer, X[:-1])


@pytest.mark.parametrize("ode", latent_morph.FLOWS)
def test_classifier_fits_every_ode(ode):
    X, y = sines(6)
    X = [(times[:4] / 6, values[:4]) for times, values in X]
    model = LatentODEClassifier(**{**TINY, "ode": ode}).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    assert np.isfinite(model.history_[0]["train_loss"])


@pytest.mark.parametrize("ode", ["linear", "morph", "euler", "dopri5"])
def test_classifier_gru_ode_encoder_fits_every_kind_of_ode(ode):
    X, y = sines(6)
    X = [(times[:4] / 6, values[:4]) for times, values in X]
    options = {"encoder": "gru-ode", "encoder_options": {"ode": ode}}
    model = LatentODEClassifier(**TINY, **options).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.parametrize("encoder", ["gru-decay", "attention"])
def test_classifier_with_encoder_of_the_literature_learns_and_loads(encoder, tmp_path):
    X, y = sines(60)
    X = [
        (times, np.sin((1 + (label == "fast")) * times))
        for (times, _), label in zip(X, y, strict=True)
    ]
    model = LatentODEClassifier(encoder=encoder, batch_size=8, max_epochs=10, random_state=0)
    assert model.fit(X, y).score(X, y) > 0.9
    loaded = LatentODEClassifier.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


def test_classifier_accepts_recipe_as_ode():
    X, y = sines(6)

    def recipe(latent_dim, stable):
        return latent_morph.LinearFlow(latent_dim, stable=stable)

    model = LatentODEClassifier(**{**TINY, "ode": recipe, "ode_options": {"stable": True}})
    assert model.fit(X, y).model_.flow.stable


# Predictions


def test_predict_proba_sums_to_one(classifier, point_classifier):
    proba = classifier.predict_proba(sines(9)[0])
    assert proba.shape == (9, 2)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)
    for part, (times, _) in zip(
        point_classifier.predict_proba(rising(9)[0]), rising(9)[0], strict=True
    ):
        assert part.shape == (len(times), 2)
        np.testing.assert_allclose(part.sum(1), 1, atol=1e-6)


def test_estimator_predictions_are_independent_of_batch(
    classifier, point_classifier, reconstructor
):
    X, _ = sines(30, seed=2)
    together = classifier.predict_proba(X)
    alone = np.concatenate([classifier.predict_proba([case]) for case in X[:5]])
    np.testing.assert_allclose(together[:5], alone, atol=1e-5)
    X, _ = rising(30, seed=2)
    together = point_classifier.predict_proba(X)
    for case in range(5):
        alone = point_classifier.predict_proba(X[case : case + 1])
        np.testing.assert_allclose(together[case], alone[0], atol=1e-5)
    X = decays(30, seed=2)
    mean, std = reconstructor.reconstruct(X, [0.5, 1.0], return_std=True)
    mean_alone, std_alone = reconstructor.reconstruct(X[3:4], [0.5, 1.0], return_std=True)
    np.testing.assert_allclose(mean[3:4], mean_alone, atol=1e-5)
    np.testing.assert_allclose(std[3:4], std_alone, atol=1e-5)
    np.testing.assert_allclose(
        reconstructor.transform(X)[3:4], reconstructor.transform(X[3:4]), atol=1e-5
    )


def test_classifier_predictions_are_independent_of_chunks(classifier):
    X, _ = sines(10)
    many = classifier.predict_proba(X * 60)  # more than one chunk
    np.testing.assert_allclose(many, np.tile(classifier.predict_proba(X), (60, 1)), atol=1e-5)


def test_predict_proba_ignores_padding_and_unobserved_values(classifier, point_classifier):
    for model, X in ((classifier, sines(8)[0]), (point_classifier, rising(8)[0])):
        batch = as_series([(t, np.where(np.arange(len(t)) % 5 == 2, NAN, v)) for t, v in X])
        wide = batch._pad_to(batch.n_times + 4)
        noisy = SeriesBatch(
            torch.where(wide.mask, wide.values, 1e6), wide.times, wide.mask, wide.lengths
        )
        plain, perturbed = model.predict_proba(batch), model.predict_proba(noisy)
        for one, other in zip(plain, perturbed, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_point_classifier_predicts_at_unobserved_times(point_classifier):
    X, _ = rising(5, seed=3)
    times = np.array([4.4, -0.5, 1.0, 7.5])
    proba = point_classifier.predict_proba(X, times)
    assert proba.shape == (5, 4, 2) and point_classifier.predict(X, times).shape == (5, 4)
    for case, (t, values) in enumerate(X):
        for k in (0, 2):
            row = np.searchsorted(t, times[k])
            if row == 0:  # a new first row would shift the time origin
                continue
            with_row = (np.insert(t, row, times[k]), np.insert(values, row, NAN))
            np.testing.assert_allclose(
                point_classifier.predict_proba([with_row])[0][row], proba[case, k], atol=1e-5
            )
    own = point_classifier.predict_proba(X[:1], X[0][0])  # at observed times
    np.testing.assert_allclose(own[0].sum(-1), 1, atol=1e-6)
    inside = np.linspace(0.5, 5.5, 21)
    right = point_classifier.predict(X, inside) == np.where(np.cos(inside) > 0, "up", "down")
    assert right.mean() > 0.8


def test_estimator_epoch_seconds_match_small_times(classifier, point_classifier, reconstructor):
    def later(X):
        return [(times + 1.7e9, values) for times, values in X]

    X = sines(8)[0]
    np.testing.assert_allclose(
        classifier.predict_proba(later(X)), classifier.predict_proba(X), atol=1e-4
    )
    X = rising(8)[0]
    for one, other in zip(
        point_classifier.predict_proba(later(X)), point_classifier.predict_proba(X), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-4)
    X = decays(8)
    starts = np.array([[times[0]] for times, _ in X])
    one = reconstructor.reconstruct(later(X), starts + 1.7e9 + [0.5, 1.0])
    np.testing.assert_allclose(one, reconstructor.reconstruct(X, starts + [0.5, 1.0]), atol=1e-4)
    fitted = LatentODEReconstructor(**TINY).fit(later(X))
    plain = LatentODEReconstructor(**TINY).fit(X)
    np.testing.assert_allclose(fitted.transform(later(X)), plain.transform(X), atol=1e-4)


def test_reconstructor_values_with_large_offset():
    X = np.sin(np.random.default_rng(0).uniform(0, 6, (12, 8)))
    one = LatentODEReconstructor(**TINY).fit(X)
    other = LatentODEReconstructor(**TINY).fit(X + 1e7)
    np.testing.assert_allclose(one.predict(X), other.predict(X + 1e7) - 1e7, atol=1e-3)


def test_time_origin_absolute_depends_on_start_time():
    X, y = sines(12)
    later = [(times + 2.0, values) for times, values in X]
    for origin, same in (("case", True), ("absolute", False)):
        model = LatentODEClassifier(**TINY, time_origin=origin).fit(X, y)
        assert np.allclose(model.predict_proba(later), model.predict_proba(X), atol=1e-5) is same
        assert model.reconstruct(X, [1.0, 2.0]).shape == (12, 2, 1)


def test_reconstructor_output_shapes(reconstructor):
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


def test_reconstructor_timedeltas_are_seconds(reconstructor):
    X = decays(3)
    np.testing.assert_array_equal(
        reconstructor.reconstruct(X, pd.to_timedelta([500, 1500], unit="ms")),
        reconstructor.reconstruct(X, [0.5, 1.5]),
    )


def test_latent_trajectory_starts_at_transform_and_decodes_to_reconstruction(reconstructor):
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
    expected = reconstructor.reconstruct(X, n_samples=0)
    actual = reconstructor.scaler_.inverse_values(decoded.double())
    np.testing.assert_allclose(actual, expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"times must have shape \(Q,\) or \(5, Q\)"):
        reconstructor.latent_trajectory(X, np.zeros((4, 2)))


def test_reconstruct_n_samples_is_near_prediction(reconstructor):
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
def test_estimator_accepts_every_input_form(kind, form):
    X, y = forms(), np.arange(12) % 2
    reference = kind(**TINY).fit(X["array"], y)
    model = kind(**TINY).fit(X[form], y)
    np.testing.assert_allclose(model.predict(X[form]), reference.predict(X["array"]), atol=1e-5)
    np.testing.assert_allclose(model.predict(X["array"]), reference.predict(X[form]), atol=1e-5)
    assert (model.n_channels_, model.n_features_in_) == (2, 2)


def test_classifier_fits_unequal_and_predicts_equal_lengths():
    X, y = [np.ones(3), np.zeros(5), np.ones(4)] * 4, [0, 1, 0] * 4
    model = LatentODEClassifier(**TINY).fit(X, y)
    assert model.predict(X[:1]).shape == (1,)
    assert model.predict(np.ones((3, 7))).shape == (3,)
    assert model.predict([[1.0, 2.0], [3.0, 4.0]]).shape == (2,)


def test_classifier_refit_on_series_forgets_columns():
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
def test_classifier_keeps_label_types(labels):
    X = [np.full(4, float(i % 2)) for i in range(12)]
    y = [labels[i % 2] for i in range(12)]
    model = LatentODEClassifier(**{**TINY, "max_epochs": 15, "learning_rate": 0.1}).fit(X, y)
    assert list(model.classes_) == list(labels)
    assert list(model.predict(X)) == y


def test_point_classifier_one_label_per_series():
    X, y = sines(12)
    model = LatentODEPointClassifier(**TINY).fit(X, y)
    assert model.one_label_per_series_
    assert model.predict_proba(X).shape == (12, 2) and model.predict(X).shape == (12,)
    assert model.predict(X, [1.0, 2.0]).shape == (12, 2)
    assert 0 <= model.score(X, y) <= 1


def test_point_classifier_label_forms():
    X = np.random.default_rng(0).random((12, 4))
    y = (X > 0.5).astype(int)
    probas = [
        LatentODEPointClassifier(**TINY).fit(X, labels).predict_proba(X)
        for labels in (y, pd.DataFrame(y), y.tolist(), list(y), torch.from_numpy(y))
    ]
    assert probas[0].shape == (12, 4, 2)
    for proba in probas[1:]:
        np.testing.assert_array_equal(proba, probas[0])


# Weights, groups, splits


def test_sample_weight_and_class_weight_decide_contradicting_labels():
    X, y = [np.zeros(2)] * 20, np.arange(20) % 2
    settings = {**TINY, "max_epochs": 8, "batch_size": 1, "validation_fraction": 0.0}
    # Clipping would remove the weights.
    settings |= {"gradient_clip": None, **without_dropout(LatentODEClassifier)}
    weight = np.where(y == 1, 9.0, 1.0)
    by_case = LatentODEClassifier(**settings).fit(X, y, sample_weight=weight)
    assert by_case.predict_proba(X[:1])[0, 1] > 0.7
    by_class = LatentODEClassifier(class_weight={0: 1.0, 1: 9.0}, **settings).fit(X, y)
    assert by_class.predict_proba(X[:1])[0, 1] > 0.7
    rare = np.arange(20) % 10 == 0
    settings["batch_size"] = 20
    balanced = LatentODEClassifier(class_weight="balanced", **settings).fit(X, rare)
    assert 0.3 < balanced.predict_proba(X[:1])[0, 1] < 0.7


def test_sample_weight_constant_changes_nothing():
    X, y = sines(12)
    plain = LatentODEClassifier(**TINY).fit(X, y).predict_proba(X)
    for constant in (1.0, 1000.0):
        model = LatentODEClassifier(**TINY).fit(X, y, sample_weight=np.full(12, constant))
        np.testing.assert_allclose(model.predict_proba(X), plain, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "match"), [(-np.ones(12), "[Nn]egative"), (np.zeros(12), "zero"), ([1.0], "shape")]
)
def test_sample_weight_rejects_invalid_values(weight, match):
    with pytest.raises(ValueError, match=match):
        LatentODEClassifier(**TINY).fit(*sines(12), sample_weight=weight)


@pytest.mark.parametrize("kind", ALL)
def test_sample_weight_zero_equals_absent_series(kind):
    """Whatever its values are: neither scales, nor splits, nor classes depend on it."""
    X, y = sines(24)
    y[3] = "neither"
    X[3] = (np.array([0.0, 1e3]), np.array([1e6, -1e6]))
    weight, kept = np.ones(24), np.arange(24) != 3
    weight[3] = 0
    model = kind(**{**TINY, "max_epochs": 3, "validation_fraction": 0.25})
    few = model.fit([x for x, t in zip(X, kept, strict=True) if t], y[kept])
    expected, history = few.reconstruct(X), history_without_timings(few)
    weighted = model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(weighted.reconstruct(X), expected)
    assert (
        history_without_timings(weighted) == history and weighted.n_train_ + weighted.n_val_ == 23
    )
    if hasattr(model, "classes_"):
        assert list(weighted.classes_) == ["fast", "slow"]


@pytest.mark.parametrize("params", [{"ode": "linear"}, {"ode": "morph", "encoder": "gru-ode"}])
@pytest.mark.parametrize("kind", ALL)
def test_sample_weight_equals_copies(kind, params):
    """In scales, class balance, loss, split and best epoch, if copies share a group."""
    X, y = sines(24)
    counts = np.random.default_rng(0).integers(0, 4, 24)
    copies = np.repeat(np.arange(24), counts)
    settings = {**TINY, **params, **EXACT, "max_epochs": 6, "validation_fraction": 0.25}
    settings |= without_dropout(kind, params.get("encoder", "morph"))
    if kind is not LatentODEReconstructor:
        settings["class_weight"] = "balanced"
    weighted = kind(**settings).fit(X, y, sample_weight=counts, groups=np.arange(24))
    repeated = kind(**settings).fit([X[i] for i in copies], y[copies], groups=copies)
    np.testing.assert_allclose(weighted.reconstruct(X), repeated.reconstruct(X), rtol=1e-7)
    assert weighted.best_epoch_ == repeated.best_epoch_
    assert weighted.n_val_ < repeated.n_val_
    for one, other in zip(
        history_without_timings(weighted), history_without_timings(repeated), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-9)


def history_without_timings(model):
    """The history without the columns that depend on the machine."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in model.history_]


def test_sample_weight_in_validation_and_class_balance():
    """Three copies of a series are equivalent to a weight of three."""
    X = as_series(np.stack([np.ones(4), -np.ones(4)]))
    labels = torch.tensor([0, 1])
    weighted = Examples(X, labels=labels, weight=torch.tensor([3.0, 1.0]))
    copied = Examples(X[[0, 0, 0, 1]], labels=labels[[0, 0, 0, 1]])
    model = LatentODEClassifier(**TINY, class_weight="balanced").fit(X, labels)
    for monitor in MONITORS:
        scores = [
            evaluate_classes(model.model_, part, monitor, None, 8) for part in (weighted, copied)
        ]
        np.testing.assert_allclose(*scores, rtol=1e-12)
    codes, weight = labels.numpy(), np.array([3.0, 1.0])
    balanced = model._class_factors(codes.repeat([3, 1]), None)
    torch.testing.assert_close(model._class_factors(codes, weight), balanced)
    reconstructor = LatentODEReconstructor(**TINY).fit(X)
    with torch.no_grad():
        scores = [
            reconstructor._validation_score(reconstructor.model_, part, None)
            for part in (weighted, copied)
        ]
    np.testing.assert_allclose(*scores, rtol=1e-6)


def test_split_cases_keeps_groups_together():
    groups = np.repeat(np.arange(6), 4)
    train, val = split_cases(24, 0.3, 0, None, groups)
    assert len(val) and not set(groups[train]) & set(groups[val])
    assert sorted([*train, *val]) == list(range(24))
    model = LatentODEClassifier(**{**TINY, "validation_fraction": 0.3})
    model.fit(*sines(24), groups=groups)
    assert (model.n_train_ + model.n_val_, model.n_val_ % 4) == (24, 0)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(*sines(24), groups=groups[:-1])


@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.5, 0.9, 0.99])
def test_split_cases_stratifies_and_keeps_rare_classes(fraction):
    strata = np.array([0] * 60 + [1] * 30 + [2] * 9 + [3])
    train, val = split_cases(100, fraction, 0, strata, None)
    assert sorted([*train, *val]) == list(range(100))
    assert set(strata[train]) == {0, 1, 2, 3} and 3 not in strata[val]
    assert abs((strata[val] == 1).mean() - 0.3) < 0.1
    train, val = split_cases(100, fraction, 0, None, None)
    assert len(train) >= 1 and len(val) == min(round(100 * fraction), 99)


def test_split_cases_without_validation_for_few_cases():
    assert [len(part) for part in split_cases(9, 0.5, 0, None, None)] == [9, 0]
    assert [len(part) for part in split_cases(9, 0.5, 0, None, np.arange(9))] == [9, 0]
    assert [len(part) for part in split_cases(50, 0.5, 0, None, np.zeros(50))] == [50, 0]
    assert [len(part) for part in split_cases(50, 0.0, 0, None, None)] == [50, 0]


# Random state and precision


@pytest.mark.parametrize("kind", ALL)
def test_estimator_dtype_float64_throughout(kind):
    X, y = sines(12)
    single, double = (
        kind(**TINY | without_dropout(kind), dtype=dtype).fit(X, y)
        for dtype in ("float32", "float64")
    )
    assert {p.dtype for p in double.model_.parameters()} == {torch.float64}
    means = [
        double.set_params(dtype=dtype)._posterior_means(X) for dtype in ("float64", "float32")
    ]  # parameters set after fit do not concern the fitted model
    assert means[0].dtype == np.float64 and single._posterior_means(X).dtype == np.float32
    np.testing.assert_array_equal(*means)
    if hasattr(double, "predict_proba"):
        assert double.predict_proba(X).dtype == np.float64
    # The same initial weights and the same samples, but different rounding.
    np.testing.assert_allclose(
        double.sample(3, [0.0, 1.0], random_state=0),
        single.sample(3, [0.0, 1.0], random_state=0),
        atol=0.05,
    )


@pytest.mark.parametrize("kind", ALL)
def test_sample_z0_false_is_independent_of_series_order(kind):
    X, y = sines(12)
    settings = TINY | EXACT | without_dropout(kind)
    settings |= {"validation_fraction": 0.0, "max_epochs": 4}
    one = kind(**settings).fit(X, y).reconstruct(X)
    np.testing.assert_allclose(kind(**settings).fit(X[::-1], y[::-1]).reconstruct(X), one)
    sampled = kind(**settings | {"sample_z0": True})
    assert abs(sampled.fit(X[::-1], y[::-1]).reconstruct(X) - one)[:, 0].max() > 1e-4


@pytest.mark.parametrize("kind", ALL)
def test_estimator_keeps_global_random_states(kind):
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
def test_estimator_random_state_is_reproducible(kind):
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


def test_classifier_fit_resumes_after_interrupt(tmp_path):
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


def test_verbose_logs_one_line_per_epoch(caplog):
    with caplog.at_level("INFO", logger="latent_morph"):
        LatentODEClassifier(**{**TINY, "max_epochs": 2}, verbose=1).fit(*sines(12))
    assert [r.message.split("  ")[0] for r in caplog.records] == ["epoch 1/2", "epoch 2/2"]


# Errors


def test_estimator_rejects_other_channels(classifier, reconstructor):
    with pytest.raises(ValueError, match="X must have 1 channels as in fit, got 2"):
        classifier.predict(decays(2))
    with pytest.raises(ValueError, match="X must have 2 channels as in fit, got 1"):
        reconstructor.score(sines(2)[0])


@pytest.mark.parametrize("X", [[], np.ones((0, 4, 1)), as_series(np.ones((2, 4)))[[]]])
def test_classifier_rejects_empty_input(classifier, X):
    for call in (classifier.predict, lambda X: LatentODEClassifier(**TINY).fit(X, [])):
        with pytest.raises(ValueError, match="at least one"):
            call(X)


@pytest.mark.parametrize(
    ("y", "match"),
    [
        ([0, 1], r"inconsistent numbers of samples: \[3, 2\]"),
        (None, "requires y to be passed"),
        ([0.5, 1.2, 3.3], "Unknown label type"),
        ([[0, 1], [1, 0], [1, 1]], "y should be a 1d array"),
    ],
)
def test_classifier_rejects_invalid_labels(y, match):
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
def test_point_classifier_rejects_invalid_labels(y, match):
    with pytest.raises(ValueError, match=match):
        LatentODEPointClassifier(**TINY).fit(np.ones((3, 4)), y)


def test_point_classifier_rejects_unsorted_times():
    """Rows are sorted by time, but labels are not: they would belong to other rows."""
    X, y = [([1.0, 0.0], [1.0, 2.0])] * 12, [[0, 1]] * 12
    with pytest.raises(ValueError, match="times of case 0 must be sorted"):
        LatentODEPointClassifier(**TINY).fit(X, y)
    frames = [pd.DataFrame({"u": [1.0, 2.0]}, index=[1.0, 0.0])] * 12
    with pytest.raises(ValueError, match="times of case 0 must be sorted"):
        LatentODEPointClassifier(**TINY).fit(frames, y)
    model = LatentODEPointClassifier(**TINY).fit([([0.0, 1.0], [1.0, 2.0])] * 12, y)
    for call in (model.predict, model.predict_proba, lambda X: model.score(X, y)):
        with pytest.raises(ValueError, match="times of case 0 must be sorted"):
            call(X)


def test_classifier_rejects_unknown_ode_and_encoder():
    message = "ode must be one of morph,.*did you mean 'dopri"
    with pytest.raises(ValueError, match=message):
        LatentODEClassifier(**{**TINY, "ode": "dopri"}).fit(*sines(4))
    options = {"encoder": "gru-ode", "encoder_options": {"ode": "dopri"}}
    with pytest.raises(ValueError, match=message.replace("ode must", "ode of the encoder must")):
        LatentODEClassifier(**TINY, **options).fit(*sines(4))
    with pytest.raises(ValueError, match="encoder must be one of morph, gru-ode.*, got 'gru'"):
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
        (pd.to_datetime(["2024-01-01"]), "times must be numbers in the units of the data, got"),
    ],
)
def test_estimator_rejects_invalid_times(point_classifier, reconstructor, times, match):
    with pytest.raises(ValueError, match=match):
        reconstructor.reconstruct(decays(2), times)
    with pytest.raises(ValueError, match=match):
        point_classifier.predict(rising(2)[0], times)
    with pytest.raises(ValueError, match="times must"):
        reconstructor.sample(1, times)
    with pytest.raises(ValueError, match="ahead must"):
        reconstructor.forecast(decays(2), times)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("method", ["predict", "reconstruct", "save", "score", "sample"])
def test_estimator_not_fitted_error(kind, method, tmp_path):
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
def test_classifier_rejects_invalid_parameters(wrong):
    with pytest.raises(ValueError, match=f"The '{next(iter(wrong))}' parameter"):
        LatentODEClassifier(**{**TINY, **wrong}).fit(*sines(4))


def test_reconstructor_interrupted_fit_is_not_fitted():
    def stop(history, settings):
        raise KeyboardInterrupt

    X = np.sin(np.arange(12.0) * np.ones((12, 1)))
    model = LatentODEReconstructor(max_epochs=1, random_state=0).fit(X)
    with pytest.raises(KeyboardInterrupt):
        model.set_params(callbacks=[stop]).fit(X)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_reconstructor_accepts_every_form_of_target():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 3, (12, 8)))
    fewer = [(t[::2], np.exp(-t[::2])) for t in times]
    targets = [(t, np.exp(-t)) for t in times]
    frames = [pd.DataFrame({"x": values}, index=t) for t, values in targets]
    losses = [
        LatentODEReconstructor(max_epochs=1, random_state=0)
        .fit(fewer, y)
        .history_[0]["train_loss"]
        for y in (targets, frames, as_series(targets), None)
    ]
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-4)
    assert losses[3] != pytest.approx(losses[0], rel=1e-4)


def test_reconstructor_rejects_unusable_device():
    with pytest.raises(ValueError, match="device must be .*, got 'warp'"):
        LatentODEReconstructor(device="warp").fit(np.ones((3, 4)))


def test_reconstructor_resume_needs_random_state(tmp_path):
    model = LatentODEReconstructor(resume=True, checkpoint=tmp_path / "c.pt")
    with pytest.raises(ValueError, match="random_state must be an integer to resume, got None"):
        model.fit(np.ones((3, 4)))


def test_classifier_prediction_memory_is_bounded():
    """The limit is 1 GB for 100,000 series of 200 points; a fifth of them may use a fifth."""
    X, y = sines(12)
    model = LatentODEClassifier(**TINY, encoder_options={"pool": 8, "layers": 1}).fit(X, y)
    many = np.random.default_rng(0).normal(size=(20_000, 200, 1))
    many[many < -1.5] = NAN
    peak = peak_above(lambda: model.predict(many))
    assert peak is None or peak < 200
