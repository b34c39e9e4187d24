"""scikit-learn's own checks of estimators, and its tools on irregular series."""

import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.utils._param_validation import InvalidParameterError
from sklearn.utils.estimator_checks import check_estimator
from test_estimators import ALL, NAN, TINY, decays, sines

from latent_morph import (
    DynamicsRegressor,
    FilterBank,
    FilterBankClassifier,
    LatentODEClassifier,
    LatentODEReconstructor,
    SeriesStatistics,
    as_series,
    from_long,
)

# Just enough training for scikit-learn's blobs. Full batches, no sampling, no validation set and
# double precision: only then do weights equal copies to the seven digits that are checked.
# scikit-learn checks its own networks with a deterministic solver as well.
CONTRACT = {
    "ode": "linear",
    "encoder_options": {"layers": 1, "dropout": 0.0},
    "hidden_dim": 8,
    "latent_dim": 4,
    "decoder_width": 8,
    "learning_rate": 0.05,
    "batch_size": 256,
    "max_epochs": 15,
    "sample_z0": False,
    "validation_fraction": 0.0,
    "dtype": "float64",
}
# As users train: small batches, dropout, samples of z0, a validation set, single precision. Then
# weights equal copies only on average, and the check of the digits is an expected failure.
ORDINARY = CONTRACT | {
    "batch_size": 32,
    "max_epochs": 6,
    "encoder_options": {"layers": 1, "dropout": 0.2},
    "sample_z0": True,
    "validation_fraction": 0.1,
    # Single precision rounds by the position of a series in its batch, by more than the 1e-7 that
    # the check of the order of series allows.
    "dtype": "float64",
}
EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": (
        "mini-batches, samples of z0 and the validation split depend on the number of cases"
    ),
}
DYNAMICS = {"ode": "linear", "augment": 1, "max_epochs": 3, "restarts": 0, "dtype": "float64"}
# In scikit-learn 1.9 a classifier passes 62 checks, a transformer 53 and any other estimator 47;
# other versions have a few more or fewer.
MIN_PASSED = {**dict.fromkeys(ALL, 55), LatentODEReconstructor: 47, DynamicsRegressor: 41}
# Those that gradients do not train; the transformers take no weights.
MIN_PASSED |= {FilterBank: 41, SeriesStatistics: 41, FilterBankClassifier: 55}
SETTINGS = {
    **dict.fromkeys(ALL, CONTRACT | {"summary_dropout": 0.0}),
    LatentODEReconstructor: CONTRACT,
    DynamicsRegressor: DYNAMICS,
    FilterBank: {},
    SeriesStatistics: {},
    FilterBankClassifier: {},
}
NOT_EQUAL_TO_COPIES = {
    FilterBankClassifier: {
        "check_sample_weight_equivalence_on_dense_data": (
            "leaving one of two copies out is not leaving both out"
        )
    }
}


