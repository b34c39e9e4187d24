"""FilterBank, FilterBankClassifier and SeriesStatistics as estimators: inputs, files, heads."""

import json
import pickle
import sys
from copy import deepcopy

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, StackingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, RidgeClassifier, RidgeClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from test_contract import forms
from test_estimators import sines
from test_export import LOADERS, long_series, onnx_metadata, shifted
from test_persistence import edit_config

from benchmarks.memory import peak_above
from latent_morph import (
    FilterBank,
    FilterBankClassifier,
    LatentODEClassifier,
    SeriesStatistics,
    as_series,
)
from latent_morph.filters import BLOCKS
from latent_morph.io.export import series_inputs

NAN = float("nan")
MAKE = {
    "FilterBank": lambda: FilterBank(random_state=0),
    "FilterBankClassifier": lambda: FilterBankClassifier(random_state=0),
    "SeriesStatistics": SeriesStatistics,
    "SeriesStatistics-nan": lambda: SeriesStatistics(fill="nan"),
}
HEADS = {
    "trees": HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2, random_state=0),
    "logistic": LogisticRegression(C=0.01),
    "ridge": RidgeClassifier(),
}


def answer(model, X):
    """What an estimator says of series, as numbers."""
    return model.predict_proba(X) if hasattr(model, "predict_proba") else model.transform(X)


def waves(n_cases, seed=0, n_channels=2):
    """Irregular waves of two channels and two frequencies with missing values, and labels."""
    rng = np.random.default_rng(seed)
    X = []
    for i in range(n_cases):
        times = np.sort(rng.uniform(0, 6, rng.integers(8, 25)))
        phase = rng.uniform(0, 6, n_channels)
        values = np.sin((1 + i % 2) * times[:, None] + phase)
        values[rng.random(values.shape) < 0.2] = NAN
        X.append((times, values))
    return X, np.array(["slow", "fast"])[np.arange(n_cases) % 2]


@pytest.fixture(scope="module", params=MAKE)
def fitted(request):
    return MAKE[request.param]().fit(*waves(24))


@pytest.fixture(scope="module")
def classifier():
    return FilterBankClassifier(random_state=0).fit(*sines(60))


# Accuracy and attributes


def test_filter_bank_classifier_learns_irregular_series(classifier):
    X, y = sines(200, seed=1)
    assert classifier.score(X, y) > 0.9
    proba = classifier.predict_proba(X)
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-9)
    assert (classifier.classes_[proba.argmax(1)] == classifier.predict(X)).all()
    # Its estimate of the score is about right, and probabilities are honest.
    assert abs(classifier.loo_score_ - classifier.score(X, y)) < 0.1
    truth = proba[np.arange(200), (y == "slow").astype(int)]
    assert -np.log(truth).mean() < 0.4
    assert set(classifier.block_weights_) == set(BLOCKS)
    assert classifier.alpha_ > 0


def test_filter_bank_classifier_learns_several_classes():
    rng = np.random.default_rng(0)

    def make(n_cases):
        y = np.arange(n_cases) % 4
        clocks = [np.sort(rng.uniform(0, 6, rng.integers(20, 40))) for _ in y]
        return [
            (t, np.sin((1 + k) * t + rng.uniform(0, 6))) for t, k in zip(clocks, y, strict=True)
        ], y

    model = FilterBankClassifier(random_state=0).fit(*make(120))
    assert model.score(*make(120)) > 0.9


def test_filter_bank_classifier_reads_the_mask():
    """Classes that differ in how often was measured, and in nothing else."""
    rng = np.random.default_rng(0)

    def make(n_cases):
        y = np.arange(n_cases) % 2
        sizes = [rng.integers(8, 12) if k else rng.integers(16, 24) for k in y]
        return [(np.sort(rng.uniform(0, 6, n)), np.zeros(n)) for n in sizes], y

    model = FilterBankClassifier(random_state=0).fit(*make(60))
    assert model.score(*make(100)) > 0.95
    assert model.block_weights_["observations"] > 0


def test_filter_estimators_give_the_same_result_again(fitted):
    X, y = waves(24)
    other = MAKE[
        "SeriesStatistics-nan" if getattr(fitted, "fill", "") == "nan" else type(fitted).__name__
    ]()
    np.testing.assert_array_equal(answer(other.fit(X, y), X), answer(fitted, X))
    np.testing.assert_array_equal(answer(other.fit(X, y), X), answer(fitted, X))  # fitted twice


