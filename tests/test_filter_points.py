"""FilterBankPointClassifier: labels of time points from filters in closed form."""

import pickle
from copy import deepcopy

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils.estimator_checks import check_estimator
from test_estimators import rising, sines
from test_export import LOADERS, shifted
from test_filter_estimators import assert_close_features

from latent_morph import FilterBankPointClassifier
from latent_morph.filters import PointBank, RandomLayer
from latent_morph.io.export import series_inputs
from latent_morph.models.moments import Moments, choose_alpha
from latent_morph.series import as_series

NAN = float("nan")
SMALL = {"n_units": 40, "random_state": 0}


@pytest.fixture(scope="module")
def fitted():
    return FilterBankPointClassifier(**SMALL).fit(*rising(40))


def join(parts):
    return np.concatenate(list(parts))


def test_filter_points_learn_labels_of_rows(fitted):
    X, y = rising(30, seed=1)
    assert fitted.score(X, y) > 0.9
    assert [len(labels) for labels in fitted.predict(X)] == [len(t) for t, _ in X]
    proba = join(fitted.predict_proba(X))
    np.testing.assert_allclose(proba.sum(1), 1, atol=1e-9)
    truth = proba[np.arange(len(proba)), (join(y) == "up").astype(int)]
    assert -np.log(truth).mean() < 0.35


