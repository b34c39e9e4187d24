"""Human Activity: four tags on a person's body, read in turn, with a label at every time point."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.model_selection import train_test_split
from sklearn.utils import Bunch

from latent_morph.checks import check_choice
from latent_morph.datasets.bunches import as_bunch
from latent_morph.datasets.cache import Arrays, cached
from latent_morph.datasets.files import Found, Source, locate, one_line, read_content
from latent_morph.series import SeriesBatch

TAGS = {
    "010-000-024-033": "left ankle",
    "010-000-030-096": "right ankle",
    "020-000-033-111": "chest",
    "020-000-032-221": "belt",
}
FEATURE_NAMES = [f"{place} {axis}" for place in TAGS.values() for axis in "xyz"]
# The eleven names of the file, merged into seven as Rubanova et al. do. They spell the last kind
# of standing up otherwise than the file does, and so lose its 2,848 labels; here it counts.
CLASSES = {
    "walking": ("walking",),
    "falling": ("falling",),
    "lying": ("lying", "lying down"),
    "sitting": ("sitting", "sitting down"),
    "standing up": (
        "standing up from lying",
        "standing up from sitting",
        "standing up from sitting on the ground",
    ),
    "on all fours": ("on all fours",),
    "sitting on the ground": ("sitting on the ground",),
}
TARGET_NAMES = list(CLASSES)
WINDOW, STRIDE = 50, 25
TICK = 0.01  # seconds
_STAMPS_A_TICK = 100_000  # stamps count 100 ns
_VERSION = 1
_SOURCE = Source(
    dataset="activity",
    name="ConfLongDemo_JSI.txt",
    packed=("ConfLongDemo_JSI.txt.gz", "ConfLongDemo_JSI.zip"),
    url="https://archive.ics.uci.edu/ml/machine-learning-databases/00196/ConfLongDemo_JSI.txt",
    sha256=("1fbc965b8d7faf499ea854428b2138132d94e6a26404bc8e4b0c62144f513e8a",),
    home="https://archive.ics.uci.edu/dataset/196",
)
_DESCR = """\
Localization Data for Person Activity (UCI): five people, five recordings each, wore tags
on both ankles, chest and belt whose positions in metres were read one after the other. Windows of
50 distinct 10 ms ticks with stride 25 of each recording; neighbours share half their points, so a
random split of windows leaks between its sides, and holding a person out does not."""


def fetch_activity(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
    as_frame: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Loads the windows of the Human Activity set: 6,554 series of 50 points and 12 channels.

    Readings are put on ticks of 10 ms since the recording's first; readings of one tag within a
    tick are averaged, and the tick takes the label of its last reading. (In the published file no
    tick has two labels, nor two readings of one tag.)

    Args:
        data_home: Folder to look in first, and to cache in if it can be written.
        download_if_missing: Whether to try the network where no folder has the file.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.

    Returns:
        Bunch with `data`, SeriesBatch (N, 50, 12), times in seconds since the window's first
        point; `target` (N, 50) int64, one label a point; `groups` (N,) the person, "A" to "E";
        `recordings` (N,), "A01" to "E05"; `starts` (N,) seconds from the start of the recording to
        that of the window; `feature_names`, `target_names`, `DESCR` and `source`.

    Raises:
        OSError: The file is absent or broken.
        ValueError: The file is not what it should be.
    """
    found = locate(_SOURCE, data_home=data_home, download_if_missing=download_if_missing)
    arrays = cached(
        "activity_windows", _VERSION, [found], lambda: _build(found), data_home=data_home
    )
    return activity_bunch(arrays, _DESCR, "real", return_X_y=return_X_y, as_frame=as_frame)


