"""A cache of parsed data sets as .npz files."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from latent_morph.datasets.files import LocatedSource, get_writable_home
from latent_morph.io.atomic import atomic_path

Arrays = dict[str, np.ndarray]


def load_cached(
    name: str,
    version: int,
    sources: list[LocatedSource],
    build: Callable[[], Arrays],
    *,
    data_home: str | os.PathLike[str] | None = None,
) -> Arrays:
    """Returns the arrays of `build`, from the cache if it is valid.

    A cache that is broken or out of date is rebuilt. If it cannot be written, there is none.

    Args:
        name: Stem of the cache file, in the data set's folder of `data_home` or, if that is not
            writable, of scikit-learn's data home.
        version: To be increased whenever the result of `build` changes.
        sources: The parsed files. The cache is valid while their names, sizes and modification
            times are unchanged.
        build: Parses the sources; no array may hold objects.
        data_home: As given to the fetcher.
    """
    fingerprint = json.dumps([version, *(source.fingerprint() for source in sources)])
    home = get_writable_home(data_home)
    path = None if home is None else home / sources[0].source.dataset / f"{name}.npz"
    arrays = _read(path, fingerprint) if path is not None else None
    if arrays is None:
        arrays = build()
        if path is not None:
            _write(path, fingerprint, arrays)
    return arrays


def _read(path: Path, fingerprint: str) -> Arrays | None:
    try:
        # Opened here because NumPy does not close a file that turns out to be broken.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if str(archive["fingerprint"]) != fingerprint:
                return None
            return {key: archive[key] for key in archive.files if key != "fingerprint"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _write(path: Path, fingerprint: str, arrays: Arrays) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez(temporary, allow_pickle=False, fingerprint=np.array(fingerprint), **arrays)
