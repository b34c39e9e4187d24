"""DynamicsRegressor, an ODE learned from trajectories, and its parts."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import solve_ivp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from latent_morph import FLOWS, DynamicsRegressor, LatentODEReconstructor, as_series
from latent_morph.estimators import dynamics
from latent_morph.flows import LinearFlow
from latent_morph.losses import RolloutLoss, Step
from latent_morph.models.dynamics import DynamicsModel, measure_fade, random_rows, starts_at
from latent_morph.models.linear_fit import (
    finite_differences,
    fit_matrix,
    initialize_linear,
    linear_base,
)
from latent_morph.series import Examples
from latent_morph.training import TrainingError

NAN = float("nan")
TINY = {
    "ode_options": {"inn": {"blocks": 2, "width": 8}},
    "max_epochs": 3,
    "random_state": 0,
}
LINEAR = ("linear", "morph", "morph-real", "morph-stable")


def options_for(ode):
    if ode == "linear":
        return None
    if ode == "morph-neural":
        return {"inn": {"blocks": 2, "width": 8}, "units": 8, "layers": 1, "method": "rk4"}
    return {"inn": {"blocks": 2, "width": 8}} if ode.startswith("morph") else {"units": 8}


def spirals(n=4, *, dim=2, seed=0, goal=0.0):
    """Decaying spirals of unequal length at irregular times, as (times, values)."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        t = np.sort(rng.uniform(0, 3, 12 + i))
        angle = 2 * t + i
        columns = [np.cos(angle), np.sin(angle), np.ones_like(t)][:dim]
        made.append((t, goal + (1 + i / n) * np.exp(-t)[:, None] * np.stack(columns, 1)))
    return made


@pytest.fixture(scope="module")
def spiral():
    """A model fitted to spirals into (1, 1)."""
    model = DynamicsRegressor(
        stable=True,
        goal=[1, 1],
        ode_options={"inn": {"blocks": 2, "width": 16}},
        max_epochs=80,
        random_state=0,
    )
    return model.fit(spirals(6, goal=1.0))


# Accuracy


def test_dynamics_regressor_fits_spirals_and_new_starts(spiral):
    truth = spirals(6, goal=1.0, seed=5)
    assert -spiral.score(truth) < 1e-3
    t = np.linspace(0, 2, 9)
    expected = 1 + 1.3 * np.exp(-t)[:, None] * np.stack(
        [np.cos(2 * t + 0.5), np.sin(2 * t + 0.5)], 1
    )
    np.testing.assert_allclose(spiral.predict(expected[0], t), expected, atol=0.1)


def test_dynamics_regressor_vector_field_is_velocity_of_rollouts(spiral):
    y0 = np.array([[1.5, 0.6], [0.2, 1.9]])
    step = 1e-3
    path = spiral.predict(y0, [-step, step])
    np.testing.assert_allclose(
        spiral.vector_field(y0), (path[:, 1] - path[:, 0]) / (2 * step), rtol=1e-2, atol=1e-2
    )


