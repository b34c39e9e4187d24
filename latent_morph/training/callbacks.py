"""Callbacks: who is told how training goes, may keep records of it, and may end it.

A callback is a `Callback` with some of its methods overridden, or simply a function
`(history, settings)`, which is called after every epoch.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import nn

from latent_morph.checks import check_count
from latent_morph.io.records import atomic_path, write_csv

logger = logging.getLogger("latent_morph")

Row = dict[str, float]


@dataclass(frozen=True)
class Settings:
    """How to train; the estimators' parameters of the same names say what each means."""

    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    gradient_clip: float | None
    batch_size: int
    max_epochs: int
    budget: float | None = None
    patience: int | None = None
    kl_warmup: float = 0.0
    sample_z0: bool = True
    keep: float | None = None
    target_points: int | None = None
    checkpoint: Path | None = None
    resume: bool = False


@dataclass
class History:
    """One row an epoch, and which of them gave the weights that were kept."""

    rows: list[Row] = field(default_factory=list)
    best_epoch: int = 0
    best_score: float = -math.inf


class Training(Protocol):
    """What a callback sees.

    Attributes:
        model: The network: as the last epoch left it, and with its best weights at the end.
        settings: How it is trained.
        history: The epochs so far, those before an interruption included.
        stop: Set it to end training after this epoch.
    """

    model: nn.Module
    settings: Settings
    history: History
    stop: bool

    def snapshot(self) -> dict[str, Any]:
        """All that is needed to go on from here later, as `torch.save` takes it."""


class Callback:
    """Does nothing; override what is of interest.

    Callbacks are called in their order. An exception from one, KeyboardInterrupt too, ends
    training with the best weights in place, and `on_train_end` is still called for all that began.
    """

    def on_train_begin(self, training: Training) -> None:
        """Before the first epoch, or the first one after an interruption."""

    def on_epoch_end(self, training: Training) -> None:
        """After every epoch; `training.history.rows[-1]` is its row."""

    def on_train_end(self, training: Training) -> None:
        """At the end, however it comes."""


AnyCallback: TypeAlias = Callback | Callable[[History, Settings], None]


class EarlyStopping(Callback):
    """Ends training when a figure has not improved for a while.

    The parameter `patience` of the estimators is this, on the validation score.

    Args:
        patience: Epochs without a better figure that are put up with.
        metric: The name of the figure in the rows of the history. Without it, nothing is ended.
        lower_is_better: As for losses.
    """

    def __init__(
        self, patience: int, *, metric: str = "validation_score", lower_is_better: bool = False
    ) -> None:
        self.patience = check_count("patience", patience)
        self.metric = metric
        self.lower_is_better = lower_is_better

    def on_train_begin(self, training: Training) -> None:
        """A run that was over stays over when it is resumed."""
        self.on_epoch_end(training)

    def on_epoch_end(self, training: Training) -> None:
        """Looks at the whole history: nothing is lost by an interruption."""
        figures = np.array([r[self.metric] for r in training.history.rows if self.metric in r])
        if len(figures):
            figures = -figures if self.lower_is_better else figures
            # An equal figure is no better one, so the first of the highest counts.
            best = int(np.argmax(np.nan_to_num(figures, nan=-math.inf)))
            training.stop |= len(figures) - 1 - best >= self.patience


class Checkpoint(Callback):
    """Writes the state of training to a file, from which it can be resumed.

    The parameter `checkpoint` of the estimators is this; give it the same file to resume.

    Args:
        path: The file; its folder must exist. It is replaced whole or not at all.
        every: Seconds between writes. The last whole epoch is written at the end in any case.
    """

    def __init__(self, path: str | Path, *, every: float = 30.0) -> None:
        self.path = Path(path)
        self.every = every
        self._clock = _Every(every)
        self._content: dict[str, Any] | None = None

    def on_train_begin(self, training: Training) -> None:
        """Refuses a folder that is not there before any time is spent."""
        _check_folder("checkpoint", self.path)
        self._clock, self._content = _Every(self.every), None

    def on_epoch_end(self, training: Training) -> None:
        """Takes the state as it is: an epoch broken off later must leave no trace in it."""
        self._content = training.snapshot()
        if self._clock.due():
            self._write()

    def on_train_end(self, training: Training) -> None:
        """Writes the last state that was taken."""
        self._write()
        self._content = None

    def _write(self) -> None:
        if self._content is not None:
            with atomic_path(self.path) as temporary:
                torch.save(self._content, temporary)


