"""Atomic writing: a file is whole or unchanged, and errors name the file."""

import os
import stat

import pytest

from latent_morph.io.atomic import atomic_path, write_bytes_atomic
from latent_morph.io.records import write_csv, write_json

WRITERS = {
    "bytes": lambda path: write_bytes_atomic(path, b""),
    "json": lambda path: write_json(path, {}),
    "csv": lambda path: write_csv(path, []),
}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_atomic_path_keeps_old_file_on_error(tmp_path, error):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_bytes(b"half of the n")
        raise error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_atomic_path_leaves_no_file_on_error(tmp_path):
    with pytest.raises(RuntimeError), atomic_path(tmp_path / "model.pt") as temporary:
        temporary.write_bytes(b"half")
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_atomic_path_replaces_file_at_the_end(tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(b"old")
    with atomic_path(str(path)) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".pt")
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["model.pt"]


def test_atomic_path_removes_temporary_file_if_replace_fails(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError), atomic_path(tmp_path / "taken") as temporary:
        temporary.write_bytes(b"new")
    assert os.listdir(tmp_path) == ["taken"]


def test_atomic_path_concurrent_writers(tmp_path):
    path = tmp_path / "file"
    with atomic_path(path) as first, atomic_path(path) as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert path.read_bytes() == b"first"  # the outer block ends last


@pytest.mark.skipif(os.name != "posix", reason="modes and umask are POSIX")
def test_write_bytes_atomic_respects_umask(tmp_path):
    (tmp_path / "usual").touch()
    path = write_bytes_atomic(tmp_path / "ours", b"data")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_write_names_file_in_absent_folder(tmp_path, write):
    path = tmp_path / "absent" / "file.json"
    with pytest.raises(FileNotFoundError) as caught:
        write(path)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_write_names_file_if_folder_is_a_file(tmp_path, write):
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        write(tmp_path / "file" / "x")
    assert caught.value.filename == str(tmp_path / "file" / "x")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_write_names_file_in_unwritable_folder(tmp_path, write):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError) as caught:
            write(tmp_path / "file.csv")
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.filename == str(tmp_path / "file.csv")
