"""PhysioNet 2012: sets of 4,000 intensive care stays, labelled by death in hospital."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from latent_morph.checks import check_choice
from latent_morph.datasets.bunches import as_bunch
from latent_morph.datasets.cache import Arrays, load_cached
from latent_morph.datasets.files import LocatedSource, Source, locate, read_content, read_folder
from latent_morph.datasets.tables import average_cells, encode_categories, format_error
from latent_morph.series import pack_rows

DYNAMIC_NAMES = (
    "ALP ALT AST Albumin BUN Bilirubin Cholesterol Creatinine DiasABP FiO2 GCS Glucose HCO3 HCT "
    "HR K Lactate MAP MechVent Mg NIDiasABP NIMAP NISysABP Na PaCO2 PaO2 Platelets RespRate SaO2 "
    "SysABP Temp TroponinI TroponinT Urine WBC Weight pH"
).split()
STATIC_NAMES = ["Age", "Gender", "Height", "ICUType"]
# What the numbers of categories mean.
CATEGORIES = {
    "Gender": {0: "female", 1: "male"},
    "ICUType": {1: "coronary care", 2: "cardiac surgery recovery", 3: "medical", 4: "surgical"},
}
_PARAMETERS = DYNAMIC_NAMES + STATIC_NAMES
_MISSING_IS_MINUS_ONE = {*STATIC_NAMES, "Weight"}
# Since 2 the facts known at admission are apart from the channels.
_VERSION = 2
_HOME = "https://physionet.org/content/challenge-2012/1.0.0/"
_FILES = "https://physionet.org/files/challenge-2012/1.0.0/"
# Digests of the records and of the outcomes of each set. No copy of set b was at hand, so that its
# digests are unknown and its files were never read.
_DIGESTS: dict[str, tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = {
    "a": (
        ("998cdda0813ade746f87a52bf195dea3e045de92a008fe921db65578f6df2848",),
        ("2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",),
    ),
    "b": (None, None),
    "c": (
        ("4e4973805e0ad01ea43d432320017eb1d0413903963a24953f04fbf4ec051b6c",),
        ("0b32dcb7753c0f18f2f5fde498a28618b8879c5e527ce0dae8ad120dd7e205c9",),
    ),
}
_DESCR = """\
PhysioNet/Computing in Cardiology Challenge 2012, set {subset}: the first 48 hours of intensive
care stays, 37 parameters measured at irregular times (weight among them) and four facts known at
admission. About one in seven patients died in hospital."""


def fetch_physionet(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
    as_frame: bool = False,
    subset: str = "a",
) -> Bunch | tuple[Any, Any]:
    """Loads set a from set-a.tar.gz, set-a.zip or the folder set-a, and Outcomes-a.txt.

    Sets b and c are read from files named in the same way, and have the same channels in the same
    order. The challenge's own test is to learn on a and to be scored on c; read c once, at the
    end. Set b is not verified, as no checksum of its files is known, and reading it was tried
    on generated files only.

    Age, gender, height and type of unit, known at admission, are static facts; gender and unit
    are words. For them and for weight, -1 means missing. Several values of one parameter at one
    time are averaged. Every stay has a row at time 0, with or without measurements.

    Args:
        data_home: Folder to search first, and to cache in if it is writable.
        download_if_missing: Whether to download the files if no folder has them.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.
        subset: "a", "b" or "c".

    Returns:
        Bunch with `data`, SeriesBatch (N, T, 37) with the facts in `data.static`, times in hours
        since admission; `target` (N,) int64, 1 for death in hospital; `record_ids` (N,);
        `feature_names`, the 37 measured parameters sorted by name; `static_names`,
        `target_names`, `DESCR` and `source`.

    Raises:
        OSError: A file is absent or broken.
        ValueError: `subset` is unknown, or a file has other content.
    """
    check_choice("subset", subset, _DIGESTS)
    located = [
        locate(source, data_home=data_home, download_if_missing=download_if_missing)
        for source in _make_sources(subset)
    ]
    arrays = load_cached(
        f"physionet_{subset}", _VERSION, located, lambda: _build(*located), data_home=data_home
    )
    data = pack_rows(
        arrays["case"], arrays["minutes"] / 60.0, arrays["values"], len(arrays["died"])
    )
    return as_bunch(
        data.with_static(_make_facts(arrays["static"])),
        arrays["died"],
        return_X_y=return_X_y,
        as_frame=as_frame,
        feature_names=list(DYNAMIC_NAMES),
        static_names=list(STATIC_NAMES),
        target_names=["survived", "died"],
        record_ids=arrays["record_ids"],
        DESCR=_DESCR.format(subset=subset),
        source="real",
    )


def _make_sources(subset: str) -> tuple[Source, Source]:
    """Makes the sources of the records and of the outcomes of a set."""
    records, outcomes = f"set-{subset}", f"Outcomes-{subset}.txt"
    digests_of_records, digests_of_outcomes = _DIGESTS[subset]
    return (
        Source(
            dataset="physionet",
            name=records,
            packed=(f"{records}.tar.gz", f"{records}.zip"),
            url=f"{_FILES}{records}.tar.gz",
            sha256=digests_of_records,
            home=_HOME,
        ),
        Source(
            dataset="physionet",
            name=outcomes,
            packed=(f"{outcomes}.gz",),
            url=_FILES + outcomes,
            sha256=digests_of_outcomes,
            home=_HOME,
        ),
    )


def _build(records: LocatedSource, outcomes: LocatedSource) -> Arrays:
    texts = read_folder(records)
    case, minutes, channel, value = _parse(texts, records)
    # One row per stay and time, one cell per parameter in it.
    n_minutes = int(minutes.max()) + 1
    key, row = np.unique(case * n_minutes + minutes, return_inverse=True)
    n_channels, n_facts = len(DYNAMIC_NAMES), len(STATIC_NAMES)
    is_fact = channel >= n_channels
    cell = row * n_channels + channel
    means = average_cells(cell[~is_fact], value[~is_fact], len(key) * n_channels)
    cell = case * n_facts + channel - n_channels
    static = average_cells(cell[is_fact], value[is_fact], len(texts) * n_facts)
    static = static.reshape(-1, n_facts)
    for name, words in CATEGORIES.items():
        codes = static[:, STATIC_NAMES.index(name)]
        is_unknown = ~np.isin(codes, list(words)) & ~np.isnan(codes)
        if is_unknown.any():
            first = int(is_unknown.argmax())
            raise ValueError(
                f"{records.path} must hold a {name} among {list(words)} or -1, "
                f"got {codes[first]:g} in {list(texts)[first]}.txt"
            )
    ids = np.array([int(name) for name in texts])
    return {
        "case": key // n_minutes,
        "minutes": key % n_minutes,
        "values": means.reshape(-1, n_channels).astype(np.float32),
        "static": static,
        "record_ids": ids,
        "died": _read_deaths(ids, outcomes),
    }


def _make_facts(static: np.ndarray) -> pd.DataFrame:
    """Makes the table of facts (N, 4), with words for the numbers of categories."""
    facts = pd.DataFrame(static, columns=STATIC_NAMES)
    for name, words in CATEGORIES.items():
        facts[name] = pd.Categorical(facts[name].map(words), categories=list(words.values()))
    return facts


def _parse(
    texts: dict[str, bytes], located: LocatedSource
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Converts files by record to case, minutes, channel and value (R,) of every measurement."""
    expected = f"{located.path} must hold records with lines Time,Parameter,Value"
    bodies = []
    for name, text in texts.items():
        head, _, body = text.partition(b"\n")
        if head.strip() != b"Time,Parameter,Value" or not name.isdigit() or not body.strip():
            raise ValueError(f"{expected}, got another content in {name}.txt")
        bodies.append(body if body.endswith(b"\n") else body + b"\n")
    try:
        frame = pd.read_csv(
            io.BytesIO(b"".join(bodies)),
            header=None,
            names=["time", "parameter", "value"],
            dtype={"time": "category", "parameter": "category", "value": float},
            skip_blank_lines=False,  # the number of lines identifies the record
            index_col=False,
        )
    except (ValueError, UnicodeDecodeError) as error:  # pandas' errors are ValueErrors
        raise ValueError(f"{expected}, got {format_error(error)}") from error
    case = np.repeat(np.arange(len(bodies)), [body.count(b"\n") for body in bodies])
    clock = {text: _parse_minutes(text, expected) for text in frame["time"].cat.categories}
    codes = {name: code for code, name in enumerate(_PARAMETERS)} | {"RecordID": -1}
    is_complete = ~frame.isna().to_numpy().any(1)
    minutes = encode_categories(frame["time"], clock, expected)
    channel = encode_categories(frame["parameter"], codes, expected)
    value = frame["value"].to_numpy()
    minus_one = np.array([name in _MISSING_IS_MINUS_ONE for name in _PARAMETERS])
    is_known = is_complete & (channel >= 0) & ~((value == -1) & minus_one[channel])
    is_empty = np.bincount(case[is_known], minlength=len(bodies)) == 0
    if is_empty.any():
        name = list(texts)[int(is_empty.argmax())]
        raise ValueError(f"{expected}, got no measurement in {name}.txt")
    return case[is_known], minutes[is_known], channel[is_known], value[is_known]


def _parse_minutes(text: str, expected: str) -> int:
    hours, _, minutes = text.partition(":")
    if not (hours.isdigit() and minutes.isdigit()):
        raise ValueError(f"{expected}, got the time {text!r}, which is not hh:mm")
    return 60 * int(hours) + int(minutes)


def _read_deaths(ids: np.ndarray, located: LocatedSource) -> np.ndarray:
    expected = f"{located.path} must be the table of outcomes"
    try:
        table = pd.read_csv(io.BytesIO(read_content(located)), index_col="RecordID")
        died = table["In-hospital_death"].reindex(ids)
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{expected}, got {format_error(error)}") from error
    is_known = died.isin([0, 1])
    if not is_known.all():
        raise ValueError(f"{expected}, got no outcome of record {ids[(~is_known).argmax()]}")
    return died.to_numpy(dtype=np.int64)
