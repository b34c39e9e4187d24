"""Training: the loop, its settings, and callbacks that are told how it goes."""

from latent_morph.training.callbacks import (
    AnyCallback,
    Callback,
    Checkpoint,
    CSVLog,
    EarlyStopping,
    History,
    ProgressLog,
    Settings,
    TensorBoardLog,
)
from latent_morph.training.loop import SCHEDULES, Examples, TrainingError, train

__all__ = [
    "SCHEDULES",
    "AnyCallback",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Examples",
    "History",
    "ProgressLog",
    "Settings",
    "TensorBoardLog",
    "TrainingError",
    "train",
]
