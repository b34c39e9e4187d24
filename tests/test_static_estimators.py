"""Estimators use static facts, never ignore them, and keep them in files."""

import copy
import json
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier
from test_persistence import edit_config, rewrite_header

from latent_morph import (
    BlendClassifier,
    BlendPointClassifier,
    DynamicsRegressor,
    FilterBank,
    FilterBankClassifier,
    FilterBankPointClassifier,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    SeriesStatistics,
    as_series,
    plots,
)
from latent_morph.encoders import MorphEncoder
from latent_morph.filters import BLOCKS
from latent_morph.flows import LinearFlow
from latent_morph.io.export import series_inputs
from latent_morph.models import Decoder, LatentODE, PointHead, SeriesHead
from latent_morph.series import Examples, SeriesBatch

NAN = float("nan")
LATENT = {
    "ode": "linear",
    "encoder_options": {"layers": 1, "modes": 4},
    "latent_dim": 3,
    "hidden_dim": 8,
    "decoder_width": 8,
    "random_state": 0,
}
QUICK = LATENT | {"max_epochs": 2}
THOROUGH = LATENT | {"max_epochs": 30, "batch_size": 16, "learning_rate": 1e-2}
SERIES = {
    "LatentODEClassifier": lambda: LatentODEClassifier(**QUICK),
    "LatentODEClassifier-members": lambda: LatentODEClassifier(**QUICK, n_members=2),
    "FilterBankClassifier": lambda: FilterBankClassifier(random_state=0),
    "FilterBankClassifier-head": lambda: FilterBankClassifier(
        head=LogisticRegression(), random_state=0
    ),
    "BlendClassifier": lambda: BlendClassifier(cv=2, random_state=0),
}
POINTS = {
    "LatentODEPointClassifier": lambda: LatentODEPointClassifier(**QUICK),
    "FilterBankPointClassifier": lambda: FilterBankPointClassifier(random_state=0),
    "FilterBankPointClassifier-head": lambda: FilterBankPointClassifier(
        head=LogisticRegression(max_iter=1000), random_state=0
    ),
    "BlendPointClassifier": lambda: BlendPointClassifier(cv=2, random_state=0),
}
UNSUPERVISED = {
    "LatentODEReconstructor": lambda: LatentODEReconstructor(**QUICK),
    "FilterBank": lambda: FilterBank(random_state=0),
    "SeriesStatistics": SeriesStatistics,
    "SeriesStatistics-nan": lambda: SeriesStatistics(fill="nan"),
}
EVERY = SERIES | POINTS | UNSUPERVISED
SAVED = [name for name in EVERY if "Blend" not in name and "head" not in name]


def noise(n_cases, seed=0):
    """Series that say nothing, of 5 to 9 rows."""
    rng = np.random.default_rng(1000 + seed)  # other draws than those of the facts
    lengths = rng.integers(5, 10, n_cases)
    return as_series([(np.sort(rng.uniform(0, 3, n)), rng.normal(size=(n, 2))) for n in lengths])


def patients(n_cases=40, seed=0):
    """Noise with facts, some missing, and labels that only a fact decides."""
    rng = np.random.default_rng(seed)
    sex = rng.choice(["f", "m"], n_cases)
    age = np.where(rng.random(n_cases) < 0.2, NAN, rng.uniform(20, 90, n_cases))
    X = noise(n_cases, seed).with_static(pd.DataFrame({"age": age, "sex": sex}))
    return X, np.where(sex == "f", "ill", "well")


def fit(name, X, y):
    return EVERY[name]().fit(X, None if name in UNSUPERVISED else y)


def answer(model, X):
    """What an estimator says of series, as one array."""
    for method in ("predict_proba", "transform"):
        if hasattr(model, method):
            return np.asarray(getattr(model, method)(X))
    raise AssertionError


@pytest.fixture(scope="module", params=EVERY)
def fitted(request):
    X, y = patients()
    return request.param, fit(request.param, X, y), X


# Never ignored


def test_every_estimator_has_a_test():
    import latent_morph

    classes = {name.split("-")[0] for name in EVERY} | {"DynamicsRegressor"}
    assert classes == set(latent_morph.estimators.__all__)


