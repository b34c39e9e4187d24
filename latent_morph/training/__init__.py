"""Training: the loop, its settings, optimizers and callbacks."""

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
from latent_morph.training.loop import SCHEDULES, TrainingError, train
from latent_morph.training.optimizer import OPTIMIZERS, make_optimizer

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "AnyCallback",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "History",
    "ProgressLog",
    "Settings",
    "TensorBoardLog",
    "TrainingError",
    "make_optimizer",
    "train",
]
