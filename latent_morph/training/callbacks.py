"""Callbacks: observe training, record it, and may stop it.

A callback is a `Callback` with some of its methods overridden, or a function
`(history, settings)`, which is called after every epoch.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn

from latent_morph.checks import check_count
from latent_morph.io.atomic import atomic_path
from latent_morph.io.records import write_csv

logger = logging.getLogger("latent_morph")

Row = dict[str, float]


@dataclass(frozen=True)
class Settings:
    """Settings of training, documented by the estimators' parameters of the same names."""

    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    gradient_clip: float | None
    batch_size: int
    max_epochs: int
    budget: float | None = None
    patience: int | None = None
    checkpoint: Path | None = None
    resume: bool = False

    def of_member(self, number: int, n_members: int) -> "Settings":
        """Returns the settings of one of several models: its own checkpoint and share of time."""
        path = self.checkpoint
        if path is not None and number > 0:
            path = path.with_name(f"{path.stem}-{number}{path.suffix}")
        budget = None if self.budget is None else self.budget / n_members
        return replace(self, checkpoint=path, budget=budget)


@dataclass
class History:
    """One row per epoch, and the epoch whose weights were kept."""

    rows: list[Row] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf


class Training(Protocol):
    """The state of training that a callback is given.

    Attributes:
        model: The network, with the weights of the last epoch; at the end with the best weights.
        settings: Settings of training.
        history: The epochs so far, including those before an interruption.
        stop: Set it to True to stop training after this epoch.
    """

    model: nn.Module
    settings: Settings
    history: History
    stop: bool

    def snapshot(self) -> dict[str, Any]:
        """Returns everything needed to resume from here, in a form that `torch.save` accepts."""


class Callback:
    """Base of callbacks, whose methods do nothing.

    Callbacks are called in their order. An exception in one, including KeyboardInterrupt, stops
    training with the best weights restored; `on_train_end` is still called for every callback
    whose `on_train_begin` was called.
    """

    def on_train_begin(self, training: Training) -> None:
        """Called before the first epoch, or before the first one of a resumed run."""

    def on_epoch_end(self, training: Training) -> None:
        """Called after every epoch; `training.history.rows[-1]` is its row."""

    def on_train_end(self, training: Training) -> None:
        """Called at the end of training, also after an exception."""


AnyCallback: TypeAlias = Callback | Callable[[History, Settings], None]


class EarlyStopping(Callback):
    """Stops training when a metric has not improved for some epochs.

    The estimators' parameter `patience` adds this callback on the validation score.

    Args:
        patience: Number of epochs without improvement after which training stops.
        metric: Name of a column of the history. If rows lack it, training is never stopped.
        lower_is_better: True for losses.
    """

    def __init__(
        self, patience: int, *, metric: str = "validation_score", lower_is_better: bool = False
    ) -> None:
        self.patience = check_count("patience", patience)
        self.metric = metric
        self.lower_is_better = lower_is_better

    def on_train_begin(self, training: Training) -> None:
        """Stops a resumed run that had been stopped."""
        self.on_epoch_end(training)

    def on_epoch_end(self, training: Training) -> None:
        """Evaluates the whole history, which a resumed run has too."""
        scores = np.array([r[self.metric] for r in training.history.rows if self.metric in r])
        if len(scores):
            scores = -scores if self.lower_is_better else scores
            # argmax gives the first maximum: an equal score is no improvement.
            best = int(np.argmax(np.nan_to_num(scores, nan=-math.inf)))
            training.stop |= len(scores) - 1 - best >= self.patience


class Checkpoint(Callback):
    """Writes the state of training to a file, from which it can be resumed.

    The estimators' parameter `checkpoint` adds this callback; pass the same file to resume.

    Args:
        path: The file, written atomically; its folder must exist.
        every: Seconds between writes. The last complete epoch is always written at the end.
    """

    def __init__(self, path: str | Path, *, every: float = 30.0) -> None:
        self.path = Path(path)
        self.every = every
        self._timer = _Timer(every)
        self._snapshot: dict[str, Any] | None = None

    def on_train_begin(self, training: Training) -> None:
        """Checks the folder, so that a missing one costs no training time."""
        _check_folder("checkpoint", self.path)
        self._timer, self._snapshot = _Timer(self.every), None

    def on_epoch_end(self, training: Training) -> None:
        """Takes a snapshot, which an interrupted later epoch cannot change."""
        self._snapshot = training.snapshot()
        if self._timer.is_due():
            self._write()

    def on_train_end(self, training: Training) -> None:
        """Writes the last snapshot."""
        self._write()
        self._snapshot = None

    def _write(self) -> None:
        if self._snapshot is not None:
            with atomic_path(self.path) as temporary:
                torch.save(self._snapshot, temporary)


