"""Model files are complete, written atomically and never trusted; pickles and skops agree."""

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
def test_model_file_round_trip_of_estimators(kind, tmp_path):
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
    expected = model.get_params() | {"checkpoint": str(tmp_path / "run.pt")}
    assert copy.get_params() == expected
    learned = {name for name in vars(model) if name.endswith("_")}
    assert learned == {name for name in vars(copy) if name.endswith("_")}
    for name in learned - {"model_", "scaler_", "classes_"}:
        assert getattr(copy, name) == getattr(model, name), name
    assert copy.scaler_.state() == model.scaler_.state()
    assert copy.fit(X, y).n_iter_ == 2  # it can be fitted again


@pytest.mark.parametrize("kind", ALL)
def test_model_file_pickle_and_checkpoint_keep_float64(kind, tmp_path):
    X, y = sines(12)
    settings = {**MORPH, "dtype": "float64", "checkpoint": tmp_path / "run.pt"}
    model = kind(**settings).fit(X, y)
    expected = model.reconstruct(X, [0.5])
    path = model.save(tmp_path / "model.safetensors")
    resumed = kind(**settings, resume=True).fit(X, y)
    for copy in (kind.load(path), pickle.loads(pickle.dumps(model)), resumed):
        assert {p.dtype for p in copy.model_.parameters()} == {torch.float64}
        np.testing.assert_array_equal(copy.reconstruct(X, [0.5]), expected)
    with pytest.raises(ValueError, match="checkpoint must be complete") as problem:
        kind(**settings | {"dtype": "float32"}, resume=True).fit(X, y)
    assert "must be of torch.float32, got torch.float64" in str(problem.value.__cause__)


def test_model_file_without_dtype_loads(path, model):
    tensors, config, _ = read_model(path)
    for name in ("dtype", "sample_z0"):
        del config["params"][name]
    copy = LatentODEClassifier.load(write_model(path, tensors, config))
    assert copy.dtype == "float32" and copy.sample_z0
    X, _ = sines(12)
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


def test_model_file_round_trip_of_point_labels(tmp_path):
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
def test_model_file_keeps_dtype_of_classes(labels, tmp_path):
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
def test_model_file_holds_parameters_of_many_types(params, tmp_path):
    X, y = sines(12)[0], np.array([3, 7])[np.arange(12) % 2]
    model = LatentODEClassifier(**{**TINY, **params}).fit(X, y)
    copy = LatentODEClassifier.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert copy.class_weight == model.class_weight


def test_model_file_keeps_feature_names(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).random((12, 4)), columns=list("abcd"))
    model = LatentODEClassifier(**TINY).fit(frame, np.arange(12) % 2)
    copy = LatentODEClassifier.load(model.save(tmp_path / "m"))
    np.testing.assert_array_equal(copy.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names should match"):
        copy.predict(frame.rename(columns={"a": "z"}))


# Damaged and forged files


def rewrite_header(path, tensors=None, *, forged=False, **changes):
    """Replaces parts of the header; a forged file also has a new, valid checksum."""
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        stored = {name: file.get_tensor(name) for name in file.keys()}
    stored = stored if tensors is None else tensors
    header = {key: value for key, value in (header | changes).items() if value is not None}
    if forged:
        header["sha256"] = checksum(stored, header["config"], int(header["version"]))
    save_file(stored, path, metadata=header)
    return path


def edit_config(path, *, forged=True, **changes):
    """Replaces entries of the config; `params` are merged."""
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    changes["params"] = config["params"] | changes.get("params", {})
    return rewrite_header(path, config=json.dumps(config | changes), forged=forged)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.999])
def test_model_file_rejects_truncated_file(path, fraction):
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ValueError, match="must be a safetensors file, got"):
        LatentODEClassifier.load(path)