def split_activity(
    bunch: Bunch,
    protocol: str = "windows",
    random_state: int | np.random.RandomState | None = 42,
    person: str = "E",
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the windows into training and test.

    Args:
        bunch: From `fetch_activity` or `make_activity`.
        protocol: "windows" draws 20 % of the windows at random, as the literature does, although
            most of them overlap training windows; "person" holds out all windows of one person.
        random_state: Seed of the draw.
        person: Who is held out.

    Returns:
        Indices (n_train,) and (n_test,).
    """
    check_choice("protocol", protocol, ("windows", "person"))
    indices = np.arange(len(bunch.groups))
    if protocol == "windows":
        train, test = train_test_split(indices, test_size=0.2, random_state=random_state)
        return train, test
    check_choice("person", person, sorted(set(bunch.groups.tolist())))
    out = bunch.groups == person
    return indices[~out], indices[out]


def cut_windows(
    ticks: np.ndarray, values: np.ndarray, labels: np.ndarray, recordings: np.ndarray
) -> Arrays:
    """Cuts recordings into windows of 50 points with stride 25, while offset + 50 < length.

    Args:
        ticks: (R,) whole numbers, increasing within a recording.
        values: (R, 12), NaN where missing.
        labels: (R,).
        recordings: (R,) names, each recording in one piece.

    Returns:
        Arrays `values` (N, 50, 12), `times` (N, 50), `labels` (N, 50), `recordings` and
        `starts` (N,).
    """
    begin = np.flatnonzero(np.append(True, recordings[1:] != recordings[:-1]))
    end = np.append(begin[1:], len(recordings))
    offsets = [np.arange(a, b - WINDOW, STRIDE) for a, b in zip(begin, end, strict=True)]
    origin = np.repeat(ticks[begin], [len(offset) for offset in offsets])
    offset = np.concatenate(offsets)
    row = offset[:, None] + np.arange(WINDOW)
    return {
        "values": values[row].astype(np.float32),
        "times": (ticks[row] - ticks[offset][:, None]) * TICK,
        "labels": labels[row].astype(np.int64),
        "recordings": recordings[offset],
        "starts": (ticks[offset] - origin) * TICK,
    }


def activity_bunch(
    arrays: Arrays, descr: str, source: str, *, return_X_y: bool, as_frame: bool
) -> Bunch | tuple[Any, Any]:
    """Turns what `cut_windows` gives into what `fetch_activity` returns."""
    values = torch.from_numpy(arrays["values"])
    mask = ~torch.isnan(values)
    return as_bunch(
        SeriesBatch(values.nan_to_num(0.0), torch.from_numpy(arrays["times"]), mask),
        arrays["labels"],
        return_X_y=return_X_y,
        as_frame=as_frame,
        feature_names=list(FEATURE_NAMES),
        target_names=list(TARGET_NAMES),
        groups=arrays["recordings"].astype("U1"),
        recordings=arrays["recordings"],
        starts=arrays["starts"],
        DESCR=descr,
        source=source,
    )


def _build(found: Found) -> Arrays:
    table = _parse(read_content(found), found)
    recordings, first_row = np.unique(table["recording"], return_index=True)
    code = np.searchsorted(recordings, table["recording"])
    # Stamps exceed 2^53: subtract as integers, divide afterwards.
    elapsed = table["stamp"] - table["stamp"][first_row][code]
    tick = np.rint(elapsed / _STAMPS_A_TICK).astype(np.int64)
    order = np.lexsort((tick, code))  # a dozen readings step back by a tick
    code, tick = code[order], tick[order]
    fresh = np.append(True, (np.diff(code) != 0) | (np.diff(tick) != 0))
    point = np.cumsum(fresh) - 1
    cell = point * len(TAGS) + table["tag"][order]
    n_cells = (point[-1] + 1) * len(TAGS)
    count = np.bincount(cell, minlength=n_cells).astype(np.float64)
    count[count == 0] = np.nan  # makes the mean of nothing a NaN
    means = [
        np.bincount(cell, weights=table[axis][order], minlength=n_cells) / count for axis in "xyz"
    ]
    last = np.append(np.flatnonzero(fresh)[1:], len(code)) - 1
    windows = cut_windows(
        tick[last],
        np.stack(means, axis=-1).reshape(-1, len(FEATURE_NAMES)),
        table["label"][order][last],
        recordings[code[last]],
    )
    if not len(windows["values"]):
        raise ValueError(f"{found.path} has no recording of more than {WINDOW} time points")
    return windows


def _parse(content: bytes, found: Found) -> Arrays:
    wrong = f"{found.path} is not the activity table (recording, tag, stamp, date, x, y, z, label)"
    try:
        frame = pd.read_csv(
            io.BytesIO(content),
            header=None,
            names=["recording", "tag", "stamp", "date", "x", "y", "z", "label"],
            usecols=["recording", "tag", "stamp", "x", "y", "z", "label"],
            dtype={"stamp": np.int64, "x": float, "y": float, "z": float}
            | dict.fromkeys(("recording", "tag", "label"), "category"),
            index_col=False,
        )
    except (ValueError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"{wrong}: {one_line(error)}") from error
    if frame.empty or frame.isna().to_numpy().any():
        raise ValueError(f"{wrong}: it is empty or a row is incomplete")
    merged = {name: code for code, names in enumerate(CLASSES.values()) for name in names}
    tags = {name: code for code, name in enumerate(TAGS)}
    return {
        "recording": frame["recording"].to_numpy(dtype=str),
        "stamp": frame["stamp"].to_numpy(),
        "tag": _code(frame["tag"], tags, wrong),
        "label": _code(frame["label"], merged, wrong),
        **{axis: frame[axis].to_numpy() for axis in "xyz"},
    }


def _code(column: pd.Series, codes: dict[str, int], wrong: str) -> np.ndarray:
    names = list(column.cat.categories)
    unknown = sorted(set(names) - set(codes))
    if unknown:
        raise ValueError(f"{wrong}: unknown {column.name} {unknown[0]!r}")
    return np.array([codes[name] for name in names])[column.cat.codes.to_numpy()]
