"""Records are read back as written, and no run overwrites another."""

import csv
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import latent_morph
from latent_morph.io import records
from latent_morph.io.records import (
    new_run_folder,
    read_json,
    versions,
    write_csv,
    write_json,
)

# JSON


def test_json_round_trip(tmp_path):
    data = {"z": 1, "a": [1.5, None, True, "käse"], "nested": {"empty": {}, "list": []}}
    path = write_json(tmp_path / "run.json", data)
    assert path == tmp_path / "run.json"
    assert read_json(path) == data
    assert list(read_json(path)) == ["z", "a", "nested"]
    text = path.read_text(encoding="utf-8")
    assert text.startswith('{\n  "z": 1,\n') and text.endswith("}\n") and "käse" in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(2.5), 2.5),
        (np.array(["a", None], dtype=object), ["a", None]),
        (np.datetime64("2020-01-02", "ns"), "2020-01-02T00:00:00.000000000"),
        (np.datetime64("NaT"), None),
        (datetime(2020, 1, 2, 3, 4), "2020-01-02T03:04:00"),
        (torch.tensor([1.0, float("nan")], requires_grad=True), [1.0, None]),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (pd.Series([1, 2]), [1, 2]),
        (Path("runs") / "a", str(Path("runs") / "a")),
        ((1, 2), [1, 2]),
        ({1: "a", np.int64(2): "b"}, {"1": "a", "2": "b"}),
    ],
)
def test_json_converts_values(tmp_path, value, expected):
    read = read_json(write_json(tmp_path / "x.json", {"x": value}))["x"]
    assert read == expected and type(read) is type(expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -np.inf, np.float32("nan")])
def test_json_writes_non_finite_as_null(tmp_path, bad):
    path = write_json(tmp_path / "x.json", {"x": bad, "list": [bad, 1], "array": np.array([bad])})

    def refuse(token):
        raise AssertionError(token)

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read == {"x": None, "list": [None, 1], "array": [None]}


def test_json_round_trip_of_undecodable_file_name(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    assert read_json(write_json(tmp_path / "x.json", {"out": Path(name)})) == {"out": name}


def test_write_json_rejects_and_keeps_old_file(tmp_path):
    path = write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(TypeError, match=r"data\['a'\]\[1\] must be .*, got set"):
        write_json(path, {"a": [1, {2}]})
    with pytest.raises(TypeError, match=r"keys of data\['a'\] must be .*, got \(1, 2\)"):
        write_json(path, {"a": {(1, 2): 3}})
    with pytest.raises(ValueError, match="keys of data must differ as strings, got '1' twice"):
        write_json(path, {1: 2, "1": 3})
    with pytest.raises(TypeError, match="data must be a mapping, got list"):
        write_json(path, [1])
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": [1, 2', "got invalid or truncated JSON.*line 1 column 12"),
        (b"", "got an empty file"),
        (b"\n", "got an empty file"),
        (b'{"a": "\xff"}', "got invalid or truncated JSON"),
        (b"[1, 2]", "must hold a JSON object, got a list"),
    ],
)
def test_read_json_rejects_invalid_file(tmp_path, content, reason):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.json.*{reason}"):
        read_json(path)


def test_read_json_absent_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")


# CSV


def test_csv_columns_are_union_of_keys(tmp_path):
    rows = [{"epoch": 1, "loss": 0.5}, {"epoch": np.int64(2), "score": np.float64(0.25)}]
    path = write_csv(tmp_path / "history.csv", rows)
    assert path.read_text() == "epoch,loss,score\n1,0.5,\n2,,0.25\n"


def test_csv_cells(tmp_path):
    row = {
        "comma": 'a, "b"\nc',
        "nan": float("nan"),
        "none": None,
        "inf": np.float32("-inf"),
        "tensor": torch.tensor([1, 2]),
        "flag": True,
        "accent": "käse",
    }
    path = write_csv(tmp_path / "x.csv", [row])
    with open(path, newline="", encoding="utf-8") as file:
        (read,) = csv.DictReader(file)
    assert list(read.values()) == ['a, "b"\nc', "", "", "-inf", "[1, 2]", "True", "käse"]


def test_csv_numbers_read_back_exactly(tmp_path):
    values = np.random.default_rng(0).standard_normal(50)
    path = write_csv(tmp_path / "x.csv", [{"x": value} for value in values])
    frame = pd.read_csv(path, float_precision="round_trip")
    np.testing.assert_array_equal(frame["x"], values)


def test_csv_without_rows_is_empty(tmp_path):
    assert write_csv(tmp_path / "x.csv", []).read_bytes() == b""


def test_write_csv_rejects_invalid_rows(tmp_path):
    with pytest.raises(TypeError, match=r"rows\[1\]\['a'\] must be .*, got object"):
        write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": object()}])
    with pytest.raises(TypeError, match=r"rows\[0\] must be a mapping, got list"):
        write_csv(tmp_path / "x.csv", [[1]])
    assert os.listdir(tmp_path) == []


# Versions and folders


def test_versions_match_installed_packages():
    actual = versions()
    assert actual["latent_morph"] == latent_morph.__version__
    assert actual["torch"] == torch.__version__ and actual["numpy"] == np.__version__
    assert actual["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"scikit-learn", "scipy", "pandas", "FrEIA", "torchdiffeq"} < set(actual)


def test_versions_none_if_not_installed(monkeypatch):
    monkeypatch.setattr(records, "_DISTRIBUTIONS", ("no-such-distribution",))
    assert versions()["no-such-distribution"] is None


def test_versions_imports_no_heavy_package():
    code = (
        "import sys; from latent_morph.io.records import versions; versions();"
        "print([m for m in ('torch', 'sklearn', 'scipy', 'pandas') if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.strip() == "[]"


def test_new_run_folder_numbers_folders(tmp_path):
    out = tmp_path / "deep" / "runs"
    made = [new_run_folder(out, "ecg") for _ in range(3)]
    assert [folder.name for folder in made] == ["ecg", "ecg-2", "ecg-3"]
    assert all(folder.parent == out and folder.is_dir() for folder in made)


def test_new_run_folder_keeps_file_of_same_name(tmp_path):
    (tmp_path / "ecg").write_text("mine")
    assert new_run_folder(tmp_path, "ecg").name == "ecg-2"
    assert (tmp_path / "ecg").read_text() == "mine"


def test_new_run_folder_concurrent_runs(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_run_folder(tmp_path / "runs", "ecg"), range(24)))
    assert len(set(made)) == 24


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b"])
def test_new_run_folder_rejects_name(tmp_path, name):
    with pytest.raises(ValueError, match="name must be the name of one folder, got"):
        new_run_folder(tmp_path, name)


def test_new_run_folder_out_is_a_file(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(FileExistsError):
        new_run_folder(tmp_path / "runs", "ecg")