def test_facts_change_predictions(fitted):
    name, model, X = fitted
    assert model.static_encoder_.names() == ["age", "age missing", "sex=f", "sex=m"]
    other = X.with_static(X.static.assign(sex=X.static["sex"].to_numpy()[::-1]))
    before, after = answer(model, X), answer(model, other)
    changed = (X.static["sex"] != other.static["sex"]).to_numpy()
    differs = ~np.isclose(before, after, atol=1e-7, equal_nan=True).reshape(len(X), -1).all(1)
    np.testing.assert_array_equal(differs, changed)


def test_order_of_columns_does_not_matter(fitted):
    _, model, X = fitted
    turned = X.with_static(X.static[["sex", "age"]])
    np.testing.assert_array_equal(answer(model, turned), answer(model, X))


def test_predictions_go_with_their_series(fitted):
    _, model, X = fitted
    picks = [7, 3, 21]
    np.testing.assert_allclose(answer(model, X[picks]), answer(model, X)[picks], atol=1e-5)


def test_unknown_category_is_like_a_missing_one(fitted):
    name, model, X = fitted
    unknown, missing = (X.with_static(X.static.assign(sex=sex)) for sex in ("x", None))
    np.testing.assert_array_equal(answer(model, unknown), answer(model, missing))


@pytest.mark.parametrize(
    ("static", "match"),
    [
        (None, r"X must have the static facts \['age', 'sex'\] as in fit, got none"),
        (["sex"], r"\['age', 'sex'\] as in fit, got \['sex'\]: \['age'\] absent"),
    ],
)
def test_predictions_need_the_facts_of_fit(fitted, static, match):
    _, model, X = fitted
    other = X.with_static(None if static is None else X.static[static])
    with pytest.raises(ValueError, match=match):
        answer(model, other)


@pytest.mark.parametrize("name", EVERY)
def test_facts_unknown_to_fit_are_refused(name):
    X, y = patients()
    model = fit(name, X.with_static(None), y)
    assert model.static_encoder_ is None
    with pytest.raises(ValueError, match=r"no static facts as in fit, got \['age', 'sex'\]"):
        answer(model, X)
    model.fit(X, None if name in UNSUPERVISED else y)
    assert model.static_encoder_.columns_ == ["age", "sex"]
    model.fit(X.with_static(None), None if name in UNSUPERVISED else y)
    assert model.static_encoder_ is None  # not of an earlier fit


