"""Keeps parsed data sets as .npz files, so that only the first call pays for parsing."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from latent_morph.datasets.files import Found, writable_home

Arrays = dict[str, np.ndarray]


def cached(
    name: str,
    version: int,
    sources: list[Found],
    build: Callable[[], Arrays],
    *,
    data_home: str | os.PathLike[str] | None = None,
) -> Arrays:
    """Returns what `build` returns, from a file if one fits.

    Args:
        name: Stem of the cache file, which lies in the data set's folder of `data_home` or, where
            that cannot be written, of scikit-learn's data home.
        version: To be raised whenever `build` changes its result.
        sources: What is parsed. The cache fits if their names, sizes and times of change do.
        build: Parses; no array may hold objects.
        data_home: As given to the fetcher.

    A cache that is broken or does not fit is rebuilt; one that cannot be written is done without.
    """
    stamp = json.dumps([version, *(source.stamp() for source in sources)])
    home = writable_home(data_home)
    path = None if home is None else home / sources[0].source.dataset / f"{name}.npz"
    arrays = _read(path, stamp) if path is not None else None
    if arrays is None:
        arrays = build()
        if path is not None:
            _write(path, stamp, arrays)
    return arrays


def _read(path: Path, stamp: str) -> Arrays | None:
    try:
        # NumPy leaves a file it opened itself open if that turns out to be broken.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if str(archive["stamp"]) != stamp:
                return None
            return {key: archive[key] for key in archive.files if key != "stamp"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def _write(path: Path, stamp: str, arrays: Arrays) -> None:
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reader must never meet half a file: write aside, then move in one step.
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            draft = Path(file.name)
            np.savez(file, allow_pickle=False, stamp=np.array(stamp), **arrays)
        os.replace(draft, path)
    except OSError:
        if draft is not None:
            draft.unlink(missing_ok=True)