def test_dynamics_regressor_without_augment_integrates_to_rollout():
    model = DynamicsRegressor(**TINY | {"augment": 0, "max_epochs": 30}).fit(spirals())
    y0, times = np.array([0.8, -0.3]), np.linspace(0, 1, 5)
    solved = solve_ivp(
        lambda t, y: model.vector_field(y), (0, 1), y0, t_eval=times, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(solved.y.T, model.predict(y0, times), atol=1e-3)


def test_dynamics_regressor_base_trajectory_morphs_to_prediction(spiral):
    y0, times = [[1.5, 0.6], [0.2, 1.9]], np.linspace(0, 2, 5)
    base = spiral.base_trajectory(y0, times)
    assert base.shape == (2, 5, 4)
    np.testing.assert_allclose(spiral.morph(base), spiral.predict(y0, times), atol=1e-5)
    linear = spiral.model_.flow.base
    again = linear(torch.tensor(base[:, 0]), torch.tensor(times / spiral.scaler_.time_scale_))
    np.testing.assert_allclose(again.detach().numpy(), base, atol=1e-9)


# Weights


@pytest.mark.parametrize(
    "params",
    [
        {"ode": "linear", "ode_options": None, "scale": "log", "loss": "mse"},
        {"stable": True, "goal": "ends", "scale": "shared"},
        {"velocity_weight": 0.1},
        {"ode": "rk4", "ode_options": {"units": 4}, "linear_start": False},
    ],
    ids=str,
)
def test_dynamics_regressor_sample_weight_equals_copies(params):
    X, counts = spirals(5, goal=1.0), np.array([1, 3, 0, 2, 1])
    X[3][1][4, 0] = NAN
    settings = {**TINY, "restarts": 0, "dtype": "float64", "max_epochs": 10, **params}
    weighted = DynamicsRegressor(**settings).fit(X, sample_weight=counts)
    repeated = DynamicsRegressor(**settings).fit([X[i] for i in np.repeat(range(5), counts)])
    y0, times = [[0.5, 1.5], [2.0, 1.0]], [0.5, 1.0, 2.0]
    np.testing.assert_allclose(weighted.predict(y0, times), repeated.predict(y0, times), rtol=1e-7)
    for one, other in zip(weighted.history_, repeated.history_, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-9)
    assert (weighted.n_train_, repeated.n_train_) == (4, 7)


def test_dynamics_regressor_sample_weight_zero_equals_absent_trajectory():
    """Exactly, including restarts and the validation split."""
    X = spirals(6)
    X[2] = (X[2][0] * 100, X[2][1] * 1e6)
    model = DynamicsRegressor(**TINY, validation_fraction=0.2, goal="ends", scale="log")
    weighted = model.fit(X, sample_weight=[2, 2, 0, 2, 2, 2]).predict(X[0][1][0], [0.0, 1.0])
    np.testing.assert_array_equal(
        model.fit(X[:2] + X[3:]).predict(X[0][1][0], [0.0, 1.0]), weighted
    )
    with pytest.raises(ValueError, match="zero"):
        model.fit(X, sample_weight=np.zeros(6))
    start_only = (np.arange(2.0), np.array([[1.0, 1.0], [NAN, NAN]]))
    with pytest.raises(ValueError, match="X must have values after"):
        model.fit([start_only, X[0]], sample_weight=[1, 0])


def test_dynamics_regressor_sample_weight_in_validation():
    X = as_series([v for _, v in spirals(2)], dtype=torch.float64)
    model = DynamicsRegressor(**TINY).fit(X)
    weighted, copied = Examples(X, weight=torch.tensor([3.0, 1.0])), Examples(X[[0, 0, 0, 1]])
    with torch.no_grad():
        scores = [model._validation_score(model.model_, part) for part in (weighted, copied)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


# Stability


@pytest.mark.parametrize("ode", LINEAR)
@pytest.mark.parametrize("scale", ["standard", "shared", "none"])
def test_dynamics_regressor_stable_converges_to_goal(ode, scale):
    goal = [1.25, -0.5]
    model = DynamicsRegressor(
        **TINY
        | {"ode": ode, "ode_options": options_for(ode), "max_epochs": 20, "learning_rate": 0.05},
        stable=True,
        goal=goal,
        scale=scale,
    ).fit(spirals(4, goal=np.array(goal)))
    starts = np.random.default_rng(0).uniform(-100, 100, (1000, 2))
    slowest = float(-linear_base(model.model_.flow).rates.detach().max())
    span = model.scaler_.time_scale_
    path = model.predict(starts, span * np.array([0.0, 0.1, 1.0, 10.0, 60.0 / slowest]))
    assert np.isfinite(path).all()
    np.testing.assert_allclose(path[:, 0], starts, rtol=1e-6, atol=1e-6)
    assert np.linalg.norm(path[:, -1] - goal, axis=1).max() < 1e-3
    np.testing.assert_array_equal(model.equilibrium_, goal)
    np.testing.assert_allclose(model.vector_field(goal), 0, atol=1e-5)


def test_dynamics_regressor_goal_ends_is_mean_of_last_states():
    X = spirals(5, goal=2.0)
    X[1][1][-1, 0] = NAN  # the last complete row counts
    model = DynamicsRegressor(**TINY, stable=True, goal="ends").fit(X)
    ends = [values[~np.isnan(values).any(1)][-1] for _, values in X]
    np.testing.assert_allclose(model.equilibrium_, np.mean(ends, axis=0), rtol=1e-12)


def test_dynamics_regressor_stable_converges_to_equilibrium():
    model = DynamicsRegressor(**TINY, stable=True).fit(spirals())
    path = model.predict(np.random.default_rng(0).normal(size=(20, 2)), [1e6])
    assert np.abs(path[:, 0] - model.equilibrium_).max() < 1e-4


@pytest.mark.parametrize("options", [{"stable": True}, {"goal": [0, 0]}])
@pytest.mark.parametrize("ode", ["rk4", "morph-neural"])
def test_dynamics_regressor_solver_rejects_stable_and_goal(options, ode):
    with pytest.raises(ValueError, match=r"ode must have a linear base for (stable=True|goal)"):
        DynamicsRegressor(ode=ode, max_epochs=1, **options).fit(spirals())


# Options


@pytest.mark.parametrize("ode", FLOWS)
def test_dynamics_regressor_every_ode_fits_saves_and_loads(ode, tmp_path):
    t = np.linspace(0, 1, 6)
    X = [(t, np.stack([np.cos(t), a * np.sin(t)], 1)) for a in (1, 2)]
    model = DynamicsRegressor(**TINY | {"ode": ode, "ode_options": options_for(ode)}).fit(X)
    assert np.isfinite(model.score(X))
    assert (model.equilibrium_ is None) == (ode not in LINEAR)
    copy = DynamicsRegressor.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(copy.predict([1.0, 0.0], t), model.predict([1.0, 0.0], t))
    assert copy.history_ == model.history_ and copy.scaler_.state() == model.scaler_.state()
    if ode.startswith("morph") or ode == "linear":
        assert model.base_trajectory([1.0, 0.0], t).shape == (6, 4)
    else:
        with pytest.raises(ValueError, match="ode must be of the morph family"):
            model.base_trajectory([1.0, 0.0], t)


@pytest.mark.parametrize("scale", ["standard", "shared", "log", "none"])
def test_dynamics_regressor_predicts_in_data_units_for_every_scale(scale, tmp_path):
    t = np.linspace(0, 1, 20)
    values = np.stack([1e-5 * np.exp(-3 * t), 100 * np.exp(-t)], 1)
    model = DynamicsRegressor(**TINY | {"scale": scale, "max_epochs": 100}).fit([(t, values)])
    path = model.predict(values[0], t)
    np.testing.assert_allclose(path[0], values[0], rtol=1e-9)
    if scale == "log":  # the small channel counts as much as the large one
        np.testing.assert_allclose(path, values, rtol=0.2)
        field = model.vector_field(values[3])
        np.testing.assert_allclose(field, [-3 * values[3, 0], -values[3, 1]], rtol=0.3)
    copy = DynamicsRegressor.load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(copy.predict(values[0], t), path)


def test_dynamics_regressor_augment_sets_latent_dim():
    for augment, dim in ((None, 4), (0, 2), (3, 5)):
        model = DynamicsRegressor(**TINY | {"augment": augment}).fit(spirals())
        assert model.model_.flow.latent_dim == dim
        assert model.predict([1.0, 0.0], [0.5]).shape == (1, 2)


@pytest.mark.parametrize(
    "change", [{"loss": "mse"}, {"start_noise": 0.1}, {"start_spread": 0.1}, {"restarts": 0}]
)
def test_dynamics_regressor_training_options_reduce_loss(change):
    model = DynamicsRegressor(**TINY | {"max_epochs": 60} | change).fit(spirals())
    assert model.history_[-1]["train_loss"] < model.history_[0]["train_loss"]
    assert ("restarts" in model.history_[0]) == (change != {"restarts": 0})


def test_dynamics_regressor_velocity_weight_reduces_velocity_loss():
    model = DynamicsRegressor(**TINY | {"velocity_weight": 0.1, "max_epochs": 40}).fit(spirals())
    assert model.history_[-1]["velocity"] < model.history_[0]["velocity"]


# Input


def test_dynamics_regressor_accepts_every_input_form():
    values = np.stack([v[:10] for _, v in spirals(3)])
    t = np.arange(10.0)
    forms = [
        values,
        list(values),
        [(t, case) for case in values],
        [pd.DataFrame(case, index=t) for case in values],
        as_series(values, dtype=torch.float64),
        torch.tensor(values),
    ]
    predictions = [
        DynamicsRegressor(**TINY).fit(form).predict(values[:, 0], [1.0, 2.0]) for form in forms
    ]
    for other in predictions[1:]:
        np.testing.assert_allclose(other, predictions[0], rtol=1e-4)


def test_dynamics_regressor_missing_values():
    X = spirals(4)
    X[0][1][0, 1] = NAN  # starts at the second row, the first complete one
    X[1][1][3:6, 0] = NAN
    model = DynamicsRegressor(**TINY | {"max_epochs": 30}).fit(X)
    path = model.predict(X)
    np.testing.assert_allclose(path[0, 1], X[0][1][1], atol=1e-5)
    np.testing.assert_array_equal(np.isnan(path[0, :, 0]), np.arange(15) >= 12)
    assert np.isfinite(model.score(X))


def test_dynamics_regressor_output_shapes(spiral):
    assert spiral.predict([1.0, 0.0], [0.0, 1.0, 2.0]).shape == (3, 2)
    assert spiral.predict([[1.0, 0.0]], [0.0, 1.0, 2.0]).shape == (1, 3, 2)
    each = spiral.predict([[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 2.0]])
    np.testing.assert_allclose(each[1, 1], spiral.predict([0.5, 0.5], [2.0])[0], atol=1e-6)
    assert spiral.vector_field(np.zeros((3, 4, 2))).shape == (3, 4, 2)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([], "X must have at least one trajectory, got none"),
        (np.ones((0, 5, 2)), "X must have at least one trajectory, got none"),
        ([([0.0, 1.0], np.ones((2, 2))), ([0.0], np.ones((1, 2)))], "trajectory 1 of X must have"),
        ([([0.0, 1.0], [[1, NAN], [2, NAN]])], r"every channel, got none in \[1\]"),
        ([([0.0, 1.0, 1.0], np.ones((3, 2)))], "trajectory 0 .*must increase, got 1 twice"),
        (
            [([0.0, 1.0], np.ones((2, 2))), ([0.0, 1.0], [[1, NAN], [NAN, 1]])],
            "trajectory 1 of X must have a row in which every",
        ),
        ([([0.0, 1.0], [[NAN, 1.0], [1.0, 1.0]])], "values after the first complete rows"),
    ],
)
def test_dynamics_regressor_rejects_invalid_trajectories(X, message):
    with pytest.raises(ValueError, match=message):
        DynamicsRegressor(**TINY).fit(X)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.predict([1.0, 2.0, 3.0], [1.0]), r"y0 must have 2 values per state.*\(3,\)"),
        (lambda m: m.predict([[1.0]], [1.0]), r"y0 must have 2 values per state.*\(1, 1\)"),
        (lambda m: m.predict([1.0, NAN], [1.0]), "y0 must be finite"),
        (lambda m: m.predict(["a", "b"], [1.0]), "y0 must be numbers"),
        (lambda m: m.predict(np.ones((2, 2, 2)), [1.0]), "y0 must have shape"),
        (lambda m: m.predict([1.0, 2.0], [NAN]), "times must be finite"),
        (lambda m: m.predict([1.0, 2.0], 3.0), r"times must have shape \(Q,\)"),
        (lambda m: m.predict([1.0, 2.0], [[1.0]]), r"times must have shape \(Q,\)"),
        (lambda m: m.predict(np.ones((3, 4, 5))), "X must have 2 channels"),
        (lambda m: m.score(spirals(dim=3)), "X must have 2 channels"),
        (lambda m: m.vector_field([1.0]), "y must have 2 values per state"),
    ],
)
def test_dynamics_regressor_rejects_invalid_queries(spiral, call, message):
    with pytest.raises(ValueError, match=message):
        call(spiral)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"goal": [0, 0, 0]}, r"goal must have shape \(2,\)"),
        ({"goal": [0, NAN]}, "goal must be finite"),
        ({"goal": ["x", "y"]}, "goal must be numbers"),
        ({"goal": "middle"}, "'goal' parameter"),
        ({"ode": "morf"}, "did you mean 'morph'"),
        ({"augment": -1}, "'augment' parameter"),
        ({"scale": "big"}, "'scale' parameter"),
        ({"resume": True, "random_state": None}, "random_state must be an integer to resume"),
        ({"device": "nowhere"}, "device must be .*, got 'nowhere'"),
    ],
)
def test_dynamics_regressor_rejects_invalid_parameters(wrong, message):
    with pytest.raises(ValueError, match=message):
        DynamicsRegressor(**TINY | wrong).fit(spirals())


