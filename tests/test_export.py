"""Exported programs match the estimators, in the units of the data, for any N and T."""

import json
import sys

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from test_estimators import SMALL, TINY, decays, rising, sines

from latent_morph import (
    DynamicsRegressor,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
)
from latent_morph.estimators.programs import classifier_program, reconstructor_program
from latent_morph.flows import LinearFlow
from latent_morph.io.export import series_inputs

EPOCH = 1.7e9  # seconds since 1970: single precision would lose minutes
SIZES = {**SMALL, "max_epochs": 2, "hidden_dim": 6, "encoder_options": {"layers": 2}}
LINEAR = {**TINY, "encoder_options": {"layers": 1}, "max_epochs": 2}  # quick to trace
SIZES["ode_options"] = {"inn": {"blocks": 1, "width": 4}}


def long_series(n_times, n_channels=1, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n_times, n_channels))
    values[rng.random(values.shape) < 0.2] = np.nan
    return np.sort(rng.uniform(0, 6, n_times)), values


def shifted(X, start):
    return [(times + start, values) for times, values in X]


def onnx_program(path):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def torch_program(path):
    module = torch.export.load(path).module()

    def call(inputs):
        answer = module(*map(torch.tensor, inputs.values()))
        return [part.numpy() for part in (answer if isinstance(answer, tuple) else [answer])]

    return call


LOADERS = {"onnx": onnx_program, "torch": torch_program}


# Programs before export


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"encoder_options": {"layers": 2, "pool": 3}},
        {"encoder_options": {"pool": 4}, "head": "trajectory", "ode": "morph-real"},
        {"ode": "linear", "ode_options": None, "latent_dim": 3},
        {"ode": "linear", "ode_options": {"eigenvectors": "identity"}, "hidden_dim": 5},
        {"ode": "morph-stable", "latent_dim": 1, "ode_options": None},
        {"ode_options": {"goal": [1.0, 0.0, -1.0, 0.5], "dense_output": 1e-6}},
        {"time_origin": "absolute"},
        {"dtype": "float64"},
    ],
    ids=str,
)
def test_program_module_matches_classifier(params):
    X, y = sines(12)
    X = shifted(X, EPOCH)
    model = LatentODEClassifier(**{**SIZES, **params}).fit(X, y)
    module = model._program().module
    unobserved = (np.array([EPOCH, EPOCH + 1]), np.full((2, 1), np.nan))
    mixed = [*X[:5], *shifted([long_series(40), long_series(1)], EPOCH), unobserved]
    for series in (mixed, mixed[:1], mixed[-2:-1]):
        with torch.no_grad():
            output = module(*map(torch.from_numpy, series_inputs(series).values()))
        np.testing.assert_allclose(output, model.predict_proba(series), atol=2e-6)


def test_program_module_ignores_unobserved_values():
    X, y = sines(12)
    module = LatentODEClassifier(**SIZES).fit(X, y)._program().module
    inputs = series_inputs(X)
    with_nan = inputs | {"values": np.where(inputs["mask"], inputs["values"], np.nan)}
    unmasked = with_nan | {"mask": np.ones_like(inputs["mask"])}
    with torch.no_grad():
        outputs = [
            module(*map(torch.from_numpy, arrays.values()))
            for arrays in (inputs, with_nan, unmasked)
        ]
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


def test_series_inputs_mark_padding_with_nan_times():
    inputs = series_inputs([(np.array([1.0, 2.0]), np.array([np.nan, 5.0])), [7.0]][:1] * 2)
    assert {name: array.dtype.name for name, array in inputs.items()} == {
        "values": "float64",
        "times": "float64",
        "mask": "bool",
    }
    ragged = series_inputs([np.ones(3), np.ones(1)])
    assert np.isnan(ragged["times"]).tolist() == [[False] * 3, [False, True, True]]


# Files


@pytest.mark.slow
@pytest.mark.parametrize("format", LOADERS)
def test_export_classifier(tmp_path, format):
    X, y = sines(12)
    params = SIZES | {"encoder_options": {"pool": 2}} if format == "onnx" else LINEAR
    model = LatentODEClassifier(**params).fit(X, y)
    path = model.export(tmp_path / f"model.{'pt2' if format == 'torch' else format}", format)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    program = LOADERS[format](path)
    for series in (X, X[:1], [long_series(1)], [long_series(2), long_series(400)]):
        (answer,) = program(series_inputs(series))
        np.testing.assert_allclose(answer, model.predict_proba(series), atol=1e-5)
    if format == "onnx":
        facts = onnx_metadata(path)
    else:
        kept = {"latent_morph.json": ""}
        torch.export.load(path, extra_files=kept)
        facts = {name: json.loads(fact) for name, fact in json.loads(*kept.values()).items()}
    assert facts["classes"] == ["fast", "slow"]
    assert facts["inputs"]["times"]["shape"] == ["N", "T"]
    assert facts["outputs"] == {"probabilities": ["N", 2]}


def onnx_metadata(path):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    values = model.graph.input[0].type.tensor_type.shape.dim
    assert [axis.dim_param for axis in values] == ["N", "T", ""]
    return {entry.key: json.loads(entry.value) for entry in model.metadata_props}


@pytest.mark.slow
def test_export_point_classifier_with_absolute_times(tmp_path):
    X, y = rising(12)
    X = shifted(X, EPOCH)
    model = LatentODEPointClassifier(**LINEAR, time_origin="absolute").fit(X, y)
    path = model.export(tmp_path / "model.onnx")
    (answer,) = onnx_program(path)(series_inputs(X))
    for actual, expected in zip(answer, model.predict_proba(X), strict=True):
        np.testing.assert_allclose(actual[: len(expected)], expected, atol=1e-5)
        assert np.isnan(actual[len(expected) :]).all()