# Inputs


@pytest.mark.parametrize("name", MAKE)
def test_filter_estimators_accept_every_input_form(name):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((16, 7, 2))
    X[rng.random(X.shape) < 0.2] = NAN
    y = np.arange(16) % 2
    expected = answer(MAKE[name]().fit(X, y), X)
    for form, series in forms(X).items():
        model = MAKE[name]().fit(series, y)
        np.testing.assert_allclose(answer(model, series), expected, atol=1e-6, err_msg=form)


@pytest.mark.parametrize("name", MAKE)
def test_filter_estimators_read_a_table_as_univariate_series(name):
    table = pd.DataFrame(np.random.default_rng(0).standard_normal((16, 7)))
    table = table.rename(columns=str)
    y = np.arange(16) % 2
    model = MAKE[name]().fit(table, y)
    expected = answer(
        MAKE[name]().fit(table.to_numpy()[..., None], y), table.to_numpy()[..., None]
    )
    np.testing.assert_allclose(answer(model, table), expected, atol=1e-6)
    assert list(model.feature_names_in_) == list(table.columns) and model.n_features_in_ == 7


def test_filter_estimators_ignore_order_of_cases(fitted):
    X, _ = waves(10, seed=1)
    np.testing.assert_allclose(answer(fitted, X[::-1])[::-1], answer(fitted, X), atol=1e-5)


def test_filter_estimators_handle_channels_seen_only_once(fitted):
    """Never in training, or never in predictions."""
    X, y = waves(24)
    blank = [(t, np.c_[v[:, 0], np.full(len(t), NAN)]) for t, v in X]
    for model, series in ((fitted, blank), (deepcopy(fitted).fit(blank, y), X)):
        result = answer(model, series)
        if getattr(model, "fill", "") == "nan":
            assert np.isfinite(result[:, ::2]).all()
        else:
            assert np.isfinite(result).all()


UNUSUAL = {
    "no observation": (np.array([1.0, 2.0]), np.full((2, 2), NAN)),
    "one row": (np.array([1.0]), np.array([[1.0, 2.0]])),
    "one time": (np.array([1.0, 1.0]), np.array([[1.0, NAN], [2.0, 3.0]])),
    "one absurd time": (np.array([0.0, 1e12]), np.ones((2, 2))),
    "one absurd value": (np.array([0.0, 1.0]), np.array([[0.0, 1e15], [1.0, NAN]])),
}


@pytest.mark.parametrize("case", UNUSUAL)
@pytest.mark.parametrize("name", ["FilterBank", "FilterBankClassifier", "SeriesStatistics"])
def test_filter_estimators_handle_unusual_series(name, case):
    X, y = waves(24)
    model = MAKE[name]().fit(X, y)
    before = answer(model, X)
    result = answer(model, [*X, UNUSUAL[case]])
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result[:-1], before, atol=1e-5)
    # In training, among others and alone.
    assert np.isfinite(answer(MAKE[name]().fit([*X, UNUSUAL[case]], [*y, "slow"]), X)).all()
    alone = [UNUSUAL[case]] * 4
    assert np.isfinite(answer(MAKE[name]().fit(alone, ["a", "b"] * 2), alone)).all()


def test_filter_bank_memory_of_an_absurd_time_is_bounded():
    """The grid of the kernels would have 1e12 points."""
    X, _ = waves(24)
    model = FilterBank(random_state=0).fit(X)
    peak = peak_above(lambda: model.transform([UNUSUAL["one absurd time"]]))
    assert (peak or 0.0) < 200  # megabytes


# Weights


def test_filter_bank_classifier_weight_zero_is_absence():
    X, y = waves(30)
    long = (np.linspace(0, 600, 300), 1e6 * np.ones((300, 2)))  # would change every scale
    weight = np.r_[np.linspace(1, 2, 30), 0.0, 0.0]
    labels = np.r_[y, ["third", "slow"]]
    left = FilterBankClassifier(random_state=0).fit([*X, long, long], labels, sample_weight=weight)
    right = FilterBankClassifier(random_state=0).fit(X, y, sample_weight=weight[:30])
    assert list(left.classes_) == list(right.classes_) == ["fast", "slow"]
    np.testing.assert_allclose(left.predict_proba(X), right.predict_proba(X), atol=1e-6)
    with pytest.raises(ValueError, match="(?i)sample.weight"):
        right.fit(X, y, sample_weight=np.zeros(30))


