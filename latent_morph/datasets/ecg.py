"""ECG heartbeats of the MIT-BIH database, with one of five labels per beat."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import Bunch, check_random_state

from latent_morph.checks import check_choice
from latent_morph.datasets.bunches import as_bunch
from latent_morph.datasets.cache import Arrays, load_cached
from latent_morph.datasets.files import LocatedSource, Source, locate, read_content
from latent_morph.datasets.tables import format_error
from latent_morph.series import SeriesBatch, subsample

N_SAMPLES = 187
RATE = 120.0  # Hz: every third sample of 360
TARGET_NAMES = ["N", "S", "V", "F", "Q"]
_VERSION = 1
_HOME = "https://www.kaggle.com/datasets/shayanfazeli/heartbeat"
# Digests of the rebuilt files described in data/README.md. Kaggle's files, whose download needs an
# account, have others and are read with a warning.
_DIGESTS = {
    "train": "2016251d5f943bc223ad3bd850ae54b56c1ebd3ff5108f56c8bb39875c80380e",
    "test": "fdd326a2394c65261b2f98f377a73e98b30207ecb8027314bca548687ca13c9f",
}
_DESCR = """\
Heartbeats of the MIT-BIH Arrhythmia Database as cut by Kachuee et al. (2018): 120 Hz, scaled
to [0, 1] beat by beat, from one R peak to past the next. Classes: N normal, S supraventricular,
V ventricular, F fusion, Q paced or unclassifiable. Beats are split at random, so that training and
test have beats of the same patients."""


def fetch_ecg(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
    as_frame: bool = False,
    subset: str = "train",
    keep: float = 1.0,
    random_state: int | np.random.RandomState | None = 0,
) -> Bunch | tuple[Any, Any]:
    """Loads heartbeats from mitbih_train.csv and mitbih_test.csv, packed or not.

    The files pad beats with zeros to 187 samples. The trailing exact zeros are taken as padding,
    but at least one sample is kept. A beat that ends on its minimum loses that sample; earlier
    zeros remain values.

    Args:
        data_home: Folder to search first, and to cache in if it is writable.
        download_if_missing: Accepted for uniformity; the files need an account to be downloaded.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.
        subset: "train", "test", or "all": training beats, then test beats.
        keep: Fraction of each beat's samples to keep, drawn at random, at least one.
        random_state: Seed or generator of that draw.

    Returns:
        Bunch with `data`, SeriesBatch (N, T, 1), times in seconds since the beat's first sample;
        `target` (N,) int64; `feature_names`, `target_names`, `DESCR` and `source`.

    Raises:
        OSError: A file is absent or broken.
        ValueError: A file has other content.
    """
    check_choice("subset", subset, ("train", "test", "all"))
    parts = []
    for part in ("train", "test") if subset == "all" else (subset,):
        located = locate(
            _make_source(part), data_home=data_home, download_if_missing=download_if_missing
        )
        parts.append(_load(located, f"ecg_{part}", data_home))
    return beats_to_bunch(
        np.concatenate([part["samples"] for part in parts]),
        np.concatenate([part["labels"] for part in parts]),
        keep,
        random_state,
        descr=_DESCR,
        source="real",
        return_X_y=return_X_y,
        as_frame=as_frame,
    )


def beats_to_bunch(
    samples: np.ndarray,
    labels: np.ndarray,
    keep: float,
    random_state: int | np.random.RandomState | None,
    *,
    descr: str,
    source: str,
    return_X_y: bool,
    as_frame: bool,
) -> Bunch | tuple[Any, Any]:
    """Converts zero-padded beats (N, 187) and labels (N,) to the return value of `fetch_ecg`."""
    return as_bunch(
        subsample(beats_to_series(samples), keep, check_random_state(random_state)),
        labels.astype(np.int64),
        return_X_y=return_X_y,
        as_frame=as_frame,
        feature_names=["ecg"],
        target_names=list(TARGET_NAMES),
        DESCR=descr,
        source=source,
    )


def beats_to_series(samples: np.ndarray) -> SeriesBatch:
    """Converts zero-padded beats (N, T) to a SeriesBatch (N, T, 1) that masks the padding."""
    values = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
    n_times = values.shape[1]
    n_padding = (values == 0).flip(1).to(torch.int8).cumprod(1).sum(1)
    lengths = (n_times - n_padding).clamp(min=1)
    position = torch.minimum(torch.arange(n_times), lengths.unsqueeze(1) - 1)
    mask = (torch.arange(n_times) < lengths.unsqueeze(1)).unsqueeze(-1)
    return SeriesBatch(values.unsqueeze(-1), position.double() / RATE, mask, lengths)


def _make_source(part: str) -> Source:
    name = f"mitbih_{part}.csv"
    return Source("ecg", name, (f"{name}.gz", f"{name}.zip"), None, (_DIGESTS[part],), _HOME)


def _load(located: LocatedSource, name: str, data_home: str | os.PathLike[str] | None) -> Arrays:
    return load_cached(name, _VERSION, [located], lambda: _parse(located), data_home=data_home)


def _parse(located: LocatedSource) -> Arrays:
    expected = f"{located.path} must be a table of {N_SAMPLES} samples and a label 0-4"
    try:
        table = pd.read_csv(
            io.BytesIO(read_content(located)), header=None, dtype=np.float32
        ).to_numpy()
    except (ValueError, UnicodeDecodeError) as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{expected}, got {format_error(error)}") from error
    if table.shape[1] != N_SAMPLES + 1:
        raise ValueError(f"{expected}, got {table.shape[1]} columns")
    if not np.isfinite(table).all():
        raise ValueError(f"{expected}, got an incomplete row or a value that is not finite")
    labels = table[:, -1].astype(np.int64)
    invalid = (labels != table[:, -1]) | (labels < 0) | (labels > 4)
    if invalid.any():
        raise ValueError(f"{expected}, got the label {table[invalid.argmax(), -1]:g}")
    return {"samples": np.ascontiguousarray(table[:, :-1]), "labels": labels}
