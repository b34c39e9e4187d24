"""Files are whole or absent, read back as they were, and no run overwrites another."""

import csv
import json
import os
import stat
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
from latent_morph import records
from latent_morph.io.records import (
    atomic_path,
    new_run_folder,
    read_json,
    versions,
    write_bytes_atomic,
    write_csv,
    write_json,
)

# Whole or absent


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failed_write_leaves_everything_as_it_was(tmp_path, error):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_bytes(b"half of the n")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_failed_first_write_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "model.pt") as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with atomic_path(str(path)) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".pt")
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError), atomic_path(tmp_path / "taken") as temporary:
        temporary.write_bytes(b"new")
    assert os.listdir(tmp_path) == ["taken"]


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    path = tmp_path / "file"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"  # the outer block ends last


@pytest.mark.skipif(os.name != "posix", reason="modes and umask are POSIX")
def test_the_umask_decides_who_may_read(tmp_path):
    (tmp_path / "usual").touch()
    path = write_bytes_atomic(tmp_path / "ours", b"data")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_an_absent_folder_is_an_oserror_naming_the_file(tmp_path):
    path = tmp_path / "absent" / "file.json"
    with pytest.raises(FileNotFoundError) as caught:
        write_json(path, {})
    assert caught.value.filename == str(path)


def test_a_folder_that_is_a_file_is_an_oserror_naming_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        write_bytes_atomic(tmp_path / "file" / "x", b"")
    assert caught.value.filename == str(tmp_path / "file" / "x")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_an_unwritable_folder_is_an_oserror_naming_the_file(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError) as caught:
            write_csv(tmp_path / "file.csv", [])
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.filename == str(tmp_path / "file.csv")


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
    ("value", "wanted"),
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
def test_json_takes_what_runs_hold(tmp_path, value, wanted):
    read = read_json(write_json(tmp_path / "x.json", {"x": value}))["x"]
    assert read == wanted and type(read) is type(wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -np.inf, np.float32("nan")])
def test_what_is_not_finite_is_null(tmp_path, bad):
    path = write_json(tmp_path / "x.json", {"x": bad, "list": [bad, 1], "array": np.array([bad])})

    def refuse(token):
        raise AssertionError(token)

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read == {"x": None, "list": [None, 1], "array": [None]}


def test_file_names_that_are_no_text_survive(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    assert read_json(write_json(tmp_path / "x.json", {"out": Path(name)})) == {"out": name}


def test_json_errors_say_where_and_leave_the_old_file(tmp_path):
    path = write_json(tmp_path / "x.json", {"old": 1})
    with pytest.raises(TypeError, match=r"data\['a'\]\[1\] is set; wanted"):
        write_json(path, {"a": [1, {2}]})
    with pytest.raises(TypeError, match=r"data\['a'\] has the key \(1, 2\)"):
        write_json(path, {"a": {(1, 2): 3}})
    with pytest.raises(ValueError, match="data has two keys that are '1' as text"):
        write_json(path, {1: 2, "1": 3})
    with pytest.raises(TypeError, match="data is list; wanted a mapping"):
        write_json(path, [1])
    assert read_json(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": [1, 2', "no valid JSON, perhaps cut short.*line 1 column 12"),
        (b"", "empty"),
        (b"\n", "empty"),
        (b'{"a": "\xff"}', "no valid JSON"),
        (b"[1, 2]", "JSON list; wanted an object"),
    ],
)
def test_an_invalid_file_is_named(tmp_path, content, reason):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"broken\.json.*{reason}"):
        read_json(path)


def test_reading_an_absent_file_is_an_oserror(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")


# CSV


def test_csv_has_the_union_of_keys_as_first_seen(tmp_path):
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


def test_csv_errors_say_where(tmp_path):
    with pytest.raises(TypeError, match=r"rows\[1\]\['a'\] is object"):
        write_csv(tmp_path / "x.csv", [{"a": 1}, {"a": object()}])
    with pytest.raises(TypeError, match=r"rows\[0\] is list; wanted a mapping"):
        write_csv(tmp_path / "x.csv", [[1]])
    assert os.listdir(tmp_path) == []


# Versions and folders


def test_versions_are_those_installed():
    found = versions()
    assert found["latent_morph"] == latent_morph.__version__
    assert found["torch"] == torch.__version__ and found["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"scikit-learn", "scipy", "pandas", "FrEIA", "torchdiffeq"} < set(found)


def test_what_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(records, "_RECORDED", ("no-such-distribution",))
    assert versions()["no-such-distribution"] is None


def test_versions_import_nothing_heavy():
    code = (
        "import sys; from latent_morph.io.records import versions; versions();"
        "print([m for m in ('torch', 'sklearn', 'scipy', 'pandas') if m in sys.modules])"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert seen.strip() == "[]"


def test_run_folders_are_numbered_and_never_shared(tmp_path):
    out = tmp_path / "deep" / "runs"
    made = [new_run_folder(out, "ecg") for _ in range(3)]
    assert [folder.name for folder in made] == ["ecg", "ecg-2", "ecg-3"]
    assert all(folder.parent == out and folder.is_dir() for folder in made)


def test_a_file_of_that_name_is_left_alone(tmp_path):
    (tmp_path / "ecg").write_text("mine")
    assert new_run_folder(tmp_path, "ecg").name == "ecg-2"
    assert (tmp_path / "ecg").read_text() == "mine"


def test_runs_starting_at_once_get_a_folder_each(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_run_folder(tmp_path / "runs", "ecg"), range(24)))
    assert len(set(made)) == 24


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match="name is .*; wanted the name of one folder"):
        new_run_folder(tmp_path, name)


def test_out_being_a_file_is_an_oserror(tmp_path):
    (tmp_path / "runs").touch()
    with pytest.raises(FileExistsError):
        new_run_folder(tmp_path / "runs", "ecg")