def test_dynamics_regressor_not_fitted_error(tmp_path):
    for method in ("predict", "base_trajectory"):
        with pytest.raises(NotFittedError):
            getattr(DynamicsRegressor(), method)([0.0], [1.0])
    for method in ("vector_field", "score", "save", "morph"):
        with pytest.raises(NotFittedError):
            getattr(DynamicsRegressor(), method)([0.0])


# Training


def test_dynamics_regressor_random_state_is_reproducible():
    first, second = (DynamicsRegressor(**TINY).fit(spirals()) for _ in range(2))
    np.testing.assert_array_equal(first.predict([1, 0], [1.0]), second.predict([1, 0], [1.0]))
    other = DynamicsRegressor(**TINY | {"random_state": 1}).fit(spirals())
    assert not np.array_equal(first.predict([1, 0], [1.0]), other.predict([1, 0], [1.0]))


def test_dynamics_regressor_validation_selects_epoch_and_refits():
    max_epochs = []
    options = {
        "validation_fraction": 0.25,
        "callbacks": [lambda h, s: max_epochs.append(s.max_epochs)],
    }
    model = DynamicsRegressor(**TINY | {"max_epochs": 12} | options).fit(spirals(8))
    assert (model.n_train_, model.n_val_) == (6, 2)
    scores = [row["validation_score"] for row in model.history_]
    assert model.best_epoch_ == 1 + int(np.argmax(scores)) and len(scores) == 12
    assert max_epochs.count(12) >= 12 and len(max_epochs) == 12 + model.best_epoch_
    alone = DynamicsRegressor(**TINY | {"max_epochs": 12, "refit": False} | options)
    assert not np.array_equal(
        alone.fit(spirals(8)).predict([1, 0], [1.0]), model.predict([1, 0], [1.0])
    )