def test_dynamics_regressor_refuses_facts():
    times = np.linspace(0, 1, 6)
    X = as_series([(times, np.exp(-times))] * 3)
    facts = pd.DataFrame({"mass": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=r"no static facts for DynamicsRegressor, got \['mass'\]"):
        DynamicsRegressor(max_epochs=1).fit(X.with_static(facts))
    model = DynamicsRegressor(max_epochs=1, random_state=0).fit(X)
    for method in (model.predict, model.score):
        with pytest.raises(ValueError, match=r"no static facts as in fit, got \['mass'\]"):
            method(X.with_static(facts))


@pytest.mark.parametrize("name", EVERY)
def test_facts_of_which_nothing_is_known_do_no_harm(name):
    X, y = patients()
    unknown = X.with_static(X.static[["age"]].assign(age=None))
    model = fit(name, unknown, y)
    plain = answer(fit(name, X.with_static(None), y), X.with_static(None))
    np.testing.assert_array_equal(answer(model, unknown), plain)


# Learned from

LEARNED = {
    "LatentODEClassifier": lambda: LatentODEClassifier(**THOROUGH),
    "LatentODEClassifier-no summary": lambda: LatentODEClassifier(**THOROUGH, summary=False),
    "LatentODEPointClassifier": lambda: LatentODEPointClassifier(**THOROUGH),
    **{name: EVERY[name] for name in (*SERIES, *POINTS) if "LatentODE" not in name},
    # A linear head with little regularisation drowns one fact in thousands of features.
    "FilterBankClassifier-head": lambda: FilterBankClassifier(
        head=DecisionTreeClassifier(max_depth=2, random_state=0), random_state=0
    ),
    "trees": lambda: make_pipeline(SeriesStatistics(), HistGradientBoostingClassifier()),
    "FilterBank": lambda: make_pipeline(
        FilterBank(random_state=0), DecisionTreeClassifier(max_depth=2, random_state=0)
    ),
}


@pytest.mark.parametrize("name", LEARNED)
def test_a_fact_that_alone_decides_the_label_is_learned(name):
    X, y = patients(160)
    model = LEARNED[name]().fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.95
    without = X.with_static(None)
    model = LEARNED[name]().fit(without[:100], y[:100])
    assert model.score(without[100:], y[100:]) < 0.75


def test_a_number_decides_the_label():
    X, _ = patients(300)
    X = X.with_static(X.static.assign(age=X.static["age"].fillna(20.0)))
    y = (X.static["age"] > 55).to_numpy()
    for model in (
        FilterBankClassifier(random_state=0),
        LatentODEClassifier(**THOROUGH),
    ):
        assert model.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.85


def test_facts_are_a_block_of_their_own():
    X, y = patients()
    model = FilterBankClassifier(random_state=0).fit(X, y)
    assert list(model.block_weights_) == [*BLOCKS, "static"]
    assert model.block_weights_["static"] == 1.0
    model.fit(X.with_static(None), y)
    assert list(model.block_weights_) == list(BLOCKS)


def test_cross_validation_keeps_facts_with_their_series():
    X, y = patients(80)
    scores = cross_val_score(FilterBankClassifier(random_state=0), X, y, cv=2)
    assert scores.min() > 0.9


def test_posterior_learns_from_facts():
    """Without a head, only the posterior can tell the level of series that were hardly seen."""
    rng = np.random.default_rng(0)
    level = rng.choice([-1.0, 1.0], 120)
    times = np.linspace(0, 1, 8)
    seen = as_series([(times[:1], [NAN]) for _ in level])
    target = as_series([(times, np.full(8, each)) for each in level])
    facts = pd.DataFrame({"level": np.where(level > 0, "high", "low")})

    def error(X):
        model = LatentODEReconstructor(**THOROUGH, kl_weight=1e-3)
        model.fit(X[:80], target[:80])
        mean = model.reconstruct(X[80:], times, n_samples=0)[..., 0]
        return float(np.square(mean - level[80:, None]).mean())

    assert error(seen) > 0.8
    assert error(seen.with_static(facts)) < 0.2


def test_classifier_without_context_uses_facts_at_any_times():
    X, y = patients(100)
    model = LatentODEPointClassifier(**THOROUGH).fit(X, y)
    labels = model.predict(X, times=[0.5, 2.0])
    assert (labels == y[:, None]).mean() > 0.95


def test_weights_count_for_scales_of_facts():
    X, y = patients(20)
    weight = np.ones(20)
    none, twice = X.static["age"].nlargest(2).index
    weight[none], weight[twice] = 0, 2
    copied = [i for i in range(20) if i != none] + [twice]
    for name in ("LatentODEClassifier", "FilterBankClassifier", "FilterBankPointClassifier"):
        model = EVERY[name]().fit(X, y, sample_weight=weight)
        expected = EVERY[name]().fit(X[copied], y[copied])
        unweighted = EVERY[name]().fit(X, y)
        scales, expected_scales, other_scales = (
            (*each.static_encoder_.means_, *each.static_encoder_.scaler_.scale_.tolist())
            for each in (model, expected, unweighted)
        )
        assert scales == pytest.approx(expected_scales, rel=1e-12)
        assert scales != pytest.approx(other_scales, rel=1e-3)


# Features


def test_feature_names_tell_facts():
    X, _ = patients()
    bank = FilterBank(random_state=0).fit(X)
    features, names = bank.transform(X), bank.get_feature_names_out()
    assert features.shape[1] == len(names)
    assert names[-4:].tolist() == [
        "static age", "static age missing", "static sex=f", "static sex=m"
    ]  # fmt: skip
    expected = bank.static_encoder_.transform(X.static)
    np.testing.assert_allclose(features[:, -4:], expected, rtol=1e-6)
    plain = FilterBank(random_state=0).fit(X.with_static(None))
    np.testing.assert_array_equal(features[:, :-4], plain.transform(X.with_static(None)))


def test_statistics_have_facts_in_their_units():
    X, _ = patients()
    age = X.static["age"].to_numpy()
    is_female = (X.static["sex"] == "f").to_numpy()
    for fill, missing in (("nan", NAN), ("mean", np.nanmean(age))):
        model = SeriesStatistics(fill=fill).fit(X)
        names = model.get_feature_names_out()
        assert names[-3:].tolist() == ["static age", "static sex=f", "static sex=m"]
        table = model.set_output(transform="pandas").transform(X)
        np.testing.assert_allclose(table["static age"], np.where(np.isnan(age), missing, age))
        np.testing.assert_array_equal(table["static sex=f"], is_female)


# Files


@pytest.mark.parametrize("name", SAVED)
def test_saved_estimators_keep_their_encoder(name, tmp_path):
    X, y = patients()
    model = fit(name, X, y)
    loaded = type(model).load(model.save(tmp_path / "model"))
    assert loaded.static_encoder_.state() == model.static_encoder_.state()
    np.testing.assert_array_equal(answer(loaded, X), answer(model, X))
    with pytest.raises(ValueError, match="X must have the static facts"):
        answer(loaded, X.with_static(None))


def test_pickles_keep_the_encoder(fitted, tmp_path):
    _, model, X = fitted
    joblib.dump(model, tmp_path / "model")
    for copied in (
        pickle.loads(pickle.dumps(model)),
        copy.deepcopy(model),
        joblib.load(tmp_path / "model"),
    ):
        np.testing.assert_array_equal(answer(copied, X), answer(model, X))


def test_skops_trusts_only_the_estimator():
    skops = pytest.importorskip("skops.io")
    X, y = patients(12)
    model = LatentODEClassifier(**QUICK).fit(X, y)
    content = skops.dumps(model)
    unknown = skops.get_untrusted_types(data=content)
    assert unknown == ["latent_morph.estimators.classifier.LatentODEClassifier"]
    copied = skops.loads(content, trusted=unknown)
    np.testing.assert_array_equal(answer(copied, X), answer(model, X))


def test_files_and_pickles_from_before_facts_load(tmp_path):
    X, y = patients()
    X = X.with_static(None)
    model = LatentODEClassifier(**QUICK).fit(X, y)
    path = model.save(tmp_path / "model")
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    del config["static"]
    rewrite_header(path, config=json.dumps(config), forged=True)
    loaded = LatentODEClassifier.load(path)
    assert loaded.static_encoder_ is None
    np.testing.assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))
    del model.static_encoder_
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X), loaded.predict_proba(X)
    )