class CSVLog(Callback):
    """Writes the history to a CSV file, one line per epoch, including those of a resumed run.

    Args:
        path: The file, written atomically; its folder must exist.
        every: Seconds between writes. The complete history is always written at the end.
    """

    def __init__(self, path: str | Path, *, every: float = 5.0) -> None:
        self.path = Path(path)
        self.every = every
        self._timer = _Timer(every)

    def on_train_begin(self, training: Training) -> None:
        """Checks the folder, so that a missing one costs no training time."""
        _check_folder("path", self.path)
        self._timer = _Timer(self.every)

    def on_epoch_end(self, training: Training) -> None:
        """Writes the history if the interval has passed."""
        if self._timer.is_due():
            write_csv(self.path, training.history.rows)

    def on_train_end(self, training: Training) -> None:
        """Writes the complete history."""
        write_csv(self.path, training.history.rows)


class TensorBoardLog(Callback):
    """Logs every column of the history to TensorBoard (`tensorboard --logdir FOLDER`).

    Args:
        folder: Folder of the event files; created if absent.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_train_begin(self, training: Training) -> None:
        """Opens a new event file; epochs before an interruption are in an older one."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ImportError(
                'TensorBoardLog needs tensorboard: pip install "latent_morph[tensorboard]"'
            ) from problem
        self._writer = SummaryWriter(str(self.folder))

    def on_epoch_end(self, training: Training) -> None:
        """Logs the last row."""
        row = training.history.rows[-1]
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))

    def on_train_end(self, training: Training) -> None:
        """Closes the event file."""
        self._writer.close()
        self._writer = None


class ProgressLog(Callback):
    """Logs one line per epoch; the estimators' parameter `verbose` adds this callback.

    If the application has configured logging, its handlers receive the lines. Otherwise they go to
    standard error during training.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET

    def on_train_begin(self, training: Training) -> None:
        """Adds a handler, and sets the level, if the application has not."""
        self._level = logger.level
        if self._level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            self._handler = logging.StreamHandler()
            logger.addHandler(self._handler)

    def on_epoch_end(self, training: Training) -> None:
        """Logs the last row."""
        row = training.history.rows[-1]
        score = row.get("validation_score")
        logger.info(
            "epoch %d/%d  loss %.4f%s  %.1f s",
            int(row["epoch"]),
            training.settings.max_epochs,
            row["train_loss"],
            "" if score is None else f"  validation {score:.4f}",
            row["seconds"],
        )

    def on_train_end(self, training: Training) -> None:
        """Restores the logging configuration."""
        logger.setLevel(self._level)
        if self._handler is not None:
            logger.removeHandler(self._handler)


class _FunctionCallback(Callback):
    """Calls a function of the history and the settings after every epoch."""

    def __init__(self, function: Callable[[History, Settings], None]) -> None:
        self.function = function

    def on_epoch_end(self, training: Training) -> None:
        self.function(training.history, training.settings)


def as_callbacks(callbacks: Iterable[AnyCallback]) -> list[Callback]:
    """Returns the callbacks, with functions wrapped as callbacks."""
    converted: list[Callback] = []
    for i, callback in enumerate(callbacks):
        if isinstance(callback, Callback):
            converted.append(callback)
        elif callable(callback) and not isinstance(callback, type):
            converted.append(_FunctionCallback(callback))
        else:
            raise TypeError(
                f"callbacks[{i}] must be a latent_morph.Callback or a function of history and "
                f"settings, got {callback!r}"
            )
    return converted


class _Timer:
    """Is due whenever an interval has passed since it was last due."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.perf_counter()

    def is_due(self) -> bool:
        now = time.perf_counter()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


def _check_folder(name: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name} must be in an existing folder, got {path}")
