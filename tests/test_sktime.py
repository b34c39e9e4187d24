"""The adapter to sktime: sktime's own checks, and agreement with the classifier."""

import importlib
import sys

import numpy as np
import pandas as pd
import pytest
from sktime.utils.estimator_checks import check_estimator
from test_estimators import TINY, sines

import latent_morph
from latent_morph.integrations.sktime import LatentODEClassifier


def test_sktime_classifier_check_estimator():
    results = check_estimator(LatentODEClassifier, verbose=False)
    assert {name: result for name, result in results.items() if result != "PASSED"} == {}
    assert len(results) >= 258


def test_sktime_classifier_parameters_match_classifier():
    params = LatentODEClassifier(max_epochs=3).get_params()
    assert params == latent_morph.LatentODEClassifier(max_epochs=3).get_params()
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        LatentODEClassifier(epochs=3)


def test_sktime_classifier_index_times_match_classifier():
    X, y = sines(12)
    frames = [
        pd.DataFrame({"wave": values}, index=pd.to_timedelta(times, unit="s"))
        for times, values in X
    ]
    plain = latent_morph.LatentODEClassifier(**TINY).fit(X, y)
    model = LatentODEClassifier(**TINY).fit(frames, y)
    np.testing.assert_allclose(model.predict_proba(frames), plain.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(model.predict(frames), plain.predict(X))


def test_sktime_classifier_periods_equal_start_dates():
    rng = np.random.default_rng(0)
    months = [pd.period_range("2020-01", periods=n, freq="M") for n in rng.integers(5, 9, 12)]
    frames = [pd.DataFrame({"wave": rng.random(len(index))}, index=index) for index in months]
    y = np.arange(12) % 2
    dated = [frame.to_timestamp() for frame in frames]
    probas = [LatentODEClassifier(**TINY).fit(X, y).predict_proba(X) for X in (frames, dated)]
    np.testing.assert_array_equal(*probas)


def test_sktime_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sktime.classification.base", None)
    monkeypatch.delitem(sys.modules, "latent_morph.integrations.sktime")
    with pytest.raises(ImportError, match=r'needs sktime: pip install "latent_morph\[sktime\]"'):
        importlib.import_module("latent_morph.integrations.sktime")
