"""Problem, a data set split into training and test, and Request, the options that select it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from latent_morph.series import SeriesBatch

SOURCES = ("auto", "real", "synthetic")


@dataclass(frozen=True)
class Request:
    """Options of a data set."""

    source: str = "auto"
    data_home: Path | None = None
    protocol: str | None = None
    n_cases: int | None = None
    n_times: int = 100
    keep: float | None = None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A data set, split into training and test; the latter is used once per run."""

    train_X: SeriesBatch
    train_y: Any = None  # labels or targets, if there are any
    test_X: SeriesBatch  # inputs of predictions, or references of roll-outs
    test_y: Any = None  # true labels or targets, if not `test_X`
    train_reference: SeriesBatch | None = None  # `train_X` without noise, if known
    groups: np.ndarray | None = None  # (N,) of `train_X`; held out as a whole
    channel_names: Sequence[str]
    class_names: Sequence[str] = ()
    unit: str = ""  # of the channels
    source: str  # "real" or "synthetic"
    protocol: str  # which split or variant
    note: str = ""  # for the reader of results
