"""The adapter to aeon: aeon's own checks, and the use of a data set of aeon."""

import importlib
import sys

import numpy as np
import pytest
from aeon.datasets import load_japanese_vowels
from aeon.testing.estimator_checking import check_estimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from test_estimators import SMALL, TINY, sines

import latent_morph
from latent_morph import LatentODEReconstructor
from latent_morph.integrations.aeon import LatentODEClassifier


def test_aeon_classifier_check_estimator():
    results = check_estimator(LatentODEClassifier)
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}
    assert len(results) >= 25


def test_aeon_classifier_parameters_add_time_channel():
    params = LatentODEClassifier(time_channel=1, max_epochs=3).get_params()
    assert params == latent_morph.LatentODEClassifier(max_epochs=3).get_params() | {
        "time_channel": 1
    }
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        LatentODEClassifier(epochs=3)


@pytest.mark.parametrize("channel", [0, 1])
def test_aeon_classifier_time_channel_matches_classifier(channel):
    X, y = sines(12)
    order = [0, 1] if channel == 0 else [1, 0]
    collection = [np.stack(case)[order] for case in X]
    plain = latent_morph.LatentODEClassifier(**TINY).fit(X, y)
    model = LatentODEClassifier(**TINY, time_channel=channel).fit(collection, y)
    np.testing.assert_array_equal(model.predict_proba(collection), plain.predict_proba(X))
    np.testing.assert_array_equal(model.predict(collection), plain.predict(X))
    assert model.classifier_.n_channels_ == 1


@pytest.mark.parametrize(
    ("channel", "error", "message"),
    [
        (2, ValueError, "time_channel must be one of two channels or more, got 2 for an X of 2"),
        (-1, ValueError, "time_channel must be at least 0, got -1"),
        ("time", TypeError, "time_channel must be a whole number, got 'time'"),
    ],
)
def test_aeon_classifier_rejects_invalid_time_channel(channel, error, message):
    X, y = sines(4)
    with pytest.raises(error, match=message):
        LatentODEClassifier(**TINY, time_channel=channel).fit([np.stack(case) for case in X], y)
    with pytest.raises((ValueError, TypeError), match="time_channel"):
        LatentODEClassifier(**TINY, time_channel=0).fit(np.ones((4, 1, 5)), y)


def test_aeon_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aeon.classification.base", None)
    monkeypatch.delitem(sys.modules, "latent_morph.integrations.aeon")
    with pytest.raises(ImportError, match=r'needs aeon: pip install "latent_morph\[aeon\]"'):
        importlib.import_module("latent_morph.integrations.aeon")


# JapaneseVowels: nine speakers, twelve channels, 7 to 29 time points; shipped with aeon.

VOWELS = {
    **SMALL,
    "latent_dim": 8,
    "hidden_dim": 32,
    "encoder_options": {"layers": 1},
    "batch_size": 32,
}
VOWELS |= {"ode_options": None, "learning_rate": 0.01, "batch_size": 32}


@pytest.fixture(scope="module")
def vowels():
    return [load_japanese_vowels(split=split) for split in ("train", "test")]


def test_aeon_classifier_score_on_japanese_vowels(vowels):
    train, test = vowels
    model = LatentODEClassifier(**VOWELS, max_epochs=15).fit(*train)
    assert model.score(*test) > 0.9


def test_aeon_pipeline_and_grid_search_on_japanese_vowels(vowels):
    (X, y), (X_test, y_test) = [([case.T for case in X], y) for X, y in vowels]
    pipeline = make_pipeline(
        LatentODEReconstructor(**VOWELS, max_epochs=20), LogisticRegression(max_iter=1000)
    )
    assert pipeline.fit(X, y).score(X_test, y_test) > 0.8
    search = GridSearchCV(
        latent_morph.LatentODEClassifier(**VOWELS, max_epochs=10),
        {"ode": ["morph", "rk4"]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    assert min(search.cv_results_["mean_test_score"]) > 0.7
    assert search.score(X_test, y_test) > 0.85