def test_dynamics_regressor_patience_and_budget_end_training():
    patient = DynamicsRegressor(
        **TINY | {"max_epochs": 500, "patience": 3, "validation_fraction": 0.25, "refit": False}
    ).fit(spirals(8))
    assert patient.n_iter_ < 500
    hurried = DynamicsRegressor(**TINY | {"max_epochs": 10**6, "budget": 0.2}).fit(spirals())
    assert 1 <= hurried.n_iter_ < 10**6


def test_dynamics_regressor_resumes_after_interrupt(tmp_path):
    class Interrupt(Exception):
        pass

    def stop(history, settings):
        if len(history.rows) == 4:
            raise Interrupt

    options = TINY | {"max_epochs": 8, "checkpoint": tmp_path / "state.pt"}
    with pytest.raises(Interrupt):
        DynamicsRegressor(**options, callbacks=[stop]).fit(spirals())
    model = DynamicsRegressor(**options, resume=True).fit(spirals())
    whole = DynamicsRegressor(**TINY | {"max_epochs": 8}).fit(spirals())
    np.testing.assert_array_equal(model.predict([1, 0], [1.0]), whole.predict([1, 0], [1.0]))
    assert len(model.history_) == 8


def test_dynamics_regressor_divergence_raises_training_error():
    with pytest.raises(TrainingError):
        DynamicsRegressor(**TINY | {"learning_rate": 1e30, "max_epochs": 20}).fit(spirals())