def test_damaged_encoder_in_a_file_is_refused(tmp_path):
    X, y = patients()
    model = LatentODEClassifier(**QUICK).fit(X, y)
    path = model.save(tmp_path / "model")
    edit_config(path, static=model.static_encoder_.state() | {"means": []})
    with pytest.raises(ValueError, match="state must have parts that belong together"):
        LatentODEClassifier.load(path)


@pytest.mark.parametrize("name", ["LatentODEClassifier", "LatentODEReconstructor", "FilterBank"])
def test_export_refuses_facts(name, tmp_path):
    X, y = patients()
    model = fit(name, X, y)
    message = rf"{name} must be fitted without static facts to be exported, got \['age', 'sex'\]"
    with pytest.raises(ValueError, match=message):
        model.export(tmp_path / "model.pt2", format="torch")
    with pytest.raises(ValueError, match=r"X must have no static facts, got \['age', 'sex'\]"):
        series_inputs(X)


def test_training_resumes_with_facts(tmp_path):
    X, y = patients()
    path = tmp_path / "state.pt"
    whole = LatentODEClassifier(**LATENT, max_epochs=4, schedule="constant").fit(X, y)
    LatentODEClassifier(**LATENT, max_epochs=2, schedule="constant", checkpoint=path).fit(X, y)
    resumed = LatentODEClassifier(
        **LATENT, max_epochs=4, schedule="constant", checkpoint=path, resume=True
    ).fit(X, y)
    shift = whole.model_.shift.weight
    assert shift.abs().max() > 0
    torch.testing.assert_close(resumed.model_.shift.weight, shift)


def test_init_gives_encoder_and_shift():
    X, y = patients()
    source = LatentODEReconstructor(**QUICK, scale="robust").fit(X)
    source.static_encoder_.means_ = [-1.0]  # told apart from an encoder of this fit
    model = LatentODEClassifier(
        **LATENT, max_epochs=1, learning_rate=1e-12, init=FrozenEstimator(source)
    ).fit(X, y)
    assert model.static_encoder_.means_ == [-1.0]
    torch.testing.assert_close(model.model_.shift.weight, source.model_.shift.weight)
    assert source.model_.shift.weight.abs().max() > 0
    with pytest.raises(ValueError, match=r"static facts \['age', 'sex'\] as init has, got none"):
        model.fit(X.with_static(None), y)
    plain = LatentODEReconstructor(**QUICK).fit(X.with_static(None))
    with pytest.raises(ValueError, match="X must have no static facts as init has, got"):
        LatentODEClassifier(**QUICK, init=FrozenEstimator(plain)).fit(X, y)


