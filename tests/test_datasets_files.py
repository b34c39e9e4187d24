"""Locating, reading, verifying and caching the files of data sets."""

import gzip
import hashlib
import os
import tarfile
import time
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from latent_morph.datasets import cache, files
from latent_morph.datasets.files import LocatedSource, Source, locate, read_content, read_folder

TEXT = b"1,2,3\n" * 200
PACKED = gzip.compress(TEXT)


def digest(*contents):
    return hashlib.sha256(b"".join(contents)).hexdigest()


SOURCE = Source("toy", "toy.csv", ("toy.csv.gz",), None, (digest(TEXT),), "the publisher's page")


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No data except those that a test creates."""
    monkeypatch.delenv("LATENT_MORPH_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setattr(files, "_get_checkout_data", lambda: [])
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def put(path, content=TEXT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def website(tmp_path):
    """Address of a local server of the files in a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    (tmp_path / "remote").mkdir()
    handler = partial(Quiet, directory=tmp_path / "remote")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_locate_search_order(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENT_MORPH_DATA", str(tmp_path / "variable"))
    places = [
        tmp_path / "sklearn" / "latent_morph" / "toy",
        tmp_path / "cwd" / "data" / "toy",
        tmp_path / "variable" / "toy",
        tmp_path / "given",  # directly inside, without the data set's folder
        tmp_path / "given" / "toy",
    ]
    for place in places:  # each is searched before those filled already
        path = put(place / "toy.csv")
        assert locate(SOURCE, data_home=tmp_path / "given").path == path


def test_search_path_has_data_folder_of_checkout(monkeypatch):
    monkeypatch.undo()
    assert [folder.name for folder in files._get_checkout_data()] in ([], ["data"])


def test_locate_absent_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"toy/toy\.csv was not found; put it \(or toy"):
        locate(SOURCE, data_home=tmp_path / "given")


def test_search_path_skips_unwritable_home(tmp_path, monkeypatch):
    put(tmp_path / "file", b"")
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "file" / "below"))
    assert files.get_search_path() == [tmp_path / "cwd" / "data"]
    source = Source("toy", "toy.csv", url="http://127.0.0.1:9/toy.csv")
    with pytest.raises(OSError, match="no data home is writable"):
        locate(source)


@pytest.mark.parametrize("kind", ["plain", "gz", "zip"])
def test_read_content_plain_gz_and_zip(tmp_path, kind):
    if kind == "plain":
        put(tmp_path / "toy" / "toy.csv")
    elif kind == "gz":
        put(tmp_path / "toy" / "toy.csv.gz", PACKED)
    else:
        (tmp_path / "toy").mkdir()
        with zipfile.ZipFile(tmp_path / "toy" / "anything.zip", "w") as archive:
            archive.writestr("inner/toy.csv", TEXT)
    assert read_content(locate(SOURCE, data_home=tmp_path)) == TEXT


def test_locate_ignores_zips_without_the_file(tmp_path):
    put(tmp_path / "toy" / "broken.zip", b"PK")
    with zipfile.ZipFile(tmp_path / "toy" / "other.zip", "w") as archive:
        archive.writestr("else.csv", TEXT)
    with pytest.raises(FileNotFoundError):
        locate(SOURCE, data_home=tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("toy.csv.gz", PACKED[:-20], id="gz-truncated"),
        pytest.param("toy.csv.gz", b"no gzip at all", id="gz-else"),
        pytest.param("toy.csv.gz", PACKED[:15] + b"\xff" * 30, id="gz-garbage"),
        pytest.param("toy.csv.zip", b"no zip at all", id="zip-else"),
    ],
)
def test_read_content_rejects_truncated_or_corrupt_file(tmp_path, name, content):
    path = put(tmp_path / name, content)
    with pytest.raises(OSError, match=f"{name} is truncated or corrupt") as caught:
        read_content(LocatedSource(SOURCE, path))
    assert "\n" not in str(caught.value)


def test_read_content_warns_of_unknown_digest(tmp_path):
    path = put(tmp_path / "toy.csv", b"else")
    with pytest.warns(UserWarning, match="unknown SHA-256 .*; it is used nevertheless"):
        assert read_content(LocatedSource(SOURCE, path)) == b"else"


def test_locate_downloads_to_data_home(tmp_path, website):
    put(tmp_path / "remote" / "toy.csv")
    source = Source("toy", "toy.csv", url=f"{website}/toy.csv", sha256=(digest(TEXT),))
    with pytest.raises(FileNotFoundError):
        locate(source, download_if_missing=False)
    found = locate(source)
    assert found.downloaded and found.path.parent == tmp_path / "sklearn" / "latent_morph" / "toy"
    assert read_content(found) == TEXT
    assert not locate(source).downloaded


