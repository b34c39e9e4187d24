"""Finds, downloads, unpacks and checks the files of data sets, as their publishers ship them."""

from __future__ import annotations

import gzip
import hashlib
import os
import socket
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from sklearn.datasets import fetch_file, get_data_home

ENVIRONMENT = "LATENT_MORPH_DATA"
_BROKEN = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)
_PATIENCE = 10.0  # seconds without an answer after which a download counts as failed


@dataclass(frozen=True)
class Source:
    """One file of a data set, or one folder of files.

    Attributes:
        dataset: Folder name of the data set: "activity", "ecg" or "physionet".
        name: The file's own name, unpacked, such as "mitbih_train.csv".
        packed: Further names under which the same content is accepted.
        url: Where it can be downloaded without an account, or None.
        sha256: Digests of the unpacked content that are known to be right.
        home: Where a person finds it.
    """

    dataset: str
    name: str
    packed: tuple[str, ...] = ()
    url: str | None = None
    sha256: tuple[str, ...] = ()
    home: str = ""


@dataclass(frozen=True)
class Found:
    """Where a source was found, and whether it came by a download just now."""

    source: Source
    path: Path
    downloaded: bool = False

    def stamp(self) -> list[str | int]:
        """What changes when the file, or any file of the folder, does; cheap to compute."""
        files = [self.path] if self.path.is_file() else sorted(self.path.glob("*.txt"))
        stats = [file.stat() for file in files]
        return [
            self.path.name,
            len(files),
            sum(stat.st_size for stat in stats),
            max((stat.st_mtime_ns for stat in stats), default=0),
        ]


def locate(
    source: Source,
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
) -> Found:
    """Finds a source in the folders of `search_path`, or downloads it.

    Each folder is looked through twice: its subfolder named after the data set, then itself.
    Zip files in the subfolder also count if they hold a member of the right name.

    Raises:
        OSError: It is nowhere and was not, or could not be, downloaded.
    """
    folders = search_path(data_home)
    names = (source.name, *source.packed)
    for folder in folders:
        for place in (folder / source.dataset, folder):
            for name in names:
                if (place / name).exists():
                    return Found(source, place / name)
        for archive in sorted((folder / source.dataset).glob("*.zip")):
            if _holds(archive, source.name):
                return Found(source, archive)
    wanted = f"{source.dataset}/{source.name}"
    packed = f" (or {', '.join(source.packed)})" if source.packed else ""
    advice = (
        f"put it{packed} in one of: "
        f"{', '.join(str(folder / source.dataset) for folder in folders)}; see {source.home}"
    )
    if source.url is None or not download_if_missing:
        raise FileNotFoundError(f"{wanted} was not found; {advice}")
    return _download(source, writable_home(data_home), wanted, advice)


def search_path(data_home: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders to look in: `data_home`, $LATENT_MORPH_DATA, data/, scikit-learn's data home.

    data/ is that of the working directory, then that of the checkout the package runs from.
    """
    folders = [Path(data_home).expanduser()] if data_home is not None else []
    if os.environ.get(ENVIRONMENT):
        folders.append(Path(os.environ[ENVIRONMENT]).expanduser())
    folders.append(Path.cwd() / "data")
    folders.extend(_checkout_data())
    home = _sklearn_home()
    if home is not None:
        folders.append(home)
    return list(dict.fromkeys(folders))


def writable_home(data_home: str | os.PathLike[str] | None) -> Path | None:
    """Where downloads and caches go: `data_home` if it can be written, else scikit-learn's."""
    if data_home is not None:
        folder = Path(data_home).expanduser()
        if folder.is_dir() and os.access(folder, os.W_OK):
            return folder
    return _sklearn_home()


def read_content(found: Found) -> bytes:
    """Unpacked bytes of a single file: plain, .gz, or a member of a .zip. Checks its digest.

    Raises:
        OSError: The file is unreadable, truncated or corrupt, or a download has a wrong digest.
    """
    path = found.path
    with _naming(path):
        if path.suffix == ".gz":
            content = gzip.decompress(path.read_bytes())
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read(_member(archive, found.source.name, path))
        else:
            content = path.read_bytes()
    _verify(found, [content])
    return content


def read_folder(found: Found) -> dict[str, bytes]:
    """Contents of the .txt files of a folder, .tar.gz or .zip, by stem, sorted. Checks the digest.

    The digest is that of all contents in the order of their names, so that it does not depend on
    how they are packed.

    Raises:
        OSError: The archive is unreadable, truncated or corrupt, or a download is not as expected.
    """
    path = found.path
    with _naming(path):
        if path.is_dir():
            texts = {file.stem: file.read_bytes() for file in path.glob("*.txt")}
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = [name for name in archive.namelist() if name.endswith(".txt")]
                texts = {Path(name).stem: archive.read(name) for name in members}
        else:
            # Members are taken one after the other: a .gz cannot be read out of order.
            with tarfile.open(path, "r|*") as stream:
                texts = {}
                for member in stream:
                    file = stream.extractfile(member) if member.name.endswith(".txt") else None
                    if file is not None:
                        texts[Path(member.name).stem] = file.read()
    if not texts:
        raise OSError(f"{path} holds no .txt files; wanted those of {found.source.name}")
    texts = dict(sorted(texts.items()))
    _verify(found, texts.values())
    return texts


def one_line(error: Exception) -> str:
    """The message of an error of pandas without its line breaks."""
    return " ".join(str(error).split())


def _verify(found: Found, contents: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    actual = digest.hexdigest()
    if actual in found.source.sha256:
        return
    complaint = f"the content of {found.path} has SHA-256 {actual}, which is not a known one"
    if found.downloaded:
        found.path.unlink()  # otherwise the next call would find it and trust it
        raise OSError(f"{complaint}; the download was removed")
    warnings.warn(f"{complaint}; it is used all the same", stacklevel=4)


def _download(source: Source, home: Path | None, wanted: str, advice: str) -> Found:
    if home is None:
        raise FileNotFoundError(
            f"{wanted} cannot be downloaded: no data home can be written; {advice}"
        )
    folder = home / source.dataset
    assert source.url is not None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _impatience():
            path = fetch_file(
                source.url,
                folder=folder,
                local_filename=source.url.rsplit("/", 1)[-1],
                n_retries=0,  # retries only warn and wait where there is no network
            )
    except (OSError, HTTPException) as error:
        raise FileNotFoundError(f"{wanted} could not be downloaded ({error}); {advice}") from error
    return Found(source, Path(path), downloaded=True)


@contextmanager
def _impatience() -> Iterator[None]:
    # fetch_file offers no timeout of its own and urllib's default is to wait for ever.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        raise OSError(f"{path} is truncated or corrupt: {error}") from error


def _member(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    for member in archive.namelist():
        if Path(member).name == name:
            return member
    raise OSError(f"{path} holds no {name}")


def _holds(path: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(Path(member).name == name for member in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _checkout_data() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    return [root / "data"] if (root / "pyproject.toml").is_file() else []


def _sklearn_home() -> Path | None:
    try:
        return Path(get_data_home()) / "latent_morph"
    except OSError:  # it makes the folder, which a read-only home forbids
        return None
