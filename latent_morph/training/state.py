"""TrainingState: everything that changes during training, and its checkpoints."""

import copy
import logging
import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.training.callbacks import History, Row, Settings

logger = logging.getLogger("latent_morph")

# Since 3 the optimizer has parameter groups, and the best weights are a state dict.
CHECKPOINT_VERSION = 3


class TrainingState:
    """The state that callbacks are given as `latent_morph.training.callbacks.Training`."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        random: np.random.RandomState,
        settings: Settings,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.random = random
        self.settings = settings
        self.history = History()
        self.stop = False  # set by callbacks
        self.best = _copy_weights(model)
        self.begin = time.perf_counter()
        self.earlier_seconds = 0.0  # in earlier, resumed runs

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 1."""
        return len(self.history.rows) + 1

    def elapsed(self) -> float:
        """Returns the seconds of training, including earlier runs."""
        return self.earlier_seconds + time.perf_counter() - self.begin

    def progress(self, epoch_fraction: float) -> float:
        """Returns the progress, 0 to 1, by epochs or by time, whichever is further."""
        progress = (len(self.history.rows) + epoch_fraction) / self.settings.max_epochs
        if self.settings.budget is not None:
            progress = max(progress, self.elapsed() / self.settings.budget)
        return min(1.0, progress)

    def out_of_time(self) -> bool:
        """Returns whether the budget is spent."""
        budget = self.settings.budget
        return budget is not None and self.elapsed() >= budget

    def finished(self) -> bool:
        """Returns whether training is complete."""
        rows = self.history.rows
        if len(rows) >= self.settings.max_epochs:
            return True
        return self.stop or (bool(rows) and self.out_of_time())

    def end_epoch(self, row: Row) -> None:
        """Appends the epoch's row, and keeps the weights if they are the best."""
        self.history.rows.append(row)
        score = row.get("validation_score", math.inf)
        # Of equal scores the later epoch is kept, which was trained longer.
        if score >= self.history.best_score or "validation_score" not in row:
            self.history.best_score = score
            self.history.best_epoch = int(row["epoch"])
            self.best = _copy_weights(self.model)

    def load_best(self) -> None:
        """Loads the best weights into the model."""
        self.model.load_state_dict(self.best)

    def snapshot(self) -> dict[str, Any]:
        """See `latent_morph.training.callbacks.Training`."""
        kind, keys, position, *_ = self.random.get_state()
        return {
            "version": CHECKPOINT_VERSION,
            "model": _copy_weights(self.model),
            "best": self.best,
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "rows": list(self.history.rows),
            "best_epoch": self.history.best_epoch,
            "best_score": self.history.best_score,
            "random": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position)],
            "seconds": self.elapsed(),
        }

    def restore(self) -> None:
        """Continues from the checkpoint, if there is one."""
        path = self.settings.checkpoint
        if path is None or not path.exists():
            return
        try:
            content = torch.load(path, weights_only=True, map_location="cpu")
            if content["version"] != CHECKPOINT_VERSION:
                raise ValueError(f"version must be {CHECKPOINT_VERSION}, got {content['version']}")
            for name in ("best", "model"):  # raises if they do not fit
                _check_dtypes(content[name], self.model.state_dict())
                self.model.load_state_dict(content[name])
            self.best = content["best"]
            self.optimizer.load_state_dict(content["optimizer"])
            kind, keys, position = content["random"]
            self.random.set_state((kind, keys.numpy().astype(np.uint32), position, 0, 0.0))
            self.history = History(content["rows"], content["best_epoch"], content["best_score"])
            self.earlier_seconds = content["seconds"]
        except Exception as problem:  # torch, zipfile and pickle raise many types
            raise ValueError(
                f"checkpoint must be complete, of this version and of a model with the same "
                f"parameters, got {path}. Delete it to start over."
            ) from problem
        logger.info("resuming from %s after epoch %d", path, len(self.history.rows))


def _copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def _check_dtypes(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raises if weights have another dtype, which torch would convert silently."""
    for name, value in expected.items():
        if weights[name].dtype != value.dtype:
            raise ValueError(f"{name} must be of {value.dtype}, got {weights[name].dtype}")