def test_model_file_rejects_foreign_and_absent_files(path, tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="was not written by latent_morph"):
        LatentODEClassifier.load(tmp_path / "foreign")
    (tmp_path / "text").write_text("a model, honestly")
    with pytest.raises(ValueError, match="must be a safetensors file, got"):
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
        ({"version": "3"}, "it was changed"),
        ({"sha256": None}, "is damaged: KeyError"),
        ({"sha256": "0" * 64}, "it was changed"),
        ({"config": "{"}, "it was changed"),
        ({"config": None}, "is damaged: KeyError"),
        ({"tensors": {"weight": torch.ones(2)}}, "it was changed"),
        ({"forged": True, "config": "{"}, "is damaged: JSONDecodeError"),
        ({"forged": True, "config": "[" * 10**5}, "is damaged: RecursionError"),
        ({"forged": True, "config": "[]"}, "is damaged: .*JSON object, got list"),
        ({"forged": True, "tensors": {"w": torch.ones(2)}}, "must hold a complete model, got"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_model_file_rejects_damaged_header(path, changes, match):
    with pytest.raises(ValueError, match=match):
        LatentODEClassifier.load(rewrite_header(path, **changes))


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
def test_model_file_rejects_forged_config(path, changes):
    with pytest.raises(ValueError, match=r"model\.safetensors must hold a complete model, got"):
        LatentODEClassifier.load(edit_config(path, **changes))


def test_model_file_rejects_edited_config(path):
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: .*it was changed"):
        LatentODEClassifier.load(edit_config(path, forged=False, params={"batch_size": 32}))


@pytest.mark.parametrize("huge", [10**7, 10**30])
@pytest.mark.parametrize(
    "name",
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
def test_model_file_huge_sizes_allocate_no_memory(path, name, huge):
    change = {name: huge} if name == "n_channels" else {"params": {name: huge}}
    if name in ("layers", "modes"):
        change = {"params": {"encoder_options": {name: huge}}}
    edit_config(path, **change)
    messages = []

    def attempt():
        with pytest.raises(ValueError, match="must hold a complete model, got") as problem:
            LatentODEClassifier.load(path)
        messages.append(str(problem.value))

    assert (peak_above(attempt) or 0.0) < 50  # megabytes
    assert huge > 10**18 or "ten times what the file holds" in messages[0]


def test_model_file_rejects_huge_options_and_labels(tmp_path):
    model = LatentODEClassifier(**MORPH).fit(*sines(12))
    for options in ({"blocks": 10**9}, {"width": 10**9}, {"depth": 10**9}):
        path = model.save(tmp_path / "m")
        with pytest.raises(ValueError, match="ten times what the file holds"):
            LatentODEClassifier.load(edit_config(path, params={"ode_options": {"inn": options}}))
    path = model.save(tmp_path / "m")
    with pytest.raises(ValueError, match="classes must take at most"):
        LatentODEClassifier.load(edit_config(path, classes_dtype="<U90000000"))


def test_model_file_every_flipped_byte_is_rejected_or_harmless(tmp_path):
    path = tmp_path / "m"
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2])}
    config = {"estimator": "X", "params": {"é": [1, None, 0.5]}}
    write_model(path, tensors, config)
    content = path.read_bytes()
    rejected = 0
    for place in range(len(content)):
        for flip in (0x01, 0x20, 0xFF):
            changed = bytearray(content)
            changed[place] ^= flip
            path.write_bytes(changed)
            try:
                read_tensors, read_config, _ = read_model(path)
            except ValueError as problem:
                assert str(problem).startswith(str(path))
                rejected += 1
            else:
                assert read_config == config and read_tensors.keys() == tensors.keys()
                assert all(torch.equal(read_tensors[name], tensors[name]) for name in tensors)
    assert rejected > 0.99 * 3 * len(content)


def test_model_file_rejects_flipped_bytes_of_classifier(path):
    content = path.read_bytes()
    for place in range(0, len(content), 101):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            LatentODEClassifier.load(path)


@pytest.mark.parametrize("version", ["1", "2"])
def test_model_file_rejects_versions_before_0_1(path, version):
    message = f"must be of format version 3 to 4, got {version}: fit and save the model again"
    with pytest.raises(ValueError, match=message):
        LatentODEClassifier.load(rewrite_header(path, version=version, sha256=None))


def test_model_file_rejects_missing_checksum(path):
    with pytest.raises(ValueError, match="is damaged: KeyError.'sha256'"):
        LatentODEClassifier.load(rewrite_header(path, sha256=None))