@pytest.mark.parametrize("kind", MIN_PASSED)
def test_sklearn_check_estimator(kind):
    expected = NOT_EQUAL_TO_COPIES.get(kind, {})
    results = check_estimator(
        kind(**SETTINGS[kind]), expected_failed_checks=expected, on_fail=None, on_skip=None
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    counts = Counter(result["status"] for result in results)
    assert counts["xfail"] == len(expected)
    # An estimator that takes no 2-D arrays gets a single check: make sure that all were run.
    assert counts["passed"] > MIN_PASSED[kind]
    skipped = [r["check_name"] for r in results if r["status"] == "skipped"]
    # See test_sklearn_array_api_dispatch_keeps_predictions.
    assert skipped in ([], ["check_array_api_input"])


@pytest.mark.parametrize("kind", ALL)
def test_sklearn_check_estimator_with_stochastic_training(kind):
    results = check_estimator(
        kind(**ORDINARY), expected_failed_checks=EXPECTED_FAILURES, on_fail=None, on_skip=None
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert Counter(result["status"] for result in results)["xfail"] == len(EXPECTED_FAILURES)


def test_sklearn_array_api_dispatch_keeps_predictions():
    """scipy reads an environment variable at import, so this runs in a process of its own."""
    quick = {
        kind.__name__: settings | ({"max_epochs": 1} if settings else {})
        for kind, settings in SETTINGS.items()
    }
    code = f"""
import latent_morph
from sklearn.utils.estimator_checks import check_array_api_input
for kind, settings in {quick}.items():
    model = getattr(latent_morph, kind)(**settings)
    check_array_api_input(kind, model, array_namespace="numpy", expect_only_array_outputs=False)
    print(kind)
"""
    assert run_in_process(code, SCIPY_ARRAY_API="1").split() == [
        kind.__name__ for kind in MIN_PASSED
    ]


def run_in_process(code, **environment):
    """Runs `code` in a new process, without this one's limits on threads; returns its output."""
    inherited = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", MIN_PASSED)
def test_estimator_parameter_constraints_are_complete(kind):
    assert set(kind._parameter_constraints) == set(kind().get_params())


@pytest.mark.parametrize("kind", MIN_PASSED)
def test_estimator_error_names_invalid_parameter(kind):
    for name in kind().get_params():
        with pytest.raises(InvalidParameterError, match=f"'{name}' parameter of {kind.__name__}"):
            kind(**{name: object()}).fit(np.ones((3, 4)), [0, 1, 0])


@pytest.mark.parametrize("kind", MIN_PASSED)
def test_estimator_html_repr_shows_parameters(kind):
    name = "max_epochs" if SETTINGS[kind] else "max_memory"
    page = kind(**{name: 7})._repr_html_()
    assert kind.__name__ in page and name in page


@pytest.mark.parametrize("kind", [FilterBank, SeriesStatistics, FilterBankClassifier])
def test_filter_estimator_parameters_out_of_range(kind):
    X, y = np.ones((4, 3)), [0, 1, 0, 1]
    for value in (0, -1.0, "all", None):
        with pytest.raises(InvalidParameterError, match="'max_memory' parameter"):
            kind(max_memory=value).fit(X, y)
    others = {
        FilterBank: {"random_state": "zero"},
        SeriesStatistics: {"fill": "zero"},
        FilterBankClassifier: {"head": "trees", "class_weight": "even", "random_state": -1},
    }
    for name, value in others[kind].items():
        with pytest.raises(InvalidParameterError, match=f"'{name}' parameter"):
            kind(**{name: value}).fit(X, y)


def test_filter_bank_classifier_clone_copies_the_head():
    head = LogisticRegression(C=0.5)
    model = FilterBankClassifier(head=head, random_state=0).fit(np.eye(6), np.arange(6) % 2)
    copy = clone(model.set_params(head__C=0.25))
    assert copy.head is not head and copy.head.C == 0.25 and not hasattr(copy, "model_")


@pytest.fixture(scope="module")
def dense():
    """A 3-D array with NaN: constants of either sign, and noise."""
    rng = np.random.default_rng(0)
    y = np.arange(24) % 2
    X = (2.0 * y - 1)[:, None, None] + 0.1 * rng.standard_normal((24, 5, 2))
    X[rng.random(X.shape) < 0.2] = NAN
    return X, y


QUICK = {**TINY, "max_epochs": 8, "hidden_dim": 16, "encoder_options": {"layers": 1}}
QUICK["batch_size"] = 4


@pytest.mark.parametrize("kind", ALL)
def test_clone_copies_parameters_only(kind):
    model = kind(**TINY).fit(*sines(12))
    copy = clone(model)
    assert copy.get_params() == model.get_params() and not hasattr(copy, "model_")
    assert clone(model.set_params(latent_dim=7)).fit(*sines(12)).model_.flow.latent_dim == 7


def forms(dense):
    """The same series in every form that scikit-learn's tools can pass on."""
    clock = np.arange(dense.shape[1], dtype=float)
    objects = np.empty(len(dense), dtype=object)
    objects[:] = list(dense)
    frames = [pd.DataFrame(case, columns=["u", "v"], index=clock) for case in dense]
    table = pd.concat(frames, keys=range(len(dense)), names=["case", "time"]).reset_index()
    return {
        "array": dense,
        "list": list(dense),
        "objects": objects,
        "pairs": [(clock, case) for case in dense],
        "frames": frames,
        "batch": as_series(dense),
        "long": from_long(table, "case", "time", ["u", "v"]),
    }


def test_cross_val_score_accepts_every_input_form(dense):
    X, y = dense
    scores = {
        form: cross_val_score(LatentODEClassifier(**QUICK), series, y, cv=3)
        for form, series in forms(X).items()
    }
    assert min(scores["array"]) > 0.8
    for other in scores.values():
        np.testing.assert_array_equal(other, scores["array"])


def test_cross_val_predict_on_unequal_lengths():
    X, y = sines(12)
    proba = cross_val_predict(LatentODEClassifier(**TINY), X, y, cv=3, method="predict_proba")
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("form", ["array", "list", "objects", "pairs", "frames", "batch", "long"])
def test_grid_search_over_odes(dense, form):
    X, y = dense
    X = forms(X)[form]
    search = GridSearchCV(
        LatentODEClassifier(**QUICK),
        {"ode": ["morph", "rk4"]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert search.best_params_["ode"] in ("morph", "rk4")
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.score(X, y) > 0.8


def test_grid_search_reconstructor_without_labels():
    grid = {"latent_dim": np.arange(2, 4)}  # integers of NumPy are accepted
    search = GridSearchCV(LatentODEReconstructor(**TINY), grid, cv=2, error_score="raise")
    assert (search.fit(decays(8)).cv_results_["mean_test_score"] < 0).all()


class Doubler(TransformerMixin, BaseEstimator):
    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return [(times, 2 * values) for times, values in X]


def test_pipeline_with_estimator_first_and_last(dense):
    X, y = sines(24)
    pipeline = make_pipeline(Doubler(), LatentODEClassifier(**TINY)).fit(X, y)
    assert pipeline.predict(X).shape == (24,)
    frame = LatentODEReconstructor(**TINY).set_output(transform="pandas").fit_transform(X)
    assert list(frame.columns) == ["z0", "z1", "z2", "z3"]
    latent = make_pipeline(LatentODEReconstructor(**QUICK), LogisticRegression())
    assert min(cross_val_score(latent, *dense, cv=3)) > 0.8


@pytest.mark.parametrize("form", ["pairs", "batch"])
def test_calibrated_classifier_probabilities(dense, form):
    X, y = forms(dense[0])[form], dense[1]
    model = CalibratedClassifierCV(LatentODEClassifier(**QUICK), cv=2)
    model.fit(X, y, sample_weight=np.linspace(1, 2, len(y)))
    assert model.score(X, y) > 0.8
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1, atol=1e-6)


GROUPS = np.repeat(np.arange(8), 3)


def test_group_kfold_of_series_batch(dense):
    X, y = dense
    scores = cross_val_score(
        LatentODEClassifier(**QUICK), as_series(X), y, groups=GROUPS, cv=GroupKFold(4)
    )
    assert min(scores) > 0.8


def test_metadata_routing_of_weights_and_groups(dense):
    X, y = dense
    model = LatentODEClassifier(**TINY | {"validation_fraction": 0.25})
    weight = np.ones(len(y))
    with config_context(enable_metadata_routing=True):
        params = {"sample_weight": weight, "groups": GROUPS}
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            cross_validate(model, X, y, cv=GroupKFold(4), params=params)
        model.set_fit_request(sample_weight=True, groups=True)
        model.set_score_request(sample_weight=True)
        folds = cross_validate(model, X, y, cv=GroupKFold(4), params=params, return_estimator=True)
        # Two of six groups of three cases; without groups it would be 4 of 18 cases.
        assert [fold.n_val_ for fold in folds["estimator"]] == [6] * 4
        pipeline = make_pipeline(LatentODEReconstructor(**TINY), model)
        with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
            pipeline.fit(X, y, sample_weight=weight)
        pipeline[0].set_fit_request(sample_weight=True, groups=False)
        pipeline.fit(X, y, sample_weight=weight, groups=GROUPS)
        assert (pipeline[0].n_val_, pipeline[1].n_val_) == (2, 6)
        params["sample_weight"] = 0 * weight
        for fit in (
            lambda: pipeline.fit(X, y, **params),
            lambda: cross_validate(
                model, X, y, cv=GroupKFold(4), params=params, error_score="raise"
            ),
        ):
            with pytest.raises(ValueError, match="zero"):
                fit()


def test_cross_val_score_workers_limit_threads():
    code = """
import joblib, numpy as np, torch
from sklearn.model_selection import cross_val_score
from latent_morph import LatentODEReconstructor
X = np.random.default_rng(0).normal(size=(12, 5))
model = LatentODEReconstructor(ode="linear", hidden_dim=4, max_epochs=1, random_state=0)
threads = lambda model, X, y=None: torch.get_num_threads()
torch.set_num_threads(1)  # of this process only, not of workers
workers = cross_val_score(model, X, cv=2, n_jobs=2, scoring=threads)
assert 2 * max(workers) <= max(2, joblib.cpu_count()), workers
one, two = (cross_val_score(model, X, cv=2, n_jobs=n) for n in (None, 2))
np.testing.assert_allclose(one, two, rtol=1e-4)
"""
    run_in_process(code)


@pytest.mark.parametrize("ode", ["morph", "morph-neural", "dopri5"])
@pytest.mark.parametrize("kind", ALL)
def test_estimator_pickle_and_joblib_round_trip(kind, ode, tmp_path):
    X, y = sines(10)
    model = kind(**{**TINY, "ode": ode}).fit(X, y)
    joblib.dump(model, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert copy.history_ == model.history_
