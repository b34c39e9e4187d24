"""PhysioNet 2012, set a: 4,000 stays in intensive care, and who died in hospital."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils import Bunch

from latent_morph.datasets.bunches import as_bunch
from latent_morph.datasets.cache import Arrays, cached
from latent_morph.datasets.files import Found, Source, locate, one_line, read_content, read_folder
from latent_morph.series import pack_rows

DYNAMIC_NAMES = (
    "ALP ALT AST Albumin BUN Bilirubin Cholesterol Creatinine DiasABP FiO2 GCS Glucose HCO3 HCT "
    "HR K Lactate MAP MechVent Mg NIDiasABP NIMAP NISysABP Na PaCO2 PaO2 Platelets RespRate SaO2 "
    "SysABP Temp TroponinI TroponinT Urine WBC Weight pH"
).split()
STATIC_NAMES = ["Age", "Gender", "Height", "ICUType"]
FEATURE_NAMES = DYNAMIC_NAMES + STATIC_NAMES
_UNKNOWN = {*STATIC_NAMES, "Weight"}  # parameters in which -1 stands for "not known"
_VERSION = 1
_HOME = "https://physionet.org/content/challenge-2012/1.0.0/"
_FILES = "https://physionet.org/files/challenge-2012/1.0.0/"
_RECORDS = Source(
    dataset="physionet",
    name="set-a",
    packed=("set-a.tar.gz", "set-a.zip"),
    url=_FILES + "set-a.tar.gz",
    sha256=("998cdda0813ade746f87a52bf195dea3e045de92a008fe921db65578f6df2848",),
    home=_HOME,
)
_OUTCOMES = Source(
    dataset="physionet",
    name="Outcomes-a.txt",
    packed=("Outcomes-a.txt.gz",),
    url=_FILES + "Outcomes-a.txt",
    sha256=("2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2",),
    home=_HOME,
)
_DESCR = """\
PhysioNet/Computing in Cardiology Challenge 2012, set a: the first 48 hours of intensive
care stays, 37 parameters measured at irregular times (weight among them) and four facts known at
admission. About one in seven patients died in hospital."""


def fetch_physionet(
    *,
    data_home: str | os.PathLike[str] | None = None,
    download_if_missing: bool = True,
    return_X_y: bool = False,
    as_frame: bool = False,
) -> Bunch | tuple[Any, Any]:
    """Loads set a from set-a.tar.gz, set-a.zip or the folder set-a, and Outcomes-a.txt.

    Age, gender, height and kind of unit are channels observed at time 0 only; -1 there, and for
    weight, means unknown and is left missing. Several values of one parameter at one time are
    averaged.

    Args:
        data_home: Folder to look in first, and to cache in if it can be written.
        download_if_missing: Whether to try the network where no folder has the files.
        return_X_y: Return `(data, target)` only.
        as_frame: Return pandas objects; see `datasets.bunches.as_bunch`.

    Returns:
        Bunch with `data`, SeriesBatch (N, T, 41), times in hours since admission; `target` (N,)
        int64, 1 for death in hospital; `record_ids` (N,); `feature_names`, the 37 measured
        parameters sorted by name, then the four of admission; `target_names`, `DESCR`, `source`.

    Raises:
        OSError: A file is absent or broken.
        ValueError: A file is not what it should be.
    """
    found = [
        locate(source, data_home=data_home, download_if_missing=download_if_missing)
        for source in (_RECORDS, _OUTCOMES)
    ]
    arrays = cached("physionet_a", _VERSION, found, lambda: _build(*found), data_home=data_home)
    data = pack_rows(
        arrays["case"], arrays["minutes"] / 60.0, arrays["values"], len(arrays["died"])
    )
    return as_bunch(
        data,
        arrays["died"],
        return_X_y=return_X_y,
        as_frame=as_frame,
        feature_names=list(FEATURE_NAMES),
        target_names=["survived", "died"],
        record_ids=arrays["record_ids"],
        DESCR=_DESCR,
        source="real",
    )


def _build(records: Found, outcomes: Found) -> Arrays:
    texts = read_folder(records)
    case, minutes, channel, value = _parse(texts, records)
    # One row for each time of each stay, one cell for each parameter in it.
    clock = int(minutes.max()) + 1
    moment, row = np.unique(case * clock + minutes, return_inverse=True)
    cell = row * len(FEATURE_NAMES) + channel
    n_cells = len(moment) * len(FEATURE_NAMES)
    count = np.bincount(cell, minlength=n_cells).astype(np.float64)
    count[count == 0] = np.nan  # makes the mean of nothing a NaN
    means = np.bincount(cell, weights=value, minlength=n_cells) / count
    ids = np.array([int(name) for name in texts])
    return {
        "case": moment // clock,
        "minutes": moment % clock,
        "values": means.reshape(-1, len(FEATURE_NAMES)).astype(np.float32),
        "record_ids": ids,
        "died": _deaths(ids, outcomes),
    }


def _parse(
    texts: dict[str, bytes], found: Found
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Files by record -> case, minutes, channel and value of every known measurement."""
    wrong = f"{found.path} is not a set of records with lines Time,Parameter,Value"
    bodies = []
    for name, text in texts.items():
        head, _, body = text.partition(b"\n")
        if head.strip() != b"Time,Parameter,Value" or not name.isdigit() or not body.strip():
            raise ValueError(f"{wrong}: see {name}.txt")
        bodies.append(body if body.endswith(b"\n") else body + b"\n")
    try:
        frame = pd.read_csv(
            io.BytesIO(b"".join(bodies)),
            header=None,
            names=["time", "parameter", "value"],
            dtype={"time": "category", "parameter": "category", "value": float},
            skip_blank_lines=False,  # lines are counted, to tell which record they are from
            index_col=False,
        )
    except (ValueError, UnicodeDecodeError) as error:  # pandas' own errors are ValueErrors
        raise ValueError(f"{wrong}: {one_line(error)}") from error
    case = np.repeat(np.arange(len(bodies)), [body.count(b"\n") for body in bodies])
    clock = [_minutes(text, wrong) for text in frame["time"].cat.categories]
    codes = {name: code for code, name in enumerate(FEATURE_NAMES)} | {"RecordID": -1}
    names = list(frame["parameter"].cat.categories)
    unknown = sorted(set(names) - set(codes))
    if unknown:
        raise ValueError(f"{wrong}: unknown parameter {unknown[0]!r}")
    whole = ~frame.isna().to_numpy().any(1)
    minutes = np.array(clock)[frame["time"].cat.codes.to_numpy()]
    channel = np.array([codes[name] for name in names])[frame["parameter"].cat.codes.to_numpy()]
    value = frame["value"].to_numpy()
    minus_one = np.array([name in _UNKNOWN for name in FEATURE_NAMES])
    known = whole & (channel >= 0) & ~((value == -1) & minus_one[channel])
    silent = np.bincount(case[known], minlength=len(bodies)) == 0
    if silent.any():
        raise ValueError(f"{wrong}: {list(texts)[int(silent.argmax())]}.txt has no measurement")
    return case[known], minutes[known], channel[known], value[known]


def _minutes(text: str, wrong: str) -> int:
    hours, _, minutes = text.partition(":")
    if not (hours.isdigit() and minutes.isdigit()):
        raise ValueError(f"{wrong}: {text!r} is no time hh:mm")
    return 60 * int(hours) + int(minutes)


def _deaths(ids: np.ndarray, found: Found) -> np.ndarray:
    wrong = f"{found.path} is not the table of outcomes"
    try:
        table = pd.read_csv(io.BytesIO(read_content(found)), index_col="RecordID")
        died = table["In-hospital_death"].reindex(ids)
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"{wrong}: {one_line(error)}") from error
    if not died.isin([0, 1]).all():
        raise ValueError(f"{wrong}: record {ids[(~died.isin([0, 1])).argmax()]} has no outcome")
    return died.to_numpy(dtype=np.int64)
