"""Locates, downloads, unpacks and verifies the published files of data sets."""

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
_ARCHIVE_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile)
_TIMEOUT = 10.0  # seconds without an answer after which a download fails


@dataclass(frozen=True)
class Source:
    """One file of a data set, or one folder of files.

    Attributes:
        dataset: Folder name of the data set, such as "activity" or "ecg".
        name: Name of the unpacked file, such as "mitbih_train.csv".
        packed: Names under which the same content is accepted in an archive.
        url: Address of a download without an account, or None.
        sha256: Known digests of the unpacked content, or None if none is known: the content is
            then read unverified, downloaded or not, with a warning.
        home: The publisher's page, for error messages.
    """

    dataset: str
    name: str
    packed: tuple[str, ...] = ()
    url: str | None = None
    sha256: tuple[str, ...] | None = ()
    home: str = ""


@dataclass(frozen=True)
class LocatedSource:
    """A source, its path, and whether it was just downloaded."""

    source: Source
    path: Path
    downloaded: bool = False

    def fingerprint(self) -> list[str | int]:
        """Returns name, number, size and modification time of the files, which is fast."""
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
) -> LocatedSource:
    """Finds a source in the folders of `get_search_path`, or downloads it.

    In each folder the subfolder named after the data set is searched first, then the folder
    itself. Zip files in the subfolder are accepted if they have a member of the right name.

    Raises:
        OSError: The source was not found and not downloaded.
    """
    folders = get_search_path(data_home)
    names = (source.name, *source.packed)
    for folder in folders:
        for place in (folder / source.dataset, folder):
            for name in names:
                if (place / name).exists():
                    return LocatedSource(source, place / name)
        for archive in sorted((folder / source.dataset).glob("*.zip")):
            if _has_member(archive, source.name):
                return LocatedSource(source, archive)
    label = f"{source.dataset}/{source.name}"
    packed = f" (or {', '.join(source.packed)})" if source.packed else ""
    advice = (
        f"put it{packed} in one of: "
        f"{', '.join(str(folder / source.dataset) for folder in folders)}; see {source.home}"
    )
    if source.url is None or not download_if_missing:
        raise FileNotFoundError(f"{label} was not found; {advice}")
    return _download(source, get_writable_home(data_home), label, advice)


def get_search_path(data_home: str | os.PathLike[str] | None = None) -> list[Path]:
    """Folders to search: `data_home`, $LATENT_MORPH_DATA, data/, scikit-learn's data home.

    data/ is that of the working directory, then that of the package's checkout.
    """
    folders = [Path(data_home).expanduser()] if data_home is not None else []
    if os.environ.get(ENVIRONMENT):
        folders.append(Path(os.environ[ENVIRONMENT]).expanduser())
    folders.append(Path.cwd() / "data")
    folders.extend(_get_checkout_data())
    home = _get_sklearn_home()
    if home is not None:
        folders.append(home)
    return list(dict.fromkeys(folders))


def get_writable_home(data_home: str | os.PathLike[str] | None) -> Path | None:
    """Folder of downloads and caches: `data_home` if it is writable, else scikit-learn's."""
    if data_home is not None:
        folder = Path(data_home).expanduser()
        if folder.is_dir() and os.access(folder, os.W_OK):
            return folder
    return _get_sklearn_home()


def read_content(located: LocatedSource) -> bytes:
    """Reads a single file, plain, .gz or a member of a .zip, and verifies its digest.

    Raises:
        OSError: The file is unreadable, truncated or corrupt, or a download has a wrong digest.
    """
    path = located.path
    with _reraise_archive_errors(path):
        if path.suffix == ".gz":
            content = gzip.decompress(path.read_bytes())
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read(_find_member(archive, located.source.name, path))
        else:
            content = path.read_bytes()
    _verify(located, [content])
    return content


def read_folder(located: LocatedSource) -> dict[str, bytes]:
    """Reads the .txt files of a folder, .tar.gz or .zip, by stem, sorted, and verifies the digest.

    The digest is that of all contents in the order of their names, so that it does not depend on
    the archive format.

    Raises:
        OSError: The archive is unreadable, truncated or corrupt, or a download has a wrong digest.
    """
    path = located.path
    with _reraise_archive_errors(path):
        if path.is_dir():
            texts = {file.stem: file.read_bytes() for file in path.glob("*.txt")}
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                members = [name for name in archive.namelist() if name.endswith(".txt")]
                texts = {Path(name).stem: archive.read(name) for name in members}
        else:
            # Members are read in their order, as a .gz has no random access.
            with tarfile.open(path, "r|*") as stream:
                texts = {}
                for member in stream:
                    file = stream.extractfile(member) if member.name.endswith(".txt") else None
                    if file is not None:
                        texts[Path(member.name).stem] = file.read()
    if not texts:
        raise OSError(f"{path} must hold the .txt files of {located.source.name}, got none")
    texts = dict(sorted(texts.items()))
    _verify(located, texts.values())
    return texts


def _verify(located: LocatedSource, contents: Iterable[bytes]) -> None:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    actual, known = digest.hexdigest(), located.source.sha256
    if known is None:
        warnings.warn(
            f"the content of {located.path} was not verified, as no SHA-256 of it is known; "
            f"this one has {actual}",
            stacklevel=4,
        )
        return
    if actual in known:
        return
    message = f"the content of {located.path} has the unknown SHA-256 {actual}"
    if located.downloaded:
        located.path.unlink()  # otherwise the next call would find it and only warn
        raise OSError(f"{message}; the download was removed")
    warnings.warn(f"{message}; it is used nevertheless", stacklevel=4)


def _download(source: Source, home: Path | None, label: str, advice: str) -> LocatedSource:
    if home is None:
        raise FileNotFoundError(
            f"{label} cannot be downloaded: no data home is writable; {advice}"
        )
    folder = home / source.dataset
    assert source.url is not None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _timeout():
            path = fetch_file(
                source.url,
                folder=folder,
                local_filename=source.url.rsplit("/", 1)[-1],
                n_retries=0,  # without a network, retries only warn and wait
            )
    except (OSError, HTTPException) as error:
        raise FileNotFoundError(f"{label} could not be downloaded ({error}); {advice}") from error
    return LocatedSource(source, Path(path), downloaded=True)


@contextmanager
def _timeout() -> Iterator[None]:
    # fetch_file has no timeout parameter, and urllib's default is to wait forever.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def _reraise_archive_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except _ARCHIVE_ERRORS as error:
        raise OSError(f"{path} is truncated or corrupt: {error}") from error


def _find_member(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    for member in archive.namelist():
        if Path(member).name == name:
            return member
    raise OSError(f"{path} must hold {name}, got {archive.namelist()}")


def _has_member(path: Path, name: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return any(Path(member).name == name for member in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _get_checkout_data() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    return [root / "data"] if (root / "pyproject.toml").is_file() else []


def _get_sklearn_home() -> Path | None:
    try:
        return Path(get_data_home()) / "latent_morph"
    except OSError:  # it creates the folder, which fails in a read-only home
        return None
