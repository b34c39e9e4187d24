"""A model file holds everything, is whole or absent, and is never trusted."""

import json
import os
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_estimators import ALL, TINY, sines

from latent_morph import LatentODEClassifier, LatentODEPointClassifier, LatentODEReconstructor
from latent_morph.flows import LinearFlow

MORPH = {**TINY, "ode": "morph", "max_epochs": 2}


@pytest.fixture(scope="module")
def model():
    return LatentODEClassifier(**TINY).fit(*sines(12))


@pytest.fixture
def path(model, tmp_path):
    return model.save(tmp_path / "model.safetensors")


@pytest.mark.parametrize("kind", ALL)
def test_a_loaded_model_is_the_saved_one(kind, tmp_path):
    X, y = sines(12)
    model = kind(**MORPH, checkpoint=tmp_path / "run.pt").fit(X, y)
    path = model.save(tmp_path / "model.safetensors")
    state = torch.get_rng_state()
    copy = kind.load(path)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(copy) is kind
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    np.testing.assert_array_equal(
        copy.reconstruct(X, [0.5], return_std=True), model.reconstruct(X, [0.5], return_std=True)
    )
    wanted = model.get_params() | {"checkpoint": str(tmp_path / "run.pt")}
    assert copy.get_params() == wanted
    learned = {name for name in vars(model) if name.endswith("_")}
    assert learned == {name for name in vars(copy) if name.endswith("_")}
    for name in learned - {"model_", "scaler_", "classes_"}:
        assert getattr(copy, name) == getattr(model, name), name
    assert copy.scaler_.state() == model.scaler_.state()
    assert copy.fit(X, y).n_iter_ == 2  # and it can learn anew


def test_labels_of_points_survive(tmp_path):
    X = np.random.default_rng(0).random((12, 4))
    model = LatentODEPointClassifier(**TINY).fit(X, X > 0.5)
    copy = LatentODEPointClassifier.load(model.save(tmp_path / "m"))
    assert copy.predict(X).shape == (12, 4)
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "bcd"],
        [3, 7],
        [0.0, 1.0],
        [False, True],
        pd.Series(["x", "y"]),
        np.array([1, 2], "i2"),
    ],
    ids=str,
)
def test_classes_keep_their_kind(labels, tmp_path):
    y = np.asarray(labels)[np.arange(12) % 2]
    model = LatentODEClassifier(**TINY).fit(sines(12)[0], y)
    copy = LatentODEClassifier.load(model.save(tmp_path / "m"))
    assert copy.classes_.dtype == model.classes_.dtype == y.dtype
    np.testing.assert_array_equal(copy.classes_, model.classes_)


@pytest.mark.parametrize(
    "params",
    [
        {"class_weight": {3: 1.0, 7: 2.0}},
        {"class_weight": "balanced"},
        {"latent_dim": np.int64(3), "learning_rate": np.float32(0.5)},
        {"random_state": np.random.RandomState(0)},
        {"callbacks": [lambda *_: None]},
        {"ode": "morph", "ode_options": {"goal": torch.ones(4), "inn": {"blocks": 1}}},
    ],
    ids=lambda params: next(iter(params)),
)
def test_parameters_of_many_kinds_are_held(params, tmp_path):
    X, y = sines(12)[0], np.array([3, 7])[np.arange(12) % 2]
    model = LatentODEClassifier(**{**TINY, **params}).fit(X, y)
    copy = LatentODEClassifier.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert copy.class_weight == model.class_weight


def test_columns_of_a_frame_are_remembered(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).random((12, 4)), columns=list("abcd"))
    model = LatentODEClassifier(**TINY).fit(frame, np.arange(12) % 2)
    copy = LatentODEClassifier.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(copy.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        copy.predict(frame.rename(columns={"a": "z"}))


# Refusals


def rewritten(path, tensors=None, **changes):
    """The file with parts of its header replaced."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        held = {name: file.get_tensor(name) for name in file.keys()}
    for key in [key for key, value in changes.items() if value is None]:
        del header[key], changes[key]
    save_file(held if tensors is None else tensors, path, metadata=header | changes)
    return path


def edited(path, **changes):
    """The file with entries of its config replaced; `params` are merged."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    changes["params"] = config["params"] | changes.get("params", {})
    return rewritten(path, config=json.dumps(config | changes))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="no complete safetensors file"):
        LatentODEClassifier.load(path)


