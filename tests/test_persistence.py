"""A model file holds everything, is whole or absent, and is never trusted."""

import json
import os
import pickle
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from test_estimators import ALL, TINY, sines

from benchmarks.memory import peak_above
from latent_morph import (
    DynamicsRegressor,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
)
from latent_morph.flows import LinearFlow
from latent_morph.io.model_file import checksum, read_model, write_model

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


@pytest.mark.parametrize("kind", ALL)
def test_double_precision_survives_in_files_pickles_and_checkpoints(kind, tmp_path):
    X, y = sines(12)
    settings = {**MORPH, "dtype": "float64", "checkpoint": tmp_path / "run.pt"}
    model = kind(**settings).fit(X, y)
    wanted = model.reconstruct(X, [0.5])
    path = model.save(tmp_path / "model.safetensors")
    resumed = kind(**settings, resume=True).fit(X, y)
    for copy in (kind.load(path), pickle.loads(pickle.dumps(model)), resumed):
        assert {p.dtype for p in copy.model_.parameters()} == {torch.float64}
        np.testing.assert_array_equal(copy.reconstruct(X, [0.5]), wanted)
    with pytest.raises(ValueError, match="cannot be continued from") as problem:
        kind(**settings | {"dtype": "float32"}, resume=True).fit(X, y)
    assert "must be of torch.float32, got torch.float64" in str(problem.value.__cause__)


def test_files_from_before_there_was_a_precision_are_read(path, model):
    tensors, config, _ = read_model(path)
    for name in ("dtype", "sample_z0"):
        del config["params"][name]
    copy = LatentODEClassifier.load(write_model(path, tensors, config))
    assert copy.dtype == "float32" and copy.sample_z0
    X, _ = sines(12)
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


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


def rewritten(path, tensors=None, *, forged=False, **changes):
    """The file with parts of its header replaced; a forger also computes the checksum anew."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        held = {name: file.get_tensor(name) for name in file.keys()}
    held = held if tensors is None else tensors
    header = {key: value for key, value in (header | changes).items() if value is not None}
    if forged:
        header["sha256"] = checksum(held, header["config"], int(header["version"]))
    save_file(held, path, metadata=header)
    return path


def edited(path, *, forged=True, **changes):
    """The file with entries of its config replaced; `params` are merged."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    changes["params"] = config["params"] | changes.get("params", {})
    return rewritten(path, config=json.dumps(config | changes), forged=forged)


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
        ({"version": "99", "config": "of the future"}, "format version 3 to 4, got 99: update"),
        ({"version": "one"}, "is damaged: .*invalid literal"),
        ({"version": None}, "is damaged: KeyError"),
        ({"version": "3"}, "so it was changed"),
        ({"sha256": None}, "is damaged: KeyError"),
        ({"sha256": "0" * 64}, "so it was changed"),
        ({"config": "{"}, "so it was changed"),
        ({"config": None}, "is damaged: KeyError"),
        ({"tensors": {"weight": torch.ones(2)}}, "so it was changed"),
        ({"forged": True, "config": "{"}, "is damaged: JSONDecodeError"),
        ({"forged": True, "config": "[" * 10**5}, "is damaged: RecursionError"),
        ({"forged": True, "config": "[]"}, "is damaged: .*JSON object, got list"),
        ({"forged": True, "tensors": {"w": torch.ones(2)}}, "does not hold a complete model"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
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
def test_a_forged_config_is_refused(path, changes):
    with pytest.raises(ValueError, match=r"model\.safetensors does not hold a complete model"):
        LatentODEClassifier.load(edited(path, **changes))


def test_an_edit_is_noticed_even_where_it_makes_sense(path):
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: .*so it was changed"):
        LatentODEClassifier.load(edited(path, forged=False, params={"batch_size": 32}))


@pytest.mark.parametrize("huge", [10**7, 10**30])
@pytest.mark.parametrize(
    "where",
    [
        "n_channels",
        "latent_dim",
        "hidden_dim",
        "decoder_width",
        "decoder_depth",
        "layers",
        "modes",
    ],
)
def test_no_file_can_fill_the_memory(path, where, huge):
    change = {where: huge} if where == "n_channels" else {"params": {where: huge}}
    if where in ("layers", "modes"):
        change = {"params": {"encoder_options": {where: huge}}}
    edited(path, **change)
    refused = []

    def attempt():
        with pytest.raises(ValueError, match="does not hold a complete model") as problem:
            LatentODEClassifier.load(path)
        refused.append(str(problem.value))

    assert (peak_above(attempt) or 0.0) < 50  # megabytes
    assert huge > 10**18 or "ten times what the file holds" in refused[0]


def test_nor_can_its_options_or_labels(tmp_path):
    model = LatentODEClassifier(**MORPH).fit(*sines(12))
    for options in ({"blocks": 10**9}, {"width": 10**9}, {"depth": 10**9}):
        path = model.save(tmp_path / "m")
        with pytest.raises(ValueError, match="ten times what the file holds"):
            LatentODEClassifier.load(edited(path, params={"ode_options": {"inn": options}}))
    path = model.save(tmp_path / "m")
    with pytest.raises(ValueError, match="classes must fit into"):
        LatentODEClassifier.load(edited(path, classes_dtype="<U90000000"))


def test_every_flipped_byte_is_noticed_or_harmless(tmp_path):
    path = tmp_path / "m"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}
    config = {"estimator": "X", "params": {"é": [1, None, 0.5]}}
    write_model(path, tensors, config)
    content = path.read_bytes()
    noticed = 0
    for place in range(len(content)):
        for flip in (0x01, 0x20, 0xFF):
            changed = bytearray(content)
            changed[place] ^= flip
            path.write_bytes(changed)
            try:
                held, said, _ = read_model(path)
            except ValueError as problem:
                assert str(problem).startswith(str(path))
                noticed += 1
            else:
                assert said == config and held.keys() == tensors.keys()
                assert all(torch.equal(held[name], tensors[name]) for name in tensors)
    assert noticed > 0.99 * 3 * len(content)