def test_filter_bank_classifier_weights_have_an_effect():
    X, y = waves(40)
    wrong = np.r_[y, y[::-1][:20]]
    X = [*X, *X[:20]]
    weight = np.r_[np.ones(40), np.full(20, 1e-3)]
    new, truth = waves(60, seed=1)
    scores = {}
    for name, given in (("weighted", weight), ("even", None)):
        model = FilterBankClassifier(random_state=0).fit(X, wrong, sample_weight=given)
        proba = model.predict_proba(new)
        scores[name] = np.log(proba[np.arange(60), (truth == "slow").astype(int)]).mean()
    assert scores["weighted"] > scores["even"] + 0.1
    tiny = FilterBankClassifier(random_state=0).fit(X, wrong, sample_weight=1e-40 * weight)
    again = FilterBankClassifier(random_state=0).fit(X, wrong, sample_weight=weight)
    np.testing.assert_allclose(tiny.predict_proba(X), again.predict_proba(X), atol=1e-5)


@pytest.mark.parametrize("head", [None, LogisticRegression(C=1e-4)], ids=["ridge", "logistic"])
def test_filter_bank_classifier_class_weight(head):
    """Few of one class, and both hard to tell apart."""
    rng = np.random.default_rng(0)
    y = np.r_[np.zeros(90, int), np.ones(10, int)]
    X, new = (rng.standard_normal((100, 12)) + 0.4 * y[:, None] for _ in range(2))
    shares = {}
    for given in (None, "balanced", {0: 5 / 9, 1: 5.0}, {0: 1.0, 1: 0.0}):
        model = FilterBankClassifier(head=head, class_weight=given, random_state=0).fit(X, y)
        proba = model.predict_proba(new)
        assert np.isfinite(proba).all()
        shares[str(given)] = proba[:, 1].mean()
    assert shares["balanced"] > 1.5 * shares["None"]
    assert shares["balanced"] == pytest.approx(shares[str({0: 5 / 9, 1: 5.0})], abs=1e-5)
    assert shares["{0: 1.0, 1: 0.0}"] < 0.02
    if head is None:
        model = FilterBankClassifier(class_weight={0: 0.0, 1: 0.0})
        with pytest.raises(ValueError, match="class_weight must be positive for some class"):
            model.fit(X, y)


# Heads


@pytest.mark.parametrize("name", HEADS)
def test_filter_bank_classifier_with_another_head(name):
    X, y = waves(60)
    model = FilterBankClassifier(head=HEADS[name], random_state=0).fit(X, y)
    new, truth = waves(60, seed=1)
    assert model.score(new, truth) > 0.8
    assert list(model.classes_) == ["fast", "slow"]
    assert hasattr(model, "predict_proba") == (name != "ridge")
    assert not hasattr(model, "alpha_") and not hasattr(model, "loo_score_")
    # The same as the head after a transformer.
    chosen = {"time_origin": model.scaler_.origin, "mode_scale": model.mode_scale_}
    bank = FilterBank(random_state=0, **chosen).fit(X)
    features = bank.transform(new)
    np.testing.assert_array_equal(
        model.classes_[model.head_.predict(features)], model.predict(new)
    )
    if name != "ridge":
        np.testing.assert_allclose(model.predict_proba(new), model.head_.predict_proba(features))
    assert not hasattr(HEADS[name], "classes_")  # the parameter itself is not fitted
    # Fitted again without a head, nothing of the old one is left.
    model.set_params(head=None).fit(X, y)
    assert hasattr(model, "alpha_") and not hasattr(model, "head_")


