"""The training loop: epochs, schedule, validation, best weights, budget."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from latent_morph.checks import NotFiniteError, check_choice
from latent_morph.flows import IntegrationError
from latent_morph.losses import LossFunction, Step
from latent_morph.seeding import seeded
from latent_morph.series import Examples
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
from latent_morph.training.optimizer import make_optimizer
from latent_morph.training.state import TrainingState

SCHEDULES = ("one-cycle", "exponential", "constant")


class TrainingError(RuntimeError):
    """Training diverged or a solver failed; the best weights so far are kept."""


def train(
    model: nn.Module,
    loss: LossFunction,
    train_examples: Examples,
    val_examples: Examples | None,
    score: Callable[[Any, Examples], float],
    settings: Settings,
    *,
    seed: int = 0,
    callbacks: Sequence[AnyCallback] = (),
) -> History:
    """Trains `model` in place and leaves it with its best weights.

    Args:
        model: The model.
        loss: The loss to minimize, called as `loss(model, examples, step)` on each batch.
        train_examples: Cases to train on.
        val_examples: Cases for `score`, which selects the best epoch; None keeps the last.
        score: Higher is better; called in evaluation mode without gradients.
        settings: Settings of training.
        seed: Seed of the order of cases and of everything random in the loss.
        callbacks: Called after the checkpoint and early stopping of `settings`. An exception in
            one, including KeyboardInterrupt, stops training with the best weights restored and
            the checkpoint written.

    Raises:
        TrainingError: A state, the loss or its gradient was not finite, or a solver failed.
        FileNotFoundError: The folder of the checkpoint does not exist.
        ValueError: The checkpoint to resume from is damaged or of another model.
    """
    check_choice("schedule", settings.schedule, SCHEDULES)
    generator = torch.Generator(device=train_examples.inputs.device)
    all_callbacks = [*_make_callbacks(settings), *as_callbacks(callbacks)]
    optimizer = make_optimizer(
        model,
        settings.optimizer,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    state = TrainingState(model, optimizer, np.random.RandomState(seed), settings)
    with ExitStack() as stack:  # calls in reverse order at the end
        stack.callback(model.zero_grad)
        if settings.resume:
            state.restore()
        for callback in all_callbacks:
            callback.on_train_begin(state)
            stack.callback(callback.on_train_end, state)
        stack.callback(state.load_best)
        while not state.finished():
            epoch_seed = seed * 1_000_003 + state.epoch
            generator.manual_seed(epoch_seed)
            begin = time.perf_counter()
            model.train()
            with seeded(epoch_seed):  # dropout draws from torch's own generator
                row = _train_epoch(state, loss, train_examples, generator)
            row["train_seconds"] = time.perf_counter() - begin
            if val_examples is not None:
                with _raise_training_errors(f"in the validation of epoch {state.epoch}"):
                    row["validation_score"] = evaluate(model, val_examples, score)
            row["seconds"] = time.perf_counter() - begin
            state.end_epoch(row)
            for callback in all_callbacks:
                callback.on_epoch_end(state)
    return state.history


def _make_callbacks(settings: Settings) -> list[Callback]:
    """Returns the callbacks for `checkpoint` and `patience`."""
    callbacks: list[Callback] = []
    if settings.checkpoint is not None:
        callbacks.append(Checkpoint(settings.checkpoint))
    if settings.patience is not None:
        callbacks.append(EarlyStopping(settings.patience))
    return callbacks


def evaluate(
    model: nn.Module, examples: Examples, score: Callable[[Any, Examples], float]
) -> float:
    """Returns the score, with the model in evaluation mode and without gradients."""
    model.eval()
    with torch.no_grad():
        return score(model, examples)


def _train_epoch(
    state: TrainingState, loss: LossFunction, train_examples: Examples, generator: torch.Generator
) -> Row:
    """Trains on all cases, or until the budget is spent, and returns the epoch's row."""
    settings = state.settings
    sums: dict[str, float] = {}
    n_cases = 0
    batches = _make_batches(train_examples, settings.batch_size, state.random)
    for number, chosen in enumerate(batches, start=1):
        progress = state.progress(number / len(batches))
        rate = settings.learning_rate * learning_rate_factor(settings.schedule, progress)
        where = f"in epoch {state.epoch}, batch {number} of {len(batches)}"
        step = Step(progress, generator, state.random)
        with _raise_training_errors(where):
            total, parts = loss(state.model, train_examples[chosen].trim(), step)
        _check_finite("loss", total, where)
        _descend(state, total, rate, where)
        for name, value in {"train_loss": total.detach(), **parts}.items():
            sums[name] = sums.get(name, 0.0) + value.item() * len(chosen)
        n_cases += len(chosen)
        if state.out_of_time():
            break  # within the epoch, which can take hours with a slow solver
    means = {name: value / n_cases for name, value in sums.items()}
    return {
        "epoch": state.epoch,
        **means,
        "learning_rate": rate,
        "share_of_cases": n_cases / len(train_examples),
    }


def _descend(state: TrainingState, total: Tensor, learning_rate: float, where: str) -> None:
    """Takes one step of the optimizer with the clipped gradient of `total`."""
    optimizer, clip = state.optimizer, state.settings.gradient_clip
    optimizer.zero_grad()
    total.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if clip is None else clip)
    _check_finite("norm of the gradient", norm, where)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()


@contextmanager
def _raise_training_errors(where: str) -> Iterator[None]:
    """Raises what a diverging model leads to as a `TrainingError`."""
    try:
        yield
    except (NotFiniteError, IntegrationError) as problem:
        raise TrainingError(f"{problem} ({where})") from problem


def _check_finite(name: str, value: Tensor, where: str) -> None:
    if not math.isfinite(value.item()):
        raise TrainingError(
            f"the {name} is {value.item()} {where}; try a smaller learning_rate or gradient_clip"
        )


def _make_batches(
    examples: Examples, batch_size: int, random: np.random.RandomState
) -> list[np.ndarray]:
    """Returns a random partition of the cases into batches of similar length.

    Shuffled pools of twenty batches are sorted by length and divided, and then the batches are
    shuffled. This reduces the padding.
    """
    order = random.permutation(len(examples))
    lengths = examples.inputs.lengths.cpu().numpy()
    if lengths.min() < lengths.max():
        pool = 20 * batch_size
        pools = [order[i : i + pool] for i in range(0, len(order), pool)]
        order = np.concatenate([p[np.argsort(lengths[p], kind="stable")] for p in pools])
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    return [batches[i] for i in random.permutation(len(batches))]


def learning_rate_factor(schedule: str, progress: float) -> float:
    """Returns the factor of the learning rate after `progress` (0 to 1) of training."""
    if schedule == "constant":
        return 1.0
    if schedule == "exponential":
        return float(0.01**progress)
    warmup = 0.15
    if progress < warmup:
        return 0.1 + 0.9 * progress / warmup
    return 0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