def test_program_module_averages_points_for_one_label_per_series():
    X, y = sines(12)
    model = LatentODEPointClassifier(**SIZES).fit(X, y)
    program = model._program()
    with torch.no_grad():
        answer = program.module(*map(torch.from_numpy, series_inputs(X).values()))
    assert program.outputs == {"probabilities": ("N", 2)}
    np.testing.assert_allclose(answer, model.predict_proba(X), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("float64", 1e-11)])
def test_export_reconstructor(tmp_path, dtype, atol):
    X = decays(12)
    model = LatentODEReconstructor(**LINEAR, dtype=dtype).fit(X)
    path = model.export(tmp_path / "model.onnx", n_samples=4)
    query = np.linspace(0, 4, 12 * 5).reshape(12, 5)
    actual = onnx_program(path)(series_inputs(X) | {"query_times": query})
    expected = model.reconstruct(X, query, n_samples=4, return_std=True)
    np.testing.assert_allclose(actual, expected, atol=atol)


def test_reconstructor_program_without_samples():
    X = decays(12)
    model = LatentODEReconstructor(**SIZES).fit(X)
    module = reconstructor_program(model.model_, model.scaler_, model._posterior_noise(0)).module
    inputs = series_inputs(X) | {"query_times": np.ones((12, 1))}
    with torch.no_grad():
        actual = module(*map(torch.from_numpy, inputs.values()))
    expected = model.reconstruct(X, [1.0], n_samples=0, return_std=True)
    np.testing.assert_allclose(torch.stack(actual), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("format", "scale"), [("onnx", "log"), ("torch", "standard")])
def test_export_dynamics_regressor(tmp_path, format, scale):
    t = np.linspace(0, 4, 30)
    turn = np.exp(-t)[:, None] * np.c_[np.cos(t), np.sin(t)]
    options = {"ode_options": {"inn": {"blocks": 1, "width": 8}}, "stable": True, "goal": [0, 0]}
    model = DynamicsRegressor(**options, scale=scale, max_epochs=5, random_state=0)
    model.fit([(t, turn), (t, 2 * turn)])
    path = model.export(tmp_path / "model.pt2", format)
    starts = np.random.default_rng(0).standard_normal((4, 2))
    program = LOADERS[format](path)
    for y0, times in ((starts, np.linspace(-1, 9, 40)), (starts[:1], np.array([2.0]))):
        (actual,) = program({"y0": y0, "times": times})
        np.testing.assert_allclose(actual, model.predict(y0, times), atol=1e-9)


# Errors


@pytest.mark.parametrize("ode", ["dopri5", "rk4", "morph-neural"])
def test_export_rejects_solvers(tmp_path, ode):
    X, y = sines(12)
    series = LatentODEClassifier(**TINY | {"ode": ode}).fit(X, y)
    state = DynamicsRegressor(ode=ode, max_epochs=1).fit(decays(3))
    for model in (series, state):
        with pytest.raises(
            ValueError,
            match="ode must be a closed form to be exported: .*whose number of steps depends",
        ):
            model.export(tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("encoder", "kind"),
    [
        ("gru-ode", "GRUODEEncoder"),
        ("gru-decay", "GRUDecayEncoder"),
        ("attention", "AttentionEncoder"),
    ],
)
def test_export_rejects_other_encoders(tmp_path, encoder, kind):
    model = LatentODEClassifier(**TINY | {"encoder": encoder}).fit(*sines(12))
    with pytest.raises(ValueError, match=f"encoder must be 'morph' to be exported, got a {kind}"):
        model.export(tmp_path / "model.onnx")


def test_export_rejects_unknown_format_and_absent_folder(tmp_path):
    model = LatentODEClassifier(**TINY).fit(*sines(12))
    with pytest.raises(ValueError, match="format must be one of onnx, torch, got 'pickle'"):
        model.export(tmp_path / "model", "pickle")
    with pytest.raises(FileNotFoundError):
        model.export(tmp_path / "absent" / "model.onnx")


def test_export_without_onnx_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    model = LatentODEClassifier(**TINY).fit(*sines(12))
    with pytest.raises(ImportError, match=r"latent_morph\[export\]"):
        model.export(tmp_path / "model.onnx")


def test_export_rejects_unfitted_estimator(tmp_path):
    for kind in (LatentODEClassifier, LatentODEReconstructor, DynamicsRegressor):
        with pytest.raises(NotFittedError):
            kind().export(tmp_path / "model.onnx")


def test_classifier_program_accepts_closed_form_recipe():
    model = LatentODEClassifier(**TINY | {"ode": LinearFlow}).fit(*sines(12))
    assert classifier_program(model.model_, model.scaler_, model.classes_).inputs


def test_export_takes_a_model_with_dense_output(tmp_path):
    options = {"dense_output": 1e-6, "inn": {"blocks": 1, "width": 8}}
    model = DynamicsRegressor(ode_options=options, max_epochs=1, random_state=0).fit(decays(3))
    program = torch.export.load(model.export(tmp_path / "model.pt2", "torch")).module()
    starts, times = np.ones((2, model.n_channels_)), np.linspace(0, 2, 300)
    states = program(torch.from_numpy(starts), torch.from_numpy(times)).numpy()
    np.testing.assert_allclose(states, model.predict(starts, times), atol=1e-5)
    assert model.model_.flow.dense_output == 1e-6  # only the exported copy is exact
