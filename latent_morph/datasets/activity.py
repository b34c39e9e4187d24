"""Human Activity: positions of four body-worn tags, with one label per time point."""

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
from latent_morph.datasets.cache import Arrays, load_cached
from latent_morph.datasets.files import LocatedSource, Source, locate, read_content
from latent_morph.datasets.tables import average_cells, encode_categories, format_error
from latent_morph.series import SeriesBatch

TAGS = {
    "010-000-024-033": "left ankle",
    "010-000-030-096": "right ankle",
    "020-000-033-111": "chest",
    "020-000-032-221": "belt",
}
FEATURE_NAMES = [f"{place} {axis}" for place in TAGS.values() for axis in "xyz"]
# The eleven names of the file, merged into seven as by Rubanova et al. (2019). Their code
# misspells the last kind of standing up and so drops its 2,848 labels.
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
_STAMPS_PER_TICK = 100_000  # the unit of stamps is 100 ns
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
on both ankles, chest and belt whose positions in metres were read in turn. Windows of 50 distinct
10 ms ticks with stride 25 of each recording. Neighbouring windows overlap by half, so a random
split leaks from training to test; holding out a person does not."""


def fetch_activity(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
    as_frame: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Loads the windows of the Human Activity set: 6,554 series of 50 points and 12 channels.

    Times are rounded to ticks of 10 ms since the first reading of the recording. Readings of one
    tag within a tick are averaged, and the tick has the label of its last reading. (In the
    published file no tick has two labels, nor two readings of one tag.)

    Args:
        data_home: Folder to search first, and to cache in if it is writable.
        download_if_missing: Whether to download the file if no folder has it.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.

    Returns:
        Bunch with `data`, SeriesBatch (N, 50, 12), times in seconds since the window's first
        point; `target` (N, 50) int64, one label per point; `groups` (N,) the person, "A" to "E";
        `recordings` (N,), "A01" to "E05"; `starts` (N,) seconds from the start of the recording to
        the start of the window; `feature_names`, `target_names`, `DESCR` and `source`.

    Raises:
        OSError: The file is absent or broken.
        ValueError: The file has other content.
    """
    located = locate(_SOURCE, data_home=data_home, download_if_missing=download_if_missing)
    arrays = load_cached(
        "activity_windows", _VERSION, [located], lambda: _build(located), data_home=data_home
    )
    return windows_to_bunch(arrays, _DESCR, "real", return_X_y=return_X_y, as_frame=as_frame)


def split_activity(
    bunch: Bunch,
    protocol: str = "windows",
    random_state: int | np.random.RandomState | None = 42,
    person: str = "E",
) -> tuple[np.ndarray, np.ndarray]:
    """Splits the windows into training and test.

    Args:
        bunch: From `fetch_activity` or `make_activity`.
        protocol: "windows" draws 20 % of the windows at random, as in the literature, although
            most of them overlap training windows; "person" holds out all windows of one person.
        random_state: Seed or generator of the draw.
        person: The person to hold out.

    Returns:
        Indices (n_train,) and (n_test,).
    """
    check_choice("protocol", protocol, ("windows", "person"))
    indices = np.arange(len(bunch.groups))
    if protocol == "windows":
        train, test = train_test_split(indices, test_size=0.2, random_state=random_state)
        return train, test
    check_choice("person", person, sorted(set(bunch.groups.tolist())))
    is_test = bunch.groups == person
    return indices[~is_test], indices[is_test]


def cut_windows(
    ticks: np.ndarray, values: np.ndarray, labels: np.ndarray, recordings: np.ndarray
) -> Arrays:
    """Cuts recordings into windows of 50 points with stride 25, while offset + 50 < length.

    Args:
        ticks: (R,) whole numbers, increasing within a recording.
        values: (R, 12), NaN where missing.
        labels: (R,).
        recordings: (R,) names; the rows of a recording are consecutive.

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


def windows_to_bunch(
    arrays: Arrays, descr: str, source: str, *, return_X_y: bool, as_frame: bool
) -> Bunch | tuple[Any, Any]:
    """Converts the arrays of `cut_windows` to the return value of `fetch_activity`."""
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


def _build(located: LocatedSource) -> Arrays:
    table = _parse(read_content(located), located)
    recordings, first_row = np.unique(table["recording"], return_index=True)
    code = np.searchsorted(recordings, table["recording"])
    # Stamps exceed 2^53, so they are subtracted as integers before division.
    elapsed = table["stamp"] - table["stamp"][first_row][code]
    tick = np.rint(elapsed / _STAMPS_PER_TICK).astype(np.int64)
    order = np.lexsort((tick, code))  # a dozen readings are out of order by a tick
    code, tick = code[order], tick[order]
    is_first = np.append(True, (np.diff(code) != 0) | (np.diff(tick) != 0))
    point = np.cumsum(is_first) - 1
    cell = point * len(TAGS) + table["tag"][order]
    n_cells = (point[-1] + 1) * len(TAGS)
    means = [average_cells(cell, table[axis][order], n_cells) for axis in "xyz"]
    last = np.append(np.flatnonzero(is_first)[1:], len(code)) - 1
    windows = cut_windows(
        tick[last],
        np.stack(means, axis=-1).reshape(-1, len(FEATURE_NAMES)),
        table["label"][order][last],
        recordings[code[last]],
    )
    if not len(windows["values"]):
        raise ValueError(
            f"{located.path} must have a recording of more than {WINDOW} time points, got none"
        )
    return windows


def _parse(content: bytes, located: LocatedSource) -> Arrays:
    expected = (
        f"{located.path} must be the activity table (recording, tag, stamp, date, x, y, z, label)"
    )
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
    except (ValueError, UnicodeDecodeError) as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{expected}, got {format_error(error)}") from error
    if frame.empty or frame.isna().to_numpy().any():
        raise ValueError(f"{expected}, got an empty table or an incomplete row")
    labels = {name: code for code, names in enumerate(CLASSES.values()) for name in names}
    tags = {name: code for code, name in enumerate(TAGS)}
    return {
        "recording": frame["recording"].to_numpy(dtype=str),
        "stamp": frame["stamp"].to_numpy(),
        "tag": encode_categories(frame["tag"], tags, expected),
        "label": encode_categories(frame["label"], labels, expected),
        **{axis: frame[axis].to_numpy() for axis in "xyz"},
    }