def test_other_files_are_refused(path, tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="was not written by latent_morph"):
        LatentODEClassifier.load(tmp_path / "foreign")
    (tmp_path / "text").write_text("a model, honestly")
    with pytest.raises(ValueError, match="no complete safetensors file"):
        LatentODEClassifier.load(tmp_path / "text")
    for missing in (tmp_path / "absent", tmp_path):
        with pytest.raises(FileNotFoundError, match="no model file at"):
            LatentODEClassifier.load(missing)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": "99", "config": "of the future"}, "format version 99; .* reads up to 1"),
        ({"version": "one"}, "damaged header"),
        ({"version": None}, "damaged header"),
        ({"config": "{"}, "damaged header"),
        ({"config": None}, "damaged header"),
        ({"config": "[]"}, "does not hold a complete model"),
        ({"tensors": {"weight": torch.ones(2)}}, "does not hold a complete model"),
    ],
)
def test_a_damaged_header_is_refused(path, changes, match):
    with pytest.raises(ValueError, match=match):
        LatentODEClassifier.load(rewritten(path, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"latent_dim": 5}},
        {"params": {"latent_dim": "many"}},
        {"params": {"ode": "os.system"}},
        {"params": {"ode": ["morph"]}},
        {"params": {"ode_options": {"shell": "ls"}}},
        {"params": {"batch_size": "x"}},
        {"n_channels": 3},
        {"scaler": {}},
        {"history": None},
        {"classes": ["only one"]},
        {"classes_dtype": "nonsense"},
        {"estimator": ["LatentODEClassifier"]},
    ],
    ids=str,
)
def test_an_edited_config_is_refused(path, changes):
    with pytest.raises(ValueError, match="does not hold a complete model"):
        LatentODEClassifier.load(edited(path, **changes))


def test_a_model_of_another_class_is_refused(path):
    for kind in (LatentODEPointClassifier, LatentODEReconstructor):
        with pytest.raises(
            ValueError, match=f"holds a LatentODEClassifier, not a {kind.__name__}"
        ):
            kind.load(path)


@pytest.mark.parametrize("name", ["os.system", "antigravity", "sklearn.svm.SVC", "LatentODEBase"])
def test_names_in_a_file_import_nothing(path, name):
    before = set(sys.modules)
    with pytest.raises(ValueError, match="does not hold a complete model"):
        LatentODEClassifier.load(edited(path, estimator=name))
    assert "antigravity" not in sys.modules and set(sys.modules) == before


# Saving


def test_functions_cannot_be_saved(tmp_path):
    X, y = sines(12)
    settings = {**TINY, "ode_options": None}
    for params in ({"ode": LinearFlow}, {"encoder_ode": LinearFlow}):
        model = LatentODEClassifier(**{**settings, **params}).fit(X, y)
        with pytest.raises(ValueError, match=f"{next(iter(params))} is a function"):
            model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_options_that_no_file_holds_are_refused(model, tmp_path):
    model = LatentODEClassifier(**TINY).fit(*sines(12))
    model.ode_options = {"thing": object()}
    with pytest.raises(ValueError, match="object object .* is nothing that a model file can hold"):
        model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_saving_where_one_cannot_leaves_nothing_behind(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        model.save(tmp_path / "absent" / "model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("here first")
    with pytest.raises(OSError, match="file/model"):
        model.save(tmp_path / "file" / "model")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        model.save(tmp_path / "folder")
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


def test_a_folder_that_is_not_writable_is_left_alone(model, tmp_path, monkeypatch):
    def denied(path, *args):  # root, who runs many a test, may write anywhere
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", denied)
        with pytest.raises(PermissionError, match="model"):
            model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_keeps_the_file_that_was_there(model, path, monkeypatch):
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="no space"):
        model.save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