def test_filter_points_random_units_see_more_than_sums():
    """Whether a value is near zero is no linear function of it."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 20))
    y = np.abs(X) < 0.7
    scores = [
        FilterBankPointClassifier(n_units=n, random_state=0)
        .fit(X[:40], y[:40])
        .score(X[40:], y[40:])
        for n in (0, 300)
    ]
    assert scores[0] < 0.7 < 0.85 < scores[1]


def test_filter_points_answer_at_other_times(fitted):
    X, _ = rising(10, seed=1)
    query = np.linspace(0.5, 5.5, 30)
    expected = np.where(np.cos(query) > 0, "up", "down")
    assert (fitted.predict(X, times=query) == expected).mean() > 0.85
    assert fitted.predict_proba(X, times=query).shape == (10, 30, 2)


def test_filter_points_take_one_label_per_series():
    X, y = sines(40)
    model = FilterBankPointClassifier(**SMALL).fit(X, y)
    assert model.one_label_per_series_ and model.predict(X).shape == (40,)
    assert model.predict_proba(X).shape == (40, 2)


def test_filter_points_ignore_batch_mates_memory_and_padding(fitted):
    X, _ = rising(12, seed=1)
    together = fitted.predict_proba(X)
    for i in range(12):
        np.testing.assert_allclose(fitted.predict_proba(X[i : i + 1])[0], together[i], atol=1e-5)
    small = deepcopy(fitted).set_params(max_memory=1e-9)
    np.testing.assert_allclose(join(small.predict_proba(X)), join(together), atol=1e-5)
    again = FilterBankPointClassifier(**SMALL, max_memory=1e-9).fit(*rising(40))
    np.testing.assert_allclose(join(again.predict_proba(X)), join(together), atol=1e-3)
    late = [(times + 1e3, values) for times, values in X]
    np.testing.assert_allclose(join(fitted.predict_proba(late)), join(together), atol=1e-4)


def test_filter_points_weights_classes_and_groups():
    X, y = rising(30)
    weight = np.r_[np.ones(30), 0.0]
    far = (np.linspace(0, 600, 100), 1e6 * np.ones(100))
    left = FilterBankPointClassifier(**SMALL)
    left.fit([*X, far], [*y, np.full(100, "third")], sample_weight=weight)
    right = FilterBankPointClassifier(**SMALL).fit(X, y, sample_weight=weight[:30])
    assert list(left.classes_) == ["down", "up"]
    np.testing.assert_allclose(
        join(left.predict_proba(X)), join(right.predict_proba(X)), atol=1e-6
    )
    up = [
        join(FilterBankPointClassifier(**SMALL, class_weight=w).fit(X, y).predict_proba(X))[:, 1]
        for w in ({"up": 0.0, "down": 1.0}, None, {"up": 50.0, "down": 1.0})
    ]
    assert up[0].mean() < 0.01 < up[1].mean() < up[2].mean()
    with pytest.raises(ValueError, match="class_weight must be positive for some class"):
        FilterBankPointClassifier(class_weight={"up": 0.0, "down": 0.0}).fit(X, y)
    for groups in (np.arange(30) % 3, np.zeros(30)):
        model = FilterBankPointClassifier(**SMALL).fit(X, y, groups=groups)
        assert model.score(X, y) > 0.9
    # A group that has another class alone is left out as a whole.
    labels = [np.full(len(t), "ab"[i % 2]) for i, (t, _) in enumerate(X)]
    model = FilterBankPointClassifier(**SMALL).fit(X, labels, groups=np.arange(30) % 2)
    assert np.isfinite(join(model.predict_proba(X))).all()


def test_filter_points_take_another_head():
    X, y = rising(40)
    model = FilterBankPointClassifier(head=LogisticRegression(), random_state=0).fit(X, y)
    assert model.score(*rising(20, seed=1)) > 0.9 and not hasattr(model, "alpha_")
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(join(copy.predict(X)), join(model.predict(X)))
    for call in (model.save, model.export):
        with pytest.raises(ValueError, match="head must be None to be"):
            call("nowhere")


@pytest.mark.parametrize(
    "case",
    [
        (np.array([1.0, 2.0]), np.full(2, NAN)),
        (np.array([1.0]), np.array([0.5])),
        (np.array([1.0, 1.0]), np.array([0.5, NAN])),
        (np.array([0.0, 1e12]), np.array([0.0, 1e15])),
    ],
    ids=["no observation", "one row", "one time", "absurd"],
)
def test_filter_points_handle_unusual_series(fitted, case):
    X, y = rising(20)
    assert np.isfinite(join(fitted.predict_proba([*X, case]))).all()
    labels = np.full(len(case[0]), "up")
    model = FilterBankPointClassifier(**SMALL)
    assert np.isfinite(join(model.fit([*X, case], [*y, labels]).predict_proba(X))).all()
    assert np.isfinite(join(model.fit([case] * 3, [labels] * 3).predict_proba([case]))).all()


def test_filter_points_save_load_and_pickle(fitted, tmp_path):
    X, _ = rising(10, seed=1)
    expected = join(fitted.predict_proba(X))
    for copy in (
        FilterBankPointClassifier.load(fitted.save(tmp_path / "m")),
        pickle.loads(pickle.dumps(fitted)),
        deepcopy(fitted),
    ):
        np.testing.assert_array_equal(join(copy.predict_proba(X)), expected)
        assert copy.alpha_ == fitted.alpha_ and copy.get_params() == fitted.get_params()


@pytest.mark.slow
@pytest.mark.parametrize("format", LOADERS)
def test_export_of_filter_points(fitted, format, tmp_path):
    program = LOADERS[format](fitted.export(tmp_path / "m.pt2", format))
    X, _ = rising(10, seed=1)
    for series in (X, X[:1], [(np.arange(300) / 50, np.ones(300))], shifted(X, 100.0)):
        (actual,) = program(series_inputs(series))
        for part, expected in zip(actual, fitted.predict_proba(series), strict=True):
            assert_close_features(part[: len(expected)], expected)
            assert np.isnan(part[len(expected) :]).all()


def test_filter_points_do_not_depend_on_the_default_dtype():
    X, y = rising(10)
    expected = join(FilterBankPointClassifier(**SMALL).fit(X, y).predict_proba(X))
    torch.set_default_dtype(torch.float64)
    try:
        model = FilterBankPointClassifier(**SMALL).fit(X, y)
        np.testing.assert_allclose(join(model.predict_proba(X)), expected, atol=1e-4)
        copy = pickle.loads(pickle.dumps(model))
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(join(copy.predict_proba(X)), expected, atol=1e-4)


def test_sklearn_check_estimator_of_filter_points():
    expected = {
        "check_sample_weight_equivalence_on_dense_data": "folds and units depend on the cases",
        "check_methods_sample_order_invariance": "in single precision only to rounding",
    }
    results = check_estimator(
        FilterBankPointClassifier(n_units=20),
        expected_failed_checks=expected,
        on_fail=None,
        on_skip=None,
    )
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in results) > 55
    assert set(FilterBankPointClassifier._parameter_constraints) == set(
        FilterBankPointClassifier().get_params()
    )


# Parts


def test_point_bank_decayed_means():
    """Against sums over all pairs of rows."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 5, 12))
    values = rng.standard_normal((12, 2))
    values[1:-1][rng.random((10, 2)) < 0.3] = NAN  # rows beyond all observations stand still
    batch = as_series([(times, values)])
    bank = PointBank(2)
    bank.rates = torch.tensor([0.2, 1.0, 3.0, 9.0])
    names = bank.names()
    features = bank(batch.values, batch.times, batch.mask)[0].numpy()
    assert features.shape == (12, len(names)) and len(set(names)) == len(names)
    lag = times[:, None] - times[None]
    for channel in range(2):
        known = ~np.isnan(values[:, channel])
        centre = values[known, channel].mean()
        deviation = np.where(known, values[:, channel] - centre, 0.0)
        np.testing.assert_allclose(
            features[known, names.index(f"x{channel} value")], values[known, channel], rtol=1e-5
        )
        for k, rate in enumerate(bank.rates.tolist()):
            decay = np.exp(-rate * np.abs(lag))
            for side, use in (("past", lag >= 0), ("future", lag <= 0), ("both", lag == lag)):
                weight = decay * use * known
                expected = centre + (weight @ deviation) / (weight.sum(1) + 0.1)
                column = names.index(f"x{channel} decayed mean {k} of {side}")
                np.testing.assert_allclose(features[:, column], expected, atol=1e-5)


