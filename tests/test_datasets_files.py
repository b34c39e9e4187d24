"""Files are found in the promised order, read packed or not, checked, and cached safely."""

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
from latent_morph.datasets.files import Found, Source, locate, read_content, read_folder

TEXT = b"1,2,3\n" * 200
PACKED = gzip.compress(TEXT)


def digest(*contents):
    return hashlib.sha256(b"".join(contents)).hexdigest()


SOURCE = Source("toy", "toy.csv", ("toy.csv.gz",), None, (digest(TEXT),), "the publisher's page")


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """No data anywhere but where a test puts them."""
    monkeypatch.delenv("LATENT_MORPH_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setattr(files, "_checkout_data", lambda: [])
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def put(path, content=TEXT):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def website(tmp_path):
    """Address under which the files of a folder are served on this machine."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    (tmp_path / "remote").mkdir()
    handler = partial(Quiet, directory=tmp_path / "remote")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_search_order(tmp_path, monkeypatch):
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


def test_a_checkout_offers_its_data_folder(monkeypatch):
    monkeypatch.undo()
    assert [folder.name for folder in files._checkout_data()] in ([], ["data"])


def test_absent_says_what_to_put_where(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"toy/toy\.csv was not found; put it \(or toy"):
        locate(SOURCE, data_home=tmp_path / "given")


def test_an_unwritable_home_is_skipped(tmp_path, monkeypatch):
    put(tmp_path / "file", b"")
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "file" / "below"))
    assert files.search_path() == [tmp_path / "cwd" / "data"]
    source = Source("toy", "toy.csv", url="http://127.0.0.1:9/toy.csv")
    with pytest.raises(OSError, match="no data home can be written"):
        locate(source)


@pytest.mark.parametrize("kind", ["plain", "gz", "zip"])
def test_packed_or_not(tmp_path, kind):
    if kind == "plain":
        put(tmp_path / "toy" / "toy.csv")
    elif kind == "gz":
        put(tmp_path / "toy" / "toy.csv.gz", PACKED)
    else:
        (tmp_path / "toy").mkdir()
        with zipfile.ZipFile(tmp_path / "toy" / "anything.zip", "w") as archive:
            archive.writestr("inner/toy.csv", TEXT)
    assert read_content(locate(SOURCE, data_home=tmp_path)) == TEXT


def test_zips_without_the_file_do_not_count(tmp_path):
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
def test_truncated_or_corrupt(tmp_path, name, content):
    path = put(tmp_path / name, content)
    with pytest.raises(OSError, match=f"{name} is truncated or corrupt") as caught:
        read_content(Found(SOURCE, path))
    assert "\n" not in str(caught.value)


def test_unknown_content_is_read_with_a_warning(tmp_path):
    path = put(tmp_path / "toy.csv", b"else")
    with pytest.warns(UserWarning, match="not a known one; it is used all the same"):
        assert read_content(Found(SOURCE, path)) == b"else"


def test_downloads_land_in_the_data_home(tmp_path, website):
    put(tmp_path / "remote" / "toy.csv")
    source = Source("toy", "toy.csv", url=f"{website}/toy.csv", sha256=(digest(TEXT),))
    with pytest.raises(FileNotFoundError):
        locate(source, download_if_missing=False)
    found = locate(source)
    assert found.downloaded and found.path.parent == tmp_path / "sklearn" / "latent_morph" / "toy"
    assert read_content(found) == TEXT
    assert not locate(source).downloaded


def test_wrong_downloads_are_removed(tmp_path, website):
    put(tmp_path / "remote" / "toy.csv", b"<html>sorry</html>")
    source = Source("toy", "toy.csv", url=f"{website}/toy.csv", sha256=(digest(TEXT),))
    found = locate(source)
    with pytest.raises(OSError, match="the download was removed"):
        read_content(found)
    assert not found.path.exists()


def test_a_page_that_is_gone(website):
    with pytest.raises(OSError, match="could not be downloaded .*404"):
        locate(Source("toy", "toy.csv", url=f"{website}/toy.csv"))


def test_no_network_fails_soon_and_plainly():
    source = Source("toy", "toy.csv", url="http://127.0.0.1:9/toy.csv", home="its page")
    begin = time.perf_counter()
    with pytest.raises(OSError, match="could not be downloaded .* see its page"):
        locate(source)
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("kind", ["folder", "tar.gz", "zip"])
def test_folders_read_alike_however_packed(tmp_path, kind):
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
    assert list(read_folder(Found(source, path)).items()) == [("10", b"ten"), ("2", b"two")]


def test_folders_truncated_or_empty(tmp_path):
    put(tmp_path / "set" / "1.txt", os.urandom(5000))
    with tarfile.open(tmp_path / "set.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "set", "set")
    whole = (tmp_path / "set.tar.gz").read_bytes()
    for part in (whole[:2000], b"no archive"):
        path = put(tmp_path / "part.tar.gz", part)
        with pytest.raises(OSError, match=r"part\.tar\.gz is truncated or corrupt"):
            read_folder(Found(Source("toy", "set"), path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="holds no .txt files"):
        read_folder(Found(Source("toy", "set"), tmp_path / "empty"))


# The cache


class Builder:
    """Counts how often it is asked."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return {"a": np.arange(3), "s": np.array(["x", "yz"])}


def ask(build, path, home, version=1):
    arrays = cache.cached("parsed", version, [Found(SOURCE, path)], build, data_home=home)
    assert arrays["a"].tolist() == [0, 1, 2] and arrays["s"].tolist() == ["x", "yz"]


def test_cache_is_used_and_renewed(tmp_path):
    home, build, path = tmp_path / "home", Builder(), put(tmp_path / "toy.csv")
    home.mkdir()
    ask(build, path, home)
    ask(build, path, home)
    assert build.calls == 1
    ask(build, path, home, version=2)
    assert build.calls == 2
    put(path, TEXT + b"more")
    ask(build, path, home, version=2)
    assert build.calls == 3
    assert [file.name for file in (home / "toy").iterdir()] == ["parsed.npz"]  # no drafts left


@pytest.mark.parametrize("damage", ["truncated", "garbage", "flipped", "empty"])
def test_a_broken_cache_is_rebuilt(tmp_path, damage):
    build, path = Builder(), put(tmp_path / "toy.csv")
    ask(build, path, tmp_path)
    file = tmp_path / "toy" / "parsed.npz"
    whole = bytearray(file.read_bytes())
    if damage == "flipped":
        where = whole.index(np.arange(3).tobytes())
        whole[where] ^= 1
    broken = {"truncated": whole[: len(whole) // 2], "garbage": b"x" * 99, "empty": b""}
    file.write_bytes(broken.get(damage, whole))
    ask(build, path, tmp_path)
    ask(build, path, tmp_path)
    assert build.calls == 2


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    build, path = Builder(), put(tmp_path / "toy.csv")
    put(tmp_path / "home" / "toy", b"a file where the folder should be")
    ask(build, path, tmp_path / "home")
    ask(build, path, tmp_path / "home")
    assert build.calls == 2


def test_a_read_only_data_home_sends_the_cache_to_scikit_learns(tmp_path, monkeypatch):
    build, path = Builder(), put(tmp_path / "toy.csv")
    monkeypatch.setattr(files.os, "access", lambda *_: False)  # root may write anywhere
    ask(build, path, tmp_path)
    assert (tmp_path / "sklearn" / "latent_morph" / "toy" / "parsed.npz").is_file()
