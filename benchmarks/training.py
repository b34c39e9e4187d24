"""Seconds for a step of training on all trajectories at once, as in the paper's appendix."""

from collections.abc import Callable
from typing import Any

from benchmarks.rows import Row, timed_rows
from benchmarks.trajectories import CANDIDATES, IMITATION, LEARNED, available, problem, trained
from latent_morph.descent import Descent
from latent_morph.diagnostics import interleaved
from latent_morph.dynamics import RolloutLoss
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import resampled
from latent_morph.series import SeriesBatch

TITLE = "A step of training on all trajectories, from their own starts"

# What the paper's solvers took for a step tells that its demonstrations had some thousand points,
# fourteen times those of Lotka-Volterra. Our presets learn from a hundred.
POINTS = 1000
# A training is steps in a row, and so are those that are timed.
IN_A_ROW = 4


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Forward, backward and the optimiser's step, on briefly trained models.

    Imitation comes twice: with the points that the presets learn from, and with as many as the
    paper seems to have had.
    """
    rows: list[Row] = []
    for task in available(LEARNED, only):
        few = problem(task).train_X
        sizes = {task: few}
        if task in IMITATION:
            sizes[f"{task} {POINTS}"] = resampled(few, POINTS)
        for title, X in sizes.items():
            rows += _measured(title, task, X, short=short)
    return rows


def _measured(title: str, task: str, X: SeriesBatch, *, short: bool) -> list[Row]:
    names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
    seconds = 1.0 if short else 10.0
    steps = {name: _step(trained(task, name, X, seconds=seconds, restarts=0), X) for name in names}
    # A long step needs fewer repeats to be told from the noise.
    repeats = (2 if X.n_times == POINTS else 8) if short else 10
    timings = interleaved(steps, repeats=repeats, in_a_row=IN_A_ROW)
    return timed_rows(title, timings, trajectories=len(X), n_times=X.n_times)


def _step(estimator: DynamicsRegressor, X: SeriesBatch) -> Callable[[], Any]:
    model = estimator.model_.float().train()
    batch = estimator._scaled(X)
    objective = RolloutLoss(estimator.loss)
    descent = Descent(model, learning_rate=1e-6, gradient_clip=1.0)

    def step() -> None:
        descent.gradient(objective(model(batch, sample=True)).total)
        descent.move()

    return step
