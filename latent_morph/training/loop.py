"""The training loop: epochs, schedule, validation, best weights, budget, checkpoints."""

import copy
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.checks import NotFiniteError, check_choice
from latent_morph.descent import Descent
from latent_morph.flows import IntegrationError
from latent_morph.losses import Loss, count_values
from latent_morph.seeding import seeded
from latent_morph.series import SeriesBatch, subsample
from latent_morph.training.callbacks import (
    AnyCallback,
    Callback,
    Checkpoint,
    EarlyStopping,
    History,
    Row,
    Settings,
    as_callbacks,
)

logger = logging.getLogger("latent_morph")

SCHEDULES = ("one-cycle", "exponential", "constant")
CHECKPOINT_VERSION = 2  # since 2 the optimiser has all weights in one vector


class TrainingError(RuntimeError):
    """Training met a loss or gradient that is no number; the last good weights are kept."""


@dataclass(frozen=True)
class Examples:
    """Cases to learn from: what the encoder sees, what is to be reconstructed, and labels.

    Attributes:
        seen: Scaled series, N of them.
        target: What the emission is held against, at its own times; None for `seen` itself.
        labels: (N,) or (N, T) class codes, -1 for none; None without classes.
        weight: (N,) factors of the cases, 1 on average, or None.
    """

    seen: SeriesBatch
    target: SeriesBatch | None = None
    labels: Tensor | None = None
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.seen)

    def __getitem__(self, index: np.ndarray | slice) -> "Examples":
        def part(whole: Any) -> Any:  # noqa: ANN401
            return None if whole is None else whole[index]

        return Examples(self.seen[index], part(self.target), part(self.labels), part(self.weight))

    def trimmed(self) -> "Examples":
        """Without the columns that are padding for every case here."""
        seen = self.seen.trim()
        labels = self.labels
        if labels is not None and labels.ndim == 2:
            labels = labels[:, : seen.n_times]
        target = None if self.target is None else self.target.trim()
        return Examples(seen, target, labels, self.weight)

    def to(self, device: str) -> "Examples":
        """Moves everything to `device`."""

        def moved(whole: Any) -> Any:  # noqa: ANN401
            return None if whole is None else whole.to(device)

        return Examples(
            moved(self.seen), moved(self.target), moved(self.labels), moved(self.weight)
        )


def train(
    model: nn.Module,
    objective: Callable[..., Loss],
    learn: Examples,
    check: Examples | None,
    score: Callable[[Any, Examples], float],
    settings: Settings,
    *,
    class_weight: Tensor | None = None,
    seed: int = 0,
    callbacks: Sequence[AnyCallback] = (),
) -> History:
    """Trains `model` in place and leaves it with its best weights.

    Args:
        model: The model.
        objective: What to minimise.
        learn: Cases for gradients.
        check: Cases for `score`, which picks the best epoch; None keeps the last.
        score: Higher is better; called in evaluation mode without gradients.
        settings: How.
        class_weight: (K,) factors of the classes.
        seed: Order of cases, samples of z0 and thinning.
        callbacks: Told how it goes, after the checkpoint and the early stopping that `settings`
            ask for. An exception from one, KeyboardInterrupt too, ends training with the best
            weights in place and the checkpoint written.

    Raises:
        TrainingError: The loss or its gradient was not finite.
        FileNotFoundError: There is no folder for the checkpoint.
        ValueError: The checkpoint to resume from is damaged or of another model.
    """
    check_choice("schedule", settings.schedule, SCHEDULES)
    generator = torch.Generator(device=learn.seen.device)
    everyone = [*_asked_for(settings), *as_callbacks(callbacks)]
    with ExitStack() as at_the_end:
        descent = Descent(
            model,
            optimizer=settings.optimizer,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            gradient_clip=settings.gradient_clip,
        )
        at_the_end.callback(descent.release)
        state = _State(model, descent, np.random.RandomState(seed), settings)
        if settings.resume:
            state.restore()
        for callback in everyone:
            callback.on_train_begin(state)
            at_the_end.callback(callback.on_train_end, state)
        at_the_end.callback(state.load_best)  # the last to come is the first to go
        while not state.finished():
            epoch = len(state.history.rows) + 1
            generator.manual_seed(seed * 1_000_003 + epoch)
            begin = time.perf_counter()
            # To tell every part of a model takes a while: only where somebody may have changed it.
            if epoch == 1 or check is not None or everyone or not model.training:
                model.train()
            with seeded(seed * 1_000_003 + epoch):  # dropout draws from torch's own generator
                row = _epoch(state, objective, learn, generator, class_weight)
            row["train_seconds"] = time.perf_counter() - begin
            if check is not None:
                row["validation_score"] = evaluate(model, check, score)
            row["seconds"] = time.perf_counter() - begin
            state.keep(row)
            for callback in everyone:
                callback.on_epoch_end(state)
    return state.history