# Files and tools


def test_dynamics_regressor_rejects_files_of_other_models(tmp_path, spiral):
    path = spiral.save(tmp_path / "dynamics.safetensors")
    with pytest.raises(ValueError, match="must hold a LatentODEReconstructor"):
        LatentODEReconstructor.load(path)
    series = LatentODEReconstructor(hidden_dim=4, latent_dim=4, max_epochs=1).fit(spirals())
    with pytest.raises(ValueError, match="must hold a DynamicsRegressor, got a Latent"):
        DynamicsRegressor.load(series.save(tmp_path / "series.safetensors"))
    with pytest.raises(ValueError, match="ode must be a registered name to be saved"):
        DynamicsRegressor(**TINY | {"ode": LinearFlow, "ode_options": None}).fit(spirals()).save(
            tmp_path / "function.safetensors"
        )


def test_dynamics_regressor_pickle_joblib_and_clone(spiral, tmp_path):
    joblib.dump(spiral, tmp_path / "model.joblib")
    for copy in (pickle.loads(pickle.dumps(spiral)), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(copy.predict([1, 0], [1.0]), spiral.predict([1, 0], [1.0]))
    assert not hasattr(clone(spiral), "model_")


def test_dynamics_regressor_grid_search_and_cross_val_score():
    X = as_series([v[:10] for _, v in spirals(6)])
    search = GridSearchCV(DynamicsRegressor(**TINY), {"restarts": [0, 1]}, cv=2).fit(X)
    assert (search.cv_results_["mean_test_score"] < 0).all()
    assert (cross_val_score(DynamicsRegressor(**TINY), spirals(6), cv=3) < 0).all()


# The parts


@pytest.mark.parametrize(("dim", "augment"), [(2, 0), (2, 2), (3, 0), (3, 3), (2, 3)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_initialize_linear_matches_matrix(float64, dim, augment, sign):
    matrix = torch.diag(torch.tensor([-0.5, -0.5, -1.0])[:dim])
    matrix[0, 1], matrix[1, 0] = -2.0 * sign, 3.0 * sign
    flow = LinearFlow(dim + augment)
    initialize_linear(flow, matrix)
    # A real mode among pairs rotates slightly.
    tolerance = 1e-10 if dim == 2 or not augment else 0.5
    assert (flow.matrix().detach()[:dim, :dim] - matrix).abs().max() < tolerance


def test_initialize_linear_of_stable_and_real_flows(float64):
    growing = torch.tensor([[0.3, -2.0], [2.0, 0.3]])
    stable, real = LinearFlow(4, stable=True), LinearFlow(4, spectrum="real")
    for flow in (stable, real):
        initialize_linear(flow, growing)
    assert (stable.rates < 0).all()
    assert 2.0 in stable.frequencies.detach().abs().round(decimals=6)
    assert float(real.rates.detach().max()) == pytest.approx(0.3)
    explosive = LinearFlow(4)
    initialize_linear(explosive, 50 * torch.eye(2))
    assert explosive.rates.max() <= 1.0


def test_fit_matrix_recovers_matrix(float64):
    matrix = torch.tensor([[-0.1, -2.0], [1.0, -0.3]])
    times = torch.linspace(0, 2, 200)
    flow = torch.linalg.matrix_exp(times[:, None, None] * matrix) @ torch.tensor([1.0, 2.0])
    batch = as_series([(times.numpy(), flow.numpy())], dtype=torch.float64)
    states, velocity, _ = finite_differences(batch)
    actual = fit_matrix(states, velocity)
    assert (actual - matrix).abs().max() < 0.01


@pytest.mark.parametrize("loss", ["mae", "mse"])
def test_rollout_loss_ignores_masked_values(loss):
    X = as_series([v for _, v in spirals(3)])
    X.mask[0, 5:8, 1] = False
    model = DynamicsModel(LinearFlow(4), 2)
    function = RolloutLoss(loss, velocity_weight=0.1, restarts=3, start_noise=0.1)
    losses = []
    for junk in (0.0, 1e30):  # whose square overflows
        X.values[~X.mask] = junk
        step = Step(0.5, torch.Generator().manual_seed(0), np.random.RandomState(0))
        losses.append(float(function(model, Examples(X), step).total.detach()))
    assert losses[0] == losses[1]


def test_rollout_loss_start_shift_fades_linearly():
    X = as_series([v[:10] for _, v in spirals(3)])
    starts = RolloutLoss(start_spread=1.0).draw_starts(X, torch.Generator().manual_seed(0))
    shift = starts.target - X.values
    torch.testing.assert_close(starts.states, starts.target[:, 0])
    torch.testing.assert_close(shift[:, -1], torch.zeros(3, 2))
    torch.testing.assert_close(shift[:, 3], shift[:, 0] * 6 / 9)
    assert (shift[:, 0].abs() > 1e-3).all()
    assert torch.equal(DynamicsModel(LinearFlow(4), 2)(X).target, X.values)


def test_rollout_loss_spread_fade_is_a_power():
    X = as_series([v[:10] for _, v in spirals(3)])
    loss = RolloutLoss(start_spread=1.0, spread_fade=3.0)
    shift = loss.draw_starts(X, torch.Generator().manual_seed(0)).target - X.values
    torch.testing.assert_close(shift[:, 3], shift[:, 0] * (6 / 9) ** 3)


def make_converging(power, n=5, *, seed=0):
    """Trajectories whose differences fade by a power, each with its own times and length."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        progress = np.r_[0, np.sort(rng.uniform(0, 1, 300 + 10 * i)), 1]
        mean = np.stack([np.sin(4 * progress), np.cos(3 * progress)], 1)
        path = mean + rng.normal(size=2) * ((1 - progress) ** power)[:, None]
        path[rng.integers(1, 300, 20), 0] = NAN
        made.append((5 + (1 + i) * progress, path))
    return made


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0, 4.0])
def test_measure_fade_recovers_power(power):
    # The powers that are tried are 9 % apart.
    assert measure_fade(as_series(make_converging(power))) == pytest.approx(power, rel=0.05)


def test_measure_fade_weights_equal_copies():
    one, two = make_converging(1.0), make_converging(4.0, seed=1)
    weight = torch.tensor([3.0] * 5 + [1.0] * 5)
    copies = as_series([*one, *one, *one, *two])
    assert measure_fade(as_series([*one, *two]), weight) == measure_fade(copies)
    nothing = torch.tensor([1.0] * 5 + [0.0] * 5)
    assert measure_fade(as_series([*one, *two]), nothing) == measure_fade(as_series(one))


def test_measure_fade_without_information_is_one():
    path = make_converging(2.0)[0]
    assert measure_fade(as_series([path])) == 1.0
    assert measure_fade(as_series([path, path])) == 1.0
    for path in make_converging(2.0, n=8):  # copies differ by rounding only
        copies = as_series([path] * 3, dtype=torch.float64)
        assert measure_fade(copies, torch.tensor([0.1, 0.2, 0.7])) == 1.0
    assert measure_fade(as_series([([0.0], [[1.0]]), ([0.0], [[2.0]])])) == 1.0


def test_dynamics_regressor_measures_spread_fade_unless_given(monkeypatch):
    X, losses, train = make_converging(4.0, n=3), [], dynamics.train

    def recording(model, loss, *args, **options):
        losses.append(loss)
        return train(model, loss, *args, **options)

    monkeypatch.setattr(dynamics, "train", recording)
    params = {**TINY, "start_spread": 0.1, "scale": "none"}
    measured = DynamicsRegressor(**params).fit(X)
    assert losses[-1].spread_fade == pytest.approx(4.0, rel=0.05)
    given = DynamicsRegressor(**params, spread_fade=1.5).fit(X)
    assert losses[-1].spread_fade == 1.5
    assert given.history_ != measured.history_
    with pytest.raises(ValueError, match="spread_fade"):
        DynamicsRegressor(spread_fade=0).fit(X)


def test_random_rows_never_start_at_an_incomplete_row_with_a_future():
    """A restart where a channel is missing would take it for zero."""
    times = np.arange(4.0)
    values = np.array([[NAN, 1.0], [NAN, 2.0], [3.0, NAN], [4.0, 5.0]])
    batch = as_series([(times, values)])
    rows = random_rows(batch, 5, torch.Generator().manual_seed(0))
    starts = starts_at(batch, rows)
    complete = batch.mask.all(-1)[0][rows]
    assert (complete | ~starts.mask.any((1, 2))).all()
