"""SeriesEstimator: the base of all estimators: input checks and training settings."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import validate_data

from latent_morph.checks import check_device
from latent_morph.estimators.inputs import is_table
from latent_morph.estimators.parameters import DTYPES
from latent_morph.estimators.persistence import PersistentEstimator
from latent_morph.series import Data, SeriesBatch, as_series
from latent_morph.training import AnyCallback, Callback, History, ProgressLog, Settings


class SeriesEstimator(PersistentEstimator):
    """Validates inputs as scikit-learn does, and makes the settings of training."""

    _noun: ClassVar[str] = "series"  # name of a case in errors

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
    device: str
    dtype: str
    random_state: Any
    verbose: int | bool
    callbacks: Sequence[AnyCallback] | None

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "history_")  # set last, so that an interrupted fit does not count

    def _validate_series(self, X: Data, *, reset: bool, min_columns: int = 1) -> SeriesBatch:
        """Converts X; 2-D tables also pass scikit-learn's own checks.

        Values are in double precision until they are scaled.
        """
        table = is_table(X)
        rules: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        if table and (reset or self.fitted_on_table_):
            X = validate_data(self, X, reset=reset, ensure_min_features=min_columns, **rules)
        elif table:  # series may have another length than in `fit`
            X = check_array(X, estimator=self, **rules)
        elif isinstance(X, (list, tuple)) and not len(X):
            raise ValueError(f"X must have at least one {self._noun}, got none")
        batch = as_series(X, dtype=torch.float64).to("cpu", torch.float64)
        if not len(batch):
            raise ValueError(f"X must have at least one {self._noun}, got none")
        if reset:
            self.__dict__.pop("history_", None)  # of an earlier fit
            self.fitted_on_table_ = table
            self.n_channels_ = batch.n_channels
            self.n_features_in_ = X.shape[1] if table else batch.n_channels
            if not table and hasattr(self, "feature_names_in_"):
                del self.feature_names_in_  # of an earlier fit
        elif batch.n_channels != self.n_channels_:
            raise ValueError(
                f"X must have {self.n_channels_} channels as in fit, got {batch.n_channels}"
            )
        return batch

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
        self.best_epoch_ = history.best_epoch
        self.n_iter_ = len(history.rows)
        self.history_ = history.rows

    def _fitted_dtype(self) -> torch.dtype:
        """Returns the dtype of the fitted model, whatever `dtype` was set to since."""
        return DTYPES[self._fitted_params["dtype"]]