def test_flipped_bytes_of_a_whole_model_are_noticed(path):
    content = path.read_bytes()
    for place in range(0, len(content), 101):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            LatentODEClassifier.load(path)


@pytest.mark.parametrize("version", ["1", "2"])
def test_files_older_than_0_1_are_refused(path, version):
    words = f"must be of format version 3 to 4, got {version}: fit and save the model again"
    with pytest.raises(ValueError, match=words):
        LatentODEClassifier.load(rewritten(path, version=version, sha256=None))


def test_files_without_a_checksum_are_refused(path):
    with pytest.raises(ValueError, match="is damaged: KeyError.'sha256'"):
        LatentODEClassifier.load(rewritten(path, sha256=None))


def test_a_device_that_is_not_there_is_no_fault_of_the_file(path):
    with pytest.raises(ValueError, match="device 'abacus' cannot be used"):
        LatentODEClassifier.load(path, device="abacus")


def test_a_model_of_another_class_is_refused(path):
    for kind in (LatentODEPointClassifier, LatentODEReconstructor):
        with pytest.raises(
            ValueError, match=f"must hold a {kind.__name__}, got a LatentODEClassifier"
        ):
            kind.load(path)


@pytest.mark.parametrize("name", ["os.system", "antigravity", "sklearn.svm.SVC", "LatentODEBase"])
def test_names_in_a_file_import_nothing(path, name):
    before = set(sys.modules)
    with pytest.raises(ValueError, match="does not hold a complete model"):
        LatentODEClassifier.load(edited(path, estimator=name))
    assert "antigravity" not in sys.modules and set(sys.modules) == before


# Elsewhere

ELSEWHERE = """
import sys
import numpy as np, torch
torch.set_num_threads(int(sys.argv[1]))
from latent_morph import LatentODEClassifier
X = np.load(sys.argv[3])
np.save(sys.argv[4], LatentODEClassifier.load(sys.argv[2]).predict_proba(X))
"""


def test_a_model_answers_the_same_on_other_threads(tmp_path):
    assert torch.get_num_threads() == 1
    X = np.random.default_rng(0).random((400, 12, 2))
    model = LatentODEClassifier(**MORPH).fit(X[:20], np.arange(20) % 2)
    path = model.save(tmp_path / "model")
    np.save(tmp_path / "X.npy", X)
    files = [str(tmp_path / name) for name in ("model", "X.npy", "answer.npy")]
    subprocess.run([sys.executable, "-c", ELSEWHERE, "3", *files], check=True)
    answer = np.load(tmp_path / "answer.npy")
    np.testing.assert_allclose(answer, model.predict_proba(X), atol=1e-6)
    assert path.exists()


# Pickle, joblib and skops


def test_skops_needs_to_trust_nothing_but_the_estimator(tmp_path):
    skops = pytest.importorskip("skops.io")
    X, y = sines(12)
    for kind in (*ALL, DynamicsRegressor):
        small = {"max_epochs": 2, "random_state": 0} if kind is DynamicsRegressor else MORPH
        model = kind(**small).fit(X) if kind is DynamicsRegressor else kind(**small).fit(X, y)
        content = skops.dumps(model)
        unknown = skops.get_untrusted_types(data=content)
        assert unknown == [f"{kind.__module__}.{kind.__name__}"]
        copy = skops.loads(content, trusted=unknown)
        np.testing.assert_array_equal(copy.predict(X), model.predict(X))
        assert copy.history_ == model.history_


@pytest.mark.parametrize("kind", [LatentODEClassifier, DynamicsRegressor])
def test_parameters_set_after_fitting_do_not_concern_the_model(kind, tmp_path):
    X, y = sines(12)
    sizes = {"hidden_dim": 9} if kind is LatentODEClassifier else {"augment": 3}
    model = kind(ode="linear", max_epochs=1, random_state=0).fit(X, y)
    wanted = model.predict(X)
    model.set_params(**sizes)
    for copy in (
        pickle.loads(pickle.dumps(model)),
        deepcopy(model),
        kind.load(model.save(tmp_path / "m")),
    ):
        np.testing.assert_array_equal(copy.predict(X), wanted)
    assert deepcopy(model).get_params() == model.get_params()


def test_what_is_not_fitted_is_pickled_too():
    model = pickle.loads(pickle.dumps(LatentODEClassifier(latent_dim=3)))
    assert model.latent_dim == 3 and not hasattr(model, "model_")


# Saving


def test_functions_cannot_be_saved(tmp_path):
    X, y = sines(12)
    settings = {**TINY, "ode_options": None}
    nested = {"encoder": "gru-ode", "encoder_options": {"ode": LinearFlow}}
    for params, words in (
        ({"ode": LinearFlow}, "ode must be a registered name to be saved, got a function"),
        (nested, "must hold text and numbers only, got .*LinearFlow"),
    ):
        model = LatentODEClassifier(**{**settings, **params}).fit(X, y)
        with pytest.raises(ValueError, match=words):
            model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_options_that_no_file_holds_are_refused(model, tmp_path):
    model = LatentODEClassifier(**TINY).fit(*sines(12))
    model._fitted_params["ode_options"] = {"thing": object()}
    with pytest.raises(ValueError, match="must hold text and numbers only, got .*object object"):
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

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        model.save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