def _asked_for(settings: Settings) -> list[Callback]:
    """The callbacks that parameters stand for."""
    found: list[Callback] = []
    if settings.checkpoint is not None:
        found.append(Checkpoint(settings.checkpoint))
    if settings.patience is not None:
        found.append(EarlyStopping(settings.patience))
    return found


def evaluate(
    model: nn.Module, examples: Examples, score: Callable[[Any, Examples], float]
) -> float:
    """`score` with the model in evaluation mode and no gradients recorded."""
    model.eval()
    with torch.no_grad():
        return score(model, examples)


def _epoch(
    state: "_State",
    objective: Callable[..., Loss],
    learn: Examples,
    generator: torch.Generator,
    class_weight: Tensor | None,
) -> Row:
    """One pass over the cases, or what of it the budget allows; the mean losses of it."""
    model, settings = state.model, state.settings
    sums: dict[str, float] = {}
    n_cases = 0
    batches = _batches(learn, settings.batch_size, state.random)
    for number, chosen in enumerate(batches, start=1):
        progress = state.progress(number / len(batches))
        rate = settings.learning_rate * learning_rate_factor(settings.schedule, progress)
        examples = learn[chosen].trimmed()
        seen, target = examples.seen, examples.target
        if settings.keep is not None:
            target = seen if target is None else target
            seen = subsample(seen, settings.keep, state.random)
        n_values = count_values(seen if target is None else target)
        if target is not None:
            target = subsample(target, 1.0, state.random, most=settings.target_points)
        share = 1.0 if settings.kl_warmup <= 0 else min(1.0, progress / settings.kl_warmup)
        where = f"in epoch {len(state.history.rows) + 1}, batch {number} of {len(batches)}"
        times, wanted = (None, None) if target is None else (target.times, target.present)
        try:
            output = model(
                seen, times, wanted=wanted, sample=settings.sample_z0, generator=generator
            )
        except (NotFiniteError, IntegrationError) as problem:
            raise TrainingError(f"{problem} ({where})") from problem
        loss = objective(
            output,
            seen if target is None else target,
            examples.labels,
            kl_share=share,
            class_weight=class_weight,
            case_weight=examples.weight,
            n_values=n_values,
        )
        _check_number("loss", loss.total, where)
        norm = state.descent.gradient(loss.total)
        _check_number("norm of the gradient", norm, where)
        state.descent.move(rate)
        for name, value in {"train_loss": loss.total.detach(), **loss.parts}.items():
            sums[name] = sums.get(name, 0.0) + value.item() * len(chosen)
        n_cases += len(chosen)
        if state.out_of_time():
            break  # in the middle of an epoch, if need be: with a slow solver one can take hours
    means = {name: value / n_cases for name, value in sums.items()}
    return {
        "epoch": len(state.history.rows) + 1,
        **means,
        "learning_rate": rate,
        "share_of_cases": n_cases / len(learn),
    }


def _check_number(name: str, value: Tensor, where: str) -> None:
    if not torch.isfinite(value):
        raise TrainingError(
            f"the {name} is {value.item()} {where}; try a smaller learning_rate or gradient_clip"
        )


def _batches(learn: Examples, batch_size: int, random: np.random.RandomState) -> list[np.ndarray]:
    """A random partition of the cases in which batch-mates are of similar length.

    Shuffled pools of some twenty batches are sorted by length and cut, then the batches shuffled:
    random enough to learn from, and little padding to compute.
    """
    order = random.permutation(len(learn))
    lengths = learn.seen.lengths.cpu().numpy()
    if lengths.min() < lengths.max():
        pool = 20 * batch_size
        pools = [order[i : i + pool] for i in range(0, len(order), pool)]
        order = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools])
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def learning_rate_factor(schedule: str, progress: float) -> float:
    """The share of the full learning rate in force after `progress` (0 to 1) of training."""
    if schedule == "constant":
        return 1.0
    if schedule == "exponential":
        return float(0.01**progress)
    warmup = 0.15
    if progress < warmup:
        return 0.1 + 0.9 * progress / warmup
    return 0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights; a deep one of the state would cost as much as a small step."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def _check_same_types(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuses weights of another precision, which torch would convert without a word."""
    for name, value in wanted.items():
        if found[name].dtype != value.dtype:
            raise ValueError(f"{name} is of {found[name].dtype}, wanted {value.dtype}")