# The model


def make_model(static_dim, head=SeriesHead):
    torch.manual_seed(0)
    encoder = MorphEncoder(2, 3, 4, layers=1)
    classes = head(3, encoder.state_dim, 2, head="trajectory+context", summary_dim=static_dim)
    return LatentODE(encoder, LinearFlow(3), Decoder(3, 2), classes, static_dim=static_dim)


def test_facts_shift_mean_and_log_std_of_the_posterior():
    X, static = noise(5), torch.randn(5, 4)
    model = make_model(4).eval()
    plain = model.encoder(X)
    start = model.encode(X, static)
    assert torch.equal(start.mean, plain.mean) and torch.equal(start.std, plain.std)
    with torch.no_grad():
        model.shift.weight.normal_()
    shifted = model.encode(X, static)
    mean, log_std = (static @ model.shift.weight.t()).split(3, dim=1)
    torch.testing.assert_close(shifted.mean, plain.mean + mean)
    torch.testing.assert_close(shifted.std, plain.std * log_std.exp())
    assert torch.equal(shifted.states, plain.states)
    unknown = model.encode(X, torch.zeros(5, 4))
    assert torch.equal(unknown.mean, plain.mean)


@pytest.mark.parametrize("head", [SeriesHead, PointHead])
def test_head_sees_facts(head):
    X, static = noise(5).trim(), torch.randn(5, 4)
    model = make_model(4, head).eval()  # the posterior is not shifted yet
    logits = model(X, static=static).logits
    assert not torch.allclose(logits, model(X, static=static.flip(0)).logits)
    swapped = static[[1, 0, 2, 3, 4]]
    torch.testing.assert_close(model(X, static=swapped).logits[2:], logits[2:])


@pytest.mark.parametrize(
    ("static_dim", "static", "match"),
    [
        (0, torch.zeros(5, 1), r"static must have shape None, got \(5, 1\)"),
        (4, None, r"static must have shape \(5, 4\), got None"),
        (4, torch.zeros(5, 3), r"static must have shape \(5, 4\), got \(5, 3\)"),
        (4, torch.zeros(1, 4), r"static must have shape \(5, 4\), got \(1, 4\)"),
    ],
)
def test_model_refuses_other_facts(static_dim, static, match):
    with pytest.raises(ValueError, match=match):
        make_model(static_dim)(noise(5), static=static)


def test_model_without_facts_is_as_before():
    torch.manual_seed(0)
    encoder = MorphEncoder(2, 3, 4, layers=1)
    head = SeriesHead(3, encoder.state_dim, 2, head="trajectory+context")
    before = LatentODE(encoder, LinearFlow(3), Decoder(3, 2), head)
    after_draw = torch.rand(1)
    model = make_model(0)
    assert torch.equal(torch.rand(1), after_draw)  # no other draws
    assert list(model.state_dict()) == list(before.state_dict())
    assert not [name for name in model.state_dict() if "shift" in name]


def test_examples_carry_encoded_facts():
    examples = Examples(noise(4), static=torch.arange(4.0).unsqueeze(1))
    assert examples[np.array([2, 0])].trim().to("cpu").static.tolist() == [[2.0], [0.0]]
    assert isinstance(examples.inputs, SeriesBatch)


# Plots


@pytest.mark.parametrize(
    "name", ["LatentODEClassifier", "LatentODEPointClassifier", "LatentODEReconstructor"]
)
def test_plots_use_facts(name):
    X, y = patients()
    model = fit(name, X, y)
    axes = plots.plot_series(model, X, case=5)
    assert len(axes) == 2 + ("Classifier" in name)
    plots.plot_latent_trajectories(model, X[:3])
    with pytest.raises(ValueError, match="X must have the static facts"):
        plots.plot_series(model, X.with_static(None), case=5)


@pytest.mark.parametrize("name", ["FilterBankClassifier", "FilterBankPointClassifier"])
def test_filters_are_drawn_beside_facts(name):
    X, y = patients()
    assert len(plots.plot_filter_bank(fit(name, X, y), X)) > 1