def test_model_file_load_on_unusable_device(path):
    with pytest.raises(ValueError, match="device must be .*, got 'abacus'"):
        LatentODEClassifier.load(path, device="abacus")


def test_model_file_rejects_other_estimator(path):
    for kind in (LatentODEPointClassifier, LatentODEReconstructor):
        with pytest.raises(
            ValueError, match=f"must hold a {kind.__name__}, got a LatentODEClassifier"
        ):
            kind.load(path)


@pytest.mark.parametrize("name", ["os.system", "antigravity", "sklearn.svm.SVC", "LatentODEBase"])
def test_model_file_names_import_nothing(path, name):
    before = set(sys.modules)
    with pytest.raises(ValueError, match="must hold a complete model, got"):
        LatentODEClassifier.load(edit_config(path, estimator=name))
    assert "antigravity" not in sys.modules and set(sys.modules) == before


# Other processes

PREDICT_SCRIPT = """
import sys
import numpy as np, torch
torch.set_num_threads(int(sys.argv[1]))
from latent_morph import LatentODEClassifier
X = np.load(sys.argv[3])
np.save(sys.argv[4], LatentODEClassifier.load(sys.argv[2]).predict_proba(X))
"""


def test_model_file_predictions_agree_on_other_threads(tmp_path):
    assert torch.get_num_threads() == 1
    X = np.random.default_rng(0).random((400, 12, 2))
    model = LatentODEClassifier(**MORPH).fit(X[:20], np.arange(20) % 2)
    path = model.save(tmp_path / "model")
    np.save(tmp_path / "X.npy", X)
    files = [str(tmp_path / name) for name in ("model", "X.npy", "answer.npy")]
    subprocess.run([sys.executable, "-c", PREDICT_SCRIPT, "3", *files], check=True)
    proba = np.load(tmp_path / "answer.npy")
    np.testing.assert_allclose(proba, model.predict_proba(X), atol=1e-6)
    assert path.exists()


# Pickle, joblib and skops


def test_skops_trusts_only_the_estimator(tmp_path):
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
def test_model_file_and_pickle_ignore_params_set_after_fit(kind, tmp_path):
    X, y = sines(12)
    sizes = {"hidden_dim": 9} if kind is LatentODEClassifier else {"augment": 3}
    model = kind(ode="linear", max_epochs=1, random_state=0).fit(X, y)
    expected = model.predict(X)
    model.set_params(**sizes)
    for copy in (
        pickle.loads(pickle.dumps(model)),
        deepcopy(model),
        kind.load(model.save(tmp_path / "m")),
    ):
        np.testing.assert_array_equal(copy.predict(X), expected)
    assert deepcopy(model).get_params() == model.get_params()


def test_pickle_of_unfitted_estimator():
    model = pickle.loads(pickle.dumps(LatentODEClassifier(latent_dim=3)))
    assert model.latent_dim == 3 and not hasattr(model, "model_")


# Saving


def test_save_rejects_functions(tmp_path):
    X, y = sines(12)
    settings = {**TINY, "ode_options": None}
    nested = {"encoder": "gru-ode", "encoder_options": {"ode": LinearFlow}}
    for params, message in (
        ({"ode": LinearFlow}, "ode must be a registered name to be saved, got a function"),
        (nested, "must hold text and numbers only, got .*LinearFlow"),
    ):
        model = LatentODEClassifier(**{**settings, **params}).fit(X, y)
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_save_rejects_options_that_are_not_json(model, tmp_path):
    model = LatentODEClassifier(**TINY).fit(*sines(12))
    model._fitted_params["ode_options"] = {"thing": object()}
    with pytest.raises(ValueError, match="must hold text and numbers only, got .*object object"):
        model.save(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_save_error_leaves_no_files(model, tmp_path):
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


def test_save_to_unwritable_folder_leaves_no_files(model, tmp_path, monkeypatch):
    def deny(path, *args):  # root, as whom tests often run, may write anywhere
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", deny)
        with pytest.raises(PermissionError, match="model"):
            model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_save_error_keeps_existing_file(model, path, monkeypatch):
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no space"):
        model.save(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]
