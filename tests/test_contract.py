"""scikit-learn's own contract, and its tools around irregular series."""

import pickle
from collections import Counter

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator
from test_estimators import ALL, NAN, TINY, decays, sines

from latent_morph import LatentODEClassifier, LatentODEReconstructor, as_series

# Enough to learn scikit-learn's blobs, and no more.
CONTRACT = {
    "ode": "linear",
    "hidden_dim": 8,
    "latent_dim": 4,
    "decoder_width": 8,
    "bidirectional": False,
    "learning_rate": 0.05,
    "batch_size": 32,
    "max_epochs": 6,
}
# scikit-learn declares the same of its SGDClassifier and its forests.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": (
        "mini-batches, samples of z0 and the validation split depend on the number of cases"
    ),
}


@pytest.mark.parametrize("kind", ALL)
def test_scikit_learns_contract(kind):
    results = check_estimator(
        kind(**CONTRACT), expected_failed_checks=EXPECTED, on_fail=None, on_skip=None
    )
    broken = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert broken == {}
    counts = Counter(result["status"] for result in results)
    # An estimator that takes no 2-D arrays is asked a single question: see that all are asked.
    assert counts["passed"] > (45 if kind is LatentODEReconstructor else 55)
    assert counts["xfail"] == len(EXPECTED)
    assert counts["skipped"] <= 1  # array API, where scipy was not told to use it


@pytest.fixture(scope="module")
def dense():
    """3-D with NaN: constants of either sign."""
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    X = (2.0 * y - 1)[:, None, None] + 0.1 * rng.standard_normal((24, 5, 2))
    X[rng.random(X.shape) < 0.2] = NAN
    return X, y


QUICK = {**TINY, "max_epochs": 12, "hidden_dim": 16, "batch_size": 4}


@pytest.mark.parametrize("kind", ALL)
def test_clone_copies_parameters_and_nothing_else(kind):
    model = kind(**TINY).fit(*sines(12))
    copy = clone(model)
    assert copy.get_params() == model.get_params() and not hasattr(copy, "model_")
    assert clone(model.set_params(latent_dim=7)).fit(*sines(12)).model_.flow.latent_dim == 7


def test_cross_validation_on_every_form_of_series(dense):
    X, y = dense
    forms = [X, as_series(X), [(np.arange(5.0), case) for case in X], list(X)]
    scores = [cross_val_score(LatentODEClassifier(**QUICK), form, y, cv=3) for form in forms]
    assert min(scores[0]) > 0.8
    for other in scores[1:]:
        np.testing.assert_array_equal(other, scores[0])


def test_cross_validated_probabilities_of_unequal_series():
    X, y = sines(12)
    proba = cross_val_predict(LatentODEClassifier(**TINY), X, y, cv=3, method="predict_proba")
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("form", ["pairs", "array"])
def test_grid_search_over_odes(dense, form):
    X, y = dense
    if form == "pairs":
        X = [(np.arange(5.0) + i / 10, case) for i, case in enumerate(X)]
    search = GridSearchCV(
        LatentODEClassifier(**QUICK),
        {"ode": ["morph", "rk4"]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert search.best_params_["ode"] in ("morph", "rk4")
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X, y) > 0.8


def test_grid_search_of_a_reconstructor_needs_no_labels():
    grid = {"latent_dim": np.arange(2, 4)}  # NumPy's integers are integers
    search = GridSearchCV(LatentODEReconstructor(**TINY), grid, cv=2, error_score="raise")
    assert (search.fit(decays(8)).cv_results_["mean_test_score"] < 0).all()


class Doubled(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return [(times, 2 * values) for times, values in X]


def test_pipelines_on_either_side():
    X, y = sines(24)
    pipeline = make_pipeline(Doubled(), LatentODEClassifier(**TINY)).fit(X, y)
    assert pipeline.predict(X).shape == (24,)
    latent = make_pipeline(LatentODEReconstructor(**TINY), LogisticRegression()).fit(X, y)
    assert 0 <= latent.score(X, y) <= 1
    frame = LatentODEReconstructor(**TINY).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == ["z0", "z1", "z2", "z3"]


@pytest.mark.parametrize("ode", ["morph", "morph-neural", "dopri5"])
@pytest.mark.parametrize("kind", ALL)
def test_pickled_estimators_answer_the_same(kind, ode, tmp_path):
    X, y = sines(10)
    model = kind(**{**TINY, "ode": ode}).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert copy.history_ == model.history_