def test_random_layer_standardises_and_draws_few_inputs():
    features = 5 + 3 * torch.randn(4000, 20, generator=torch.Generator().manual_seed(0))
    features[:, 3] = 7.0
    layer = RandomLayer.fit(features, 30, torch.Generator().manual_seed(1))
    answer = layer(features)
    assert answer.shape == (4000, 50)
    assert ((layer.weight != 0).sum(0) == RandomLayer.N_INPUTS).all()
    assert (answer[:, 3] == 0).all()
    kept = [i for i in range(50) if i != 3]
    assert answer[:, kept].mean(0).abs().max() < 0.05
    assert (answer[:, kept].std(0) - 1).abs().max() < 0.1
    assert layer(1e9 * features).abs().max() <= RandomLayer.UNIT_LIMIT


def test_moments_solve_weighted_ridge_regression():
    generator = torch.Generator().manual_seed(0)
    X, noise = (torch.randn(60, n, generator=generator) for n in (5, 2))
    Y = X[:, :2] + noise
    weight = torch.rand(60, generator=generator) + 0.1
    folds = [Moments(5, 2) for _ in range(3)]
    for k, fold in enumerate(folds):
        fold.add(X[k::3], Y[k::3], weight[k::3])
    total = folds[0].combine(folds[1:])
    coefficients, intercept = total.solve(0.3)
    model = Ridge(alpha=0.3 * float(weight.sum()))
    model.fit(X.double().numpy(), Y.double().numpy(), sample_weight=weight.double().numpy())
    np.testing.assert_allclose(coefficients, model.coef_.T, atol=1e-5)
    np.testing.assert_allclose(intercept, model.intercept_, atol=1e-5)
    residual = Y.double() - X.double() @ coefficients - intercept
    squares = (weight.double().unsqueeze(1) * residual.square()).sum()
    assert total.error(coefficients, intercept) == pytest.approx(float(squares), rel=1e-5)
    # The strength has the least error on the folds left out.
    alpha, solutions = choose_alpha(folds)

    def left_out(strength):
        rests = [total.combine([fold], -1.0).solve(strength) for fold in folds]
        return sum(fold.error(*rest) for fold, rest in zip(folds, rests, strict=True))

    assert left_out(alpha) <= min(left_out(alpha * 10), left_out(alpha / 10)) + 1e-9
    assert len(solutions) == 3


def test_filter_points_query_at_a_row_is_that_row():
    """In units of any size, with unequal lengths; between rows there is no observation to see."""
    rng = np.random.default_rng(0)
    for unit, start in ((1.0, 0.0), (1e-3, 5.0), (86400.0, 1.7e9)):
        clocks = [start + unit * np.sort(rng.uniform(0, 6, n)) for n in (20, 12, 16, 20)]
        X = [(t, np.sin((t - start) / unit)) for t in clocks]
        y = [np.where(np.cos((t - start) / unit) > 0, "rising", "falling") for t in clocks]
        model = FilterBankPointClassifier(random_state=0, n_units=50).fit(X, y)
        expected = model.predict_proba(X)
        for i, t in enumerate(clocks):
            np.testing.assert_allclose(
                model.predict_proba(X[i : i + 1], times=t)[0], expected[i], atol=1e-5
            )


def test_filter_points_query_after_a_shorter_series_is_its_last_row():
    """The padding behind it repeats its last time, but is no row."""
    X = [(np.arange(float(n)), np.sin(np.arange(float(n)))) for n in (12, 4, 7)]
    y = [np.where(np.cos(t) > 0, "rising", "falling") for t, _ in X]
    model = FilterBankPointClassifier(**SMALL, max_memory=1e-3).fit(X, y)
    expected = [rows[-1] for rows in model.predict_proba(X)]
    queries = np.nextafter([[t[-1]] for t, _ in X], np.inf)
    np.testing.assert_allclose(model.predict_proba(X, queries)[:, 0], expected, atol=1e-5)


def test_filter_points_with_groups_of_one_class_of_which_one_has_no_weight():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 10))
    y = np.repeat(np.where(np.arange(12) < 6, "a", "b")[:, None], 10, axis=1)
    model = FilterBankPointClassifier(n_units=10, class_weight={"a": 0.0, "b": 1.0})
    model.fit(X, y, groups=np.arange(12) // 6)
    assert (model.predict(X) == "b").all()