class _State:
    """Everything that changes while training, and what of it survives an interruption."""

    def __init__(
        self,
        model: nn.Module,
        descent: Descent,
        random: np.random.RandomState,
        settings: Settings,
    ) -> None:
        self.model = model
        self.descent = descent
        self.random = random
        self.settings = settings
        self.history = History()
        self.stop = False  # callbacks may set it
        self.best = self._numbers()
        self.begin = time.perf_counter()
        self.spent = 0.0  # seconds in earlier, resumed runs

    def elapsed(self) -> float:
        return self.spent + time.perf_counter() - self.begin

    def progress(self, part_of_epoch: float) -> float:
        """0 to 1: by epochs, or by time where the budget will run out first."""
        share = (len(self.history.rows) + part_of_epoch) / self.settings.max_epochs
        if self.settings.budget is not None:
            share = max(share, self.elapsed() / self.settings.budget)
        return min(1.0, share)

    def out_of_time(self) -> bool:
        budget = self.settings.budget
        return budget is not None and self.elapsed() >= budget

    def finished(self) -> bool:
        rows = self.history.rows
        if len(rows) >= self.settings.max_epochs:
            return True
        return self.stop or (bool(rows) and self.out_of_time())

    def keep(self, row: Row) -> None:
        """Appends the epoch's row, and remembers the weights if they are the best."""
        self.history.rows.append(row)
        score = row.get("validation_score", math.inf)
        # Among equals the later one: it has learned longer.
        if score >= self.history.best_score or "validation_score" not in row:
            self.history.best_score = score
            self.history.best_epoch = int(row["epoch"])
            self.best = self._numbers()

    def _numbers(self) -> dict[str, list[Tensor]]:
        """A copy of all that training may change in the model; a state dict costs more."""
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        return {"weights": self.descent.weights(), "buffers": buffers}

    def _set_numbers(self, numbers: dict[str, list[Tensor]]) -> None:
        self.descent.set_weights(numbers["weights"])
        for buffer, value in zip(self.model.buffers(), numbers["buffers"], strict=True):
            buffer.copy_(value)

    def load_best(self) -> None:
        self._set_numbers(self.best)

    def snapshot(self) -> dict[str, Any]:
        """All of this as it is now; see `latent_morph.training.callbacks.Training`."""
        kind, keys, position, *_ = self.random.get_state()
        return {
            "version": CHECKPOINT_VERSION,
            "model": _weights(self.model),
            "best": self.best,
            "optimiser": copy.deepcopy(self.descent.state_dict()),
            "rows": list(self.history.rows),
            "best_epoch": self.history.best_epoch,
            "best_score": self.history.best_score,
            "random": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), int(position)],
            "spent": self.elapsed(),
        }

    def restore(self) -> None:
        """Continues from the checkpoint, if there is one."""
        path = self.settings.checkpoint
        if path is None or not path.exists():
            return
        try:
            content = torch.load(path, weights_only=True, map_location="cpu")
            if content["version"] != CHECKPOINT_VERSION:
                raise ValueError(f"version {content['version']}, wanted {CHECKPOINT_VERSION}")
            _check_same_types(content["model"], self.model.state_dict())
            self._set_numbers(content["best"])  # tells whether they fit
            self.best = content["best"]
            self.model.load_state_dict(content["model"])
            self.descent.load_state_dict(content["optimiser"])
            kind, keys, position = content["random"]
            self.random.set_state((kind, keys.numpy().astype(np.uint32), position, 0, 0.0))
            self.history = History(content["rows"], content["best_epoch"], content["best_score"])
            self.spent = content["spent"]
        except Exception as problem:  # torch, zip and pickle raise a dozen kinds, at great length
            raise ValueError(
                f"checkpoint {path} cannot be continued from: it is damaged, or of another "
                f"version, or of a model with other parameters. Delete it to start over."
            ) from problem
        logger.info("continuing from %s after epoch %d", path, len(self.history.rows))