def test_read_content_removes_download_with_wrong_digest(tmp_path, website):
    put(tmp_path / "remote" / "toy.csv", b"<html>sorry</html>")
    source = Source("toy", "toy.csv", url=f"{website}/toy.csv", sha256=(digest(TEXT),))
    found = locate(source)
    with pytest.raises(OSError, match="the download was removed"):
        read_content(found)
    assert not found.path.exists()


def test_read_content_warns_where_no_digest_is_known(tmp_path, website):
    put(tmp_path / "remote" / "toy.csv")
    found = locate(Source("toy", "toy.csv", url=f"{website}/toy.csv", sha256=None))
    with pytest.warns(UserWarning, match=f"not verified, .*; this one has {digest(TEXT)}"):
        assert read_content(found) == TEXT
    assert found.downloaded and found.path.exists()


def test_locate_download_not_found(website):
    with pytest.raises(OSError, match="could not be downloaded .*404"):
        locate(Source("toy", "toy.csv", url=f"{website}/toy.csv"))


def test_locate_without_network_fails_fast():
    source = Source("toy", "toy.csv", url="http://127.0.0.1:9/toy.csv", home="its page")
    begin = time.perf_counter()
    with pytest.raises(OSError, match="could not be downloaded .* see its page"):
        locate(source)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("kind", ["folder", "tar.gz", "zip"])
def test_read_folder_plain_tar_and_zip(tmp_path, kind):
    texts = {"2": b"two", "10": b"ten"}
    for stem, text in texts.items():
        put(tmp_path / "set" / f"{stem}.txt", text)
    path = tmp_path / "set" if kind == "folder" else tmp_path / f"set.{kind}"
    if kind == "tar.gz":
        with tarfile.open(path, "w:gz") as archive:
            archive.add(tmp_path / "set", "set")
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for stem, text in texts.items():
                archive.writestr(f"set/{stem}.txt", text)
    source = Source("toy", "set", sha256=(digest(b"ten", b"two"),))
    assert list(read_folder(LocatedSource(source, path)).items()) == [
        ("10", b"ten"),
        ("2", b"two"),
    ]


def test_read_folder_rejects_truncated_or_empty_archive(tmp_path):
    put(tmp_path / "set" / "1.txt", os.urandom(5000))
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    whole = (tmp_path / "set.tar.gz").read_bytes()
    for part in (whole[:2000], b"no archive"):
        path = put(tmp_path / "part.tar.gz", part)
        with pytest.raises(OSError, match=r"part\.tar\.gz is truncated or corrupt"):
            read_folder(LocatedSource(Source("toy", "set"), path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="must hold the .txt files of set, got none"):
        read_folder(LocatedSource(Source("toy", "set"), tmp_path / "empty"))


# The cache


class Builder:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"a": np.arange(3), "s": np.array(["x", "yz"])}


def load_and_check(build, path, home, version=1):
    arrays = cache.load_cached(
        "parsed", version, [LocatedSource(SOURCE, path)], build, data_home=home
    )
    assert arrays["a"].tolist() == [0, 1, 2] and arrays["s"].tolist() == ["x", "yz"]


def test_cache_is_used_and_invalidated(tmp_path):
    home, build, path = tmp_path / "home", Builder(), put(tmp_path / "toy.csv")
    home.mkdir()
    load_and_check(build, path, home)
    load_and_check(build, path, home)
    assert build.calls == 1
    load_and_check(build, path, home, version=2)
    assert build.calls == 2
    put(path, TEXT + b"more")
    load_and_check(build, path, home, version=2)
    assert build.calls == 3
    assert [file.name for file in (home / "toy").iterdir()] == [
        "parsed.npz"
    ]  # no temporary files left


@pytest.mark.parametrize("damage", ["truncated", "garbage", "flipped", "empty"])
def test_cache_is_rebuilt_if_broken(tmp_path, damage):
    build, path = Builder(), put(tmp_path / "toy.csv")
    load_and_check(build, path, tmp_path)
    file = tmp_path / "toy" / "parsed.npz"
    whole = bytearray(file.read_bytes())
    if damage == "flipped":
        where = whole.index(np.arange(3).tobytes())
        whole[where] ^= 1
    broken = {"truncated": whole[: len(whole) // 2], "garbage": b"x" * 99, "empty": b""}
    file.write_bytes(broken.get(damage, whole))
    load_and_check(build, path, tmp_path)
    load_and_check(build, path, tmp_path)
    assert build.calls == 2


def test_cache_without_writable_folder(tmp_path):
    build, path = Builder(), put(tmp_path / "toy.csv")
    put(tmp_path / "home" / "toy", b"a file where the folder should be")
    load_and_check(build, path, tmp_path / "home")
    load_and_check(build, path, tmp_path / "home")
    assert build.calls == 2


def test_cache_falls_back_to_sklearn_data_home(tmp_path, monkeypatch):
    build, path = Builder(), put(tmp_path / "toy.csv")
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write anywhere
    load_and_check(build, path, tmp_path)
    assert (tmp_path / "sklearn" / "latent_morph" / "toy" / "parsed.npz").is_file()