@pytest.mark.parametrize("name", HEADS)
def test_filter_bank_classifier_with_head_pickles_but_does_not_save(name, tmp_path):
    X, y = waves(30)
    model = FilterBankClassifier(head=HEADS[name], random_state=0).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model.joblib"),
        deepcopy(model),
    ):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="head must be None to be saved, got a fitted"):
        model.save(tmp_path / "m")
    with pytest.raises(ValueError, match="head must be None to be exported, got a fitted"):
        model.export(tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.joblib"]


def test_filter_bank_classifier_head_gets_weights():
    X, y = waves(30)
    weight = np.linspace(0.1, 3, 30)
    model = FilterBankClassifier(head=LogisticRegression(C=0.01), random_state=0)
    left, right = deepcopy(model).fit(X, y), model.fit(X, y, sample_weight=weight)
    assert not np.allclose(left.predict_proba(X), right.predict_proba(X), atol=1e-3)
    neighbours = FilterBankClassifier(head=KNeighborsClassifier(3), random_state=0)
    assert neighbours.fit(X, y).score(X, y) > 0.7
    with pytest.raises(TypeError, match="sample_weight"):
        neighbours.fit(X, y, sample_weight=weight)


# Files


def test_filter_estimators_save_and_load(fitted, tmp_path):
    X, y = waves(24)
    copy = type(fitted).load(fitted.save(tmp_path / "m"))
    np.testing.assert_array_equal(answer(copy, X), answer(fitted, X))
    assert copy.get_params() == fitted.get_params()
    learned = {name for name in vars(fitted) if name.endswith("_")}
    assert learned == {name for name in vars(copy) if name.endswith("_")}
    for name in learned - {"model_", "scaler_", "classes_"}:
        assert getattr(copy, name) == getattr(fitted, name), name
    np.testing.assert_array_equal(answer(copy.fit(X, y), X), answer(fitted, X))
    other = next(k for k in (FilterBank, SeriesStatistics) if k is not type(fitted))
    with pytest.raises(ValueError, match=f"must hold a {other.__name__}, got a"):
        other.load(tmp_path / "m")


def test_filter_estimators_pickle_joblib_and_skops(fitted, tmp_path):
    skops = pytest.importorskip("skops.io")
    X, _ = waves(24)
    joblib.dump(fitted, tmp_path / "m")
    content = skops.dumps(fitted)
    unknown = skops.get_untrusted_types(data=content)
    assert unknown == [f"{type(fitted).__module__}.{type(fitted).__name__}"]
    for copy in (
        pickle.loads(pickle.dumps(fitted)),
        deepcopy(fitted),
        joblib.load(tmp_path / "m"),
        skops.loads(content, trusted=unknown),
    ):
        np.testing.assert_array_equal(answer(copy, X), answer(fitted, X))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_lags": 10**9},
        {"n_lags": -1},
        {"n_lags": "x"},
        {"n_channels": 10**9},
        {"n_channels": 3},
        {"classes": ["one"]},
        {"scaler": {}},
        {"params": {"max_memory": -1.0}},
        {"params": {"head": "SVC"}},
    ],
    ids=str,
)
def test_filter_bank_classifier_file_rejects_forged_config(classifier, tmp_path, changes):
    path = edit_config(classifier.save(tmp_path / "model"), **changes)
    messages = []

    def attempt():
        with pytest.raises(ValueError, match="must hold a complete model, got") as problem:
            FilterBankClassifier.load(path)
        messages.append(problem.value)

    assert (peak_above(attempt) or 0.0) < 50 and messages  # megabytes


def test_filter_estimators_keep_class_weight_and_labels_in_files(tmp_path):
    X = waves(24)[0]
    y = np.array([3, 7])[np.arange(24) % 2]
    model = FilterBankClassifier(class_weight={3: 1.0, 7: 2.0}, random_state=0).fit(X, y)
    copy = FilterBankClassifier.load(model.save(tmp_path / "m"))
    assert copy.class_weight == {3: 1.0, 7: 2.0} and copy.classes_.dtype == model.classes_.dtype
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


# Export


def assert_close_features(actual, expected, *, atol=2e-5):
    """Equal to rounding, except shares in which rounding moves an output across a bias."""
    different = ~np.isclose(actual, expected, rtol=1e-6, atol=atol, equal_nan=True)
    assert different.mean() < 1e-3 and np.abs(actual - expected)[different].max(initial=0) < 0.1


