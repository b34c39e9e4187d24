"""Seconds for a step of training on all trajectories at once, as in the paper's appendix."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from benchmarks.rows import Row, make_timing_rows
from benchmarks.trajectories import (
    CANDIDATES,
    IMITATION,
    LEARNED,
    list_available,
    load_problem,
    train_estimator,
)
from latent_morph.diagnostics import time_interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import resample
from latent_morph.losses import RolloutLoss, Step
from latent_morph.series import Examples, SeriesBatch
from latent_morph.training import make_optimizer

TITLE = "A step of training on all trajectories, from their own starts"

# Our presets learn from a hundred points of a demonstration. So many were recorded on average. The
# paper's solvers took fourteen times as long as on Lotka-Volterra, as if they had a thousand.
RECORDED = {"imitation_s": 1000, "imitation_cube": 334, "imitation_c": 447}
PAPER = 1000
# A training is steps in a row, and so are those that are timed.
IN_A_ROW = 4


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Forward, backward and the optimiser's step, on briefly trained models.

    Imitation comes with the points that the presets learn from, with as many as were recorded,
    and with as many as the paper seems to have had.
    """
    rows: list[Row] = []
    for task in list_available(LEARNED, only):
        few = load_problem(task).train_X
        sizes = {task: few}
        for n_times in sorted({RECORDED[task], PAPER}) if task in IMITATION else ():
            sizes[f"{task} {n_times}"] = resample(few, n_times)
        for title, X in sizes.items():
            rows += _measured(title, task, X, short=short)
    return rows


def _measured(title: str, task: str, X: SeriesBatch, *, short: bool) -> list[Row]:
    names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
    seconds = 1.0 if short else 10.0
    steps = {
        name: _step(train_estimator(task, name, X, seconds=seconds, restarts=0), X)
        for name in names
    }
    # A long step needs fewer repeats to be told from the noise.
    repeats = 2 if X.n_times > 300 else 16
    repeats *= 1 if short else 2
    timings = time_interleaved(steps, repeats=repeats, batch_calls=IN_A_ROW)
    return make_timing_rows(title, timings, trajectories=len(X), n_times=X.n_times)


def _step(estimator: DynamicsRegressor, X: SeriesBatch) -> Callable[[], Any]:
    model = estimator.model_.float().train()
    examples = Examples(estimator._scale(X))
    loss = RolloutLoss(estimator.loss)
    optimizer = make_optimizer(model, "adamw", learning_rate=1e-6, weight_decay=1e-4)
    now = Step(0.5, None, np.random.RandomState(0))

    def step() -> None:
        optimizer.zero_grad()
        loss(model, examples, now).total.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