class CSVLog(Callback):
    """Keeps the history in a table, one line an epoch, complete after a resumed run too.

    Args:
        path: The file; its folder must exist. It is replaced whole or not at all.
        every: Seconds between writes; the end is written in any case.
    """

    def __init__(self, path: str | Path, *, every: float = 5.0) -> None:
        self.path = Path(path)
        self.every = every
        self._clock = _Every(every)

    def on_train_begin(self, training: Training) -> None:
        """Refuses a folder that is not there before any time is spent."""
        _check_folder("path", self.path)
        self._clock = _Every(self.every)

    def on_epoch_end(self, training: Training) -> None:
        """Writes now and then."""
        if self._clock.due():
            write_csv(self.path, training.history.rows)

    def on_train_end(self, training: Training) -> None:
        """Writes all."""
        write_csv(self.path, training.history.rows)


class TensorBoardLog(Callback):
    """Sends every figure of every epoch to TensorBoard (`tensorboard --logdir FOLDER`).

    Args:
        folder: Where its files go; made if absent.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_train_begin(self, training: Training) -> None:
        """Opens a file; epochs before an interruption are in an older one."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ImportError(
                'TensorBoardLog needs tensorboard: pip install "latent_morph[tensorboard]"'
            ) from problem
        self._writer = SummaryWriter(str(self.folder))

    def on_epoch_end(self, training: Training) -> None:
        """Sends the row."""
        row = training.history.rows[-1]
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name, value, int(row["epoch"]))

    def on_train_end(self, training: Training) -> None:
        """Closes the file."""
        self._writer.close()
        self._writer = None


class ProgressLog(Callback):
    """Logs a line an epoch: what `verbose` is.

    Where nobody has set up logging, lines go to standard error while training lasts; where
    somebody has, they go where that says.
    """

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._level = logging.NOTSET

    def on_train_begin(self, training: Training) -> None:
        """Sees to it that lines are seen."""
        self._level = logger.level
        if self._level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        if not logger.hasHandlers():
            self._handler = logging.StreamHandler()
            logger.addHandler(self._handler)

    def on_epoch_end(self, training: Training) -> None:
        """Logs the newest row."""
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
        """Leaves logging as it was."""
        logger.setLevel(self._level)
        if self._handler is not None:
            logger.removeHandler(self._handler)


class _Function(Callback):
    """A function of the history and the settings, called after every epoch."""

    def __init__(self, function: Callable[[History, Settings], None]) -> None:
        self.function = function

    def on_epoch_end(self, training: Training) -> None:
        self.function(training.history, training.settings)


def as_callbacks(callbacks: Iterable[AnyCallback]) -> list[Callback]:
    """Functions as callbacks, and callbacks as they are; anything else is refused."""
    found: list[Callback] = []
    for i, callback in enumerate(callbacks):
        if isinstance(callback, Callback):
            found.append(callback)
        elif callable(callback) and not isinstance(callback, type):
            found.append(_Function(callback))
        else:
            raise TypeError(
                f"callbacks[{i}] is {callback!r}; wanted a latent_morph.Callback, or a function "
                f"of history and settings"
            )
    return found


class _Every:
    """Says yes when so many seconds have passed since it last did."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last = time.perf_counter()

    def due(self) -> bool:
        now = time.perf_counter()
        if now - self.last < self.seconds:
            return False
        self.last = now
        return True


def _check_folder(name: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name} is {path}; there is no such folder")