EXPORTED = [
    ("onnx", "FilterBankClassifier"),
    ("torch", "FilterBank"),
    ("onnx", "SeriesStatistics-nan"),
    ("torch", "SeriesStatistics"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("format", "name"), EXPORTED)
def test_export_of_filter_estimators(format, name, tmp_path):
    """For other numbers of series and of times than were traced, and padding."""
    X, y = waves(24)
    X = shifted(X, 1.7e9)
    model = MAKE[name]().fit(X, y)
    path = model.export(tmp_path / f"m.{'pt2' if format == 'torch' else format}", format)
    program = LOADERS[format](path)
    series = [(t, v) for t, v in shifted([long_series(400, 2), long_series(1, 2)], 1.7e9)]
    unusual = shifted([UNUSUAL[case] for case in UNUSUAL if case != "one absurd value"], 1.7e9)
    for data in (X, X[:1], series, series[1:], unusual):
        (actual,) = program(series_inputs(data))
        assert actual.shape == answer(model, data).shape
        assert_close_features(actual, answer(model, data))
    inputs = series_inputs(X)  # values outside the mask, and more padding
    extra = {
        "values": np.pad(
            np.where(inputs["mask"], inputs["values"], 1e9), [(0, 0), (0, 9), (0, 0)]
        ),
        "times": np.pad(inputs["times"], [(0, 0), (0, 9)], constant_values=NAN),
        "mask": np.pad(inputs["mask"], [(0, 0), (0, 9), (0, 0)]),
    }
    assert_close_features(program(extra)[0], answer(model, X))
    if format == "onnx":
        facts = onnx_metadata(path)
        if name == "FilterBankClassifier":
            assert facts["classes"] == ["fast", "slow"]
            assert facts["outputs"] == {"probabilities": ["N", 2]}
        else:
            assert facts["outputs"] == {"features": ["N", 24]}
        assert json.dumps(facts)


@pytest.mark.slow
def test_export_of_a_bank_on_one_clock(tmp_path):
    """Of series within the frame of the training series and beyond it."""
    X, y = waves(24)
    options = {"time_origin": "absolute", "mode_scale": "normal"}
    model = FilterBankClassifier(random_state=0, **options).fit(X, y)
    program = LOADERS["onnx"](model.export(tmp_path / "m.onnx"))
    for data in (X, shifted(X[:2], -3.0), shifted(X[:3], 5.0)):
        assert_close_features(program(series_inputs(data))[0], answer(model, data))


def test_program_modules_of_filter_estimators_match(fitted):
    X, _ = waves(6, seed=3)
    for data in (X, X[:1], [UNUSUAL["no observation"]], [UNUSUAL["one row"], *X]):
        with torch.no_grad():
            module = fitted._program().module
            actual = module(*map(torch.from_numpy, series_inputs(data).values())).numpy()
        assert_close_features(actual, answer(fitted, data))


def test_export_of_filter_estimators_without_onnx_says_what_to_install(
    classifier, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"latent_morph\[export\]"):
        classifier.export(tmp_path / "m.onnx")


# Errors


@pytest.mark.parametrize("name", MAKE)
def test_filter_estimators_reject_use_before_fit(name, tmp_path):
    model = MAKE[name]()
    calls = [lambda: answer(model, np.ones((2, 3))), lambda: model.save(tmp_path / "m")]
    calls += [lambda: model.export(tmp_path / "m.onnx")]
    if hasattr(model, "transform"):
        calls.append(model.get_feature_names_out)
    for call in calls:
        with pytest.raises(NotFittedError):
            call()


def test_filter_estimators_reject_other_numbers_of_channels(fitted):
    with pytest.raises(ValueError, match="X must have 2 channels as in fit, got 3"):
        answer(fitted, np.ones((2, 4, 3)))
    with pytest.raises(ValueError, match="X must have at least one series, got none"):
        answer(fitted, [])


def test_filter_bank_classifier_rejects_invalid_labels():
    X, y = waves(12)
    model = FilterBankClassifier()
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(X, y[:-1])
    with pytest.raises(ValueError, match="requires y to be passed"):
        model.fit(X, None)
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(X, np.linspace(0, 1, 12))
    with pytest.raises(ValueError, match="device must be .*, got 'abacus'"):
        model.set_params(device="abacus").fit(X, y)
    assert not hasattr(model, "model_")


# scikit-learn's tools on lists of (times, values)


def test_cross_val_score_of_filter_estimators():
    X, y = waves(60)
    models = {
        "classifier": FilterBankClassifier(random_state=0),
        "pipeline": make_pipeline(FilterBank(random_state=0), RidgeClassifierCV()),
    }
    for name, model in models.items():
        scores = cross_val_score(model, X, y, cv=3)
        assert scores.mean() > 0.85, name
        # A batch keeps its padding when it is split, which changes nothing.
        np.testing.assert_allclose(cross_val_score(model, as_series(X), y, cv=3), scores)


def test_cross_val_score_of_statistics_and_trees():
    """Levels and variances, which statistics see."""
    X, _ = waves(60)
    y = np.arange(60) % 2
    X = [(t, (1 + k) * v + 0.5 * k) for (t, v), k in zip(X, y, strict=True)]
    for fill in ("mean", "nan"):
        trees = HistGradientBoostingClassifier(max_iter=20, min_samples_leaf=3, random_state=0)
        model = make_pipeline(SeriesStatistics(fill=fill), trees)
        assert cross_val_score(model, X, y, cv=3).mean() > 0.85


def test_grid_search_over_heads():
    X, y = waves(40)
    search = GridSearchCV(
        FilterBankClassifier(random_state=0),
        {"head": [None, LogisticRegression(C=0.01), LogisticRegression(C=1e-9)]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert search.best_index_ in (0, 1) and search.score(X, y) > 0.9
    inner = GridSearchCV(
        FilterBankClassifier(head=LogisticRegression(), random_state=0),
        {"head__C": [0.01, 0.1]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert inner.best_estimator_.head.C in (0.01, 0.1)


def test_stacking_of_filter_bank_and_statistics_with_trees():
    X, y = waves(40)
    trees = HistGradientBoostingClassifier(max_iter=5, min_samples_leaf=2, random_state=0)
    model = StackingClassifier(
        [
            ("bank", FilterBankClassifier(random_state=0)),
            ("trees", make_pipeline(SeriesStatistics(), trees)),
        ],
        cv=2,
    ).fit(X, y)
    new, truth = waves(40, seed=1)
    assert model.score(new, truth) > 0.8
    proba = cross_val_predict(model, X, y, cv=2, method="predict_proba")
    np.testing.assert_allclose(proba.sum(1), 1)


@pytest.mark.parametrize("name", ["FilterBank", "SeriesStatistics"])
def test_filter_transformers_name_their_features(name):
    X, _ = waves(10)
    model = MAKE[name]().fit(X)
    names = model.get_feature_names_out()
    assert len(set(names)) == len(names) == model.transform(X).shape[1]
    frame = model.set_output(transform="pandas").transform(X)
    assert list(frame.columns) == list(names)


def test_filter_bank_classifier_and_latent_ode_take_the_same_inputs(classifier):
    X, y = sines(12)
    latent = LatentODEClassifier(ode="linear", max_epochs=1, hidden_dim=4, random_state=0).fit(
        X, y
    )
    assert latent.predict_proba(X).shape == classifier.predict_proba(X).shape
    assert list(latent.classes_) == list(classifier.classes_)


def test_filter_classifier_chooses_the_origin_of_time():
    """By what tells the classes apart: when a bump comes on a common clock, or its width."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2

    def bump(t, label, by_time):
        centre = 2.0 + 2.0 * label if by_time else 3.0
        width = 0.5 if by_time else 0.3 + 0.5 * label
        return np.exp(-(((t - centre) / width) ** 2))

    origins = []
    for by_time in (True, False):
        X = []
        for label in labels:
            # Each series is a piece around the bump, so that its own ends do not tell the time.
            t = np.sort(rng.uniform(0, 6, 40))
            centre = 2.0 + 2.0 * label if by_time else 3.0
            t = t[np.abs(t - centre) < 1.9]
            # Without a common clock the pieces are anywhere.
            shift = 0.0 if by_time else rng.uniform(0, 50)
            X.append((t + shift, bump(t, label, by_time)))
        model = FilterBankClassifier(random_state=0).fit(X, labels)
        origins.append(model.scaler_.origin)
        assert model.loo_score_ > 0.9
        for origin in ("case", "absolute"):
            fixed = FilterBankClassifier(random_state=0, time_origin=origin).fit(X, labels)
            assert fixed.scaler_.origin == origin
            if origin == model.scaler_.origin:
                np.testing.assert_array_equal(fixed.predict_proba(X), model.predict_proba(X))
    assert origins == ["absolute", "case"]


def test_filter_classifier_chooses_what_modes_read():
    """Normal scores, where a few extremes hide what the levels between them say."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    X = []
    for label in labels:
        t = np.linspace(0, 6, 60)
        x = np.sin((1 + label) * t + rng.uniform(0, 6)) + 0.1 * rng.standard_normal(60)
        X.append((t, np.sign(x) * np.abs(x) ** 12 * 1e3))
    model = FilterBankClassifier(random_state=0).fit(X, labels)
    fixed = {
        scale: FilterBankClassifier(random_state=0, mode_scale=scale).fit(X, labels)
        for scale in ("robust", "normal")
    }
    same = fixed[model.mode_scale_]
    np.testing.assert_array_equal(model.predict_proba(X), same.predict_proba(X))
    features = [fixed[scale].model_.bank.ranked for scale in ("robust", "normal")]
    assert features == [False, True]
    assert model.loo_score_ >= 0.9
