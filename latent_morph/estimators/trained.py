"""TrainedEstimator: the base of estimators that gradients train: settings and history."""

import math
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import torch
from sklearn.utils import check_random_state

from latent_morph.checks import check_device
from latent_morph.estimators.base import SeriesEstimator
from latent_morph.estimators.parameters import DTYPES
from latent_morph.training import AnyCallback, Callback, History, ProgressLog, Settings


class TrainedEstimator(SeriesEstimator):
    """Makes the settings of training, and keeps its history."""

    _last_fitted: ClassVar[str] = "history_"

    # Parameters that methods here use, declared by the constructors of subclasses.
    optimizer: str
    learning_rate: float
    weight_decay: float
    schedule: str
    gradient_clip: float | None
    max_epochs: int
    budget: float | None
    patience: int | None
    checkpoint: str | Path | None
    resume: bool
    dtype: str
    random_state: Any
    verbose: int | bool
    callbacks: Sequence[AnyCallback] | None

    n_train_: int
    n_val_: int
    history_: list[dict[str, float]]
    best_epoch_: int

    def _validate_training(self) -> int:
        """Checks parameters of training and returns a seed."""
        check_device("device", self.device)
        if self.resume and not isinstance(self.random_state, Integral):
            # Another seed would validate on cases that were trained on before.
            raise ValueError(
                f"random_state must be an integer to resume, got {self.random_state!r}"
            )
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _make_settings(self, batch_size: int) -> Settings:
        return Settings(
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            schedule=self.schedule,
            gradient_clip=self.gradient_clip,
            batch_size=batch_size,
            max_epochs=self.max_epochs,
            budget=self.budget,
            patience=self.patience,
            checkpoint=None if self.checkpoint is None else Path(self.checkpoint),
            resume=self.resume,
        )

    def _make_callbacks(self) -> list[AnyCallback]:
        log: list[Callback] = [ProgressLog()] if self.verbose else []
        return [*log, *(self.callbacks or ())]

    def _finish(self, history: History) -> None:
        """Sets the fitted attributes of training."""
        self.best_epoch_ = history.best_epoch
        self.n_iter_ = len(history.rows)
        self.history_ = history.rows

    def _fitted_dtype(self) -> torch.dtype:
        """Returns the dtype of the fitted model, whatever `dtype` was set to since."""
        return DTYPES[self._fitted_params["dtype"]]

    def _make_config(self) -> dict[str, Any]:
        return super()._make_config() | {
            "history": self.history_,
            "best_epoch": self.best_epoch_,
            "n_train": self.n_train_,
            "n_val": self.n_val_,
        }

    def _restore(self, config: dict[str, Any]) -> None:
        super()._restore(config)
        self.n_train_ = config["n_train"]
        self.n_val_ = config["n_val"]

    def _restore_last(self, config: dict[str, Any]) -> None:
        self._finish(History(config["history"], config["best_epoch"], math.nan))
