"""Seconds for a step of training on all trajectories at once, as in the paper's appendix."""

from collections.abc import Callable
from typing import Any

from benchmarks.rows import Row, timed_rows
from benchmarks.trajectories import CANDIDATES, IMITATION, LEARNED, available, problem, trained
from latent_morph.descent import Descent
from latent_morph.diagnostics import interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import resampled
from latent_morph.losses import RolloutLoss
from latent_morph.series import SeriesBatch

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
    for task in available(LEARNED, only):
        few = problem(task).train_X
        sizes = {task: few}
        for n_times in sorted({RECORDED[task], PAPER}) if task in IMITATION else ():
            sizes[f"{task} {n_times}"] = resampled(few, n_times)
        for title, X in sizes.items():
            rows += _measured(title, task, X, short=short)
    return rows


def _measured(title: str, task: str, X: SeriesBatch, *, short: bool) -> list[Row]:
    names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
    seconds = 1.0 if short else 10.0
    steps = {name: _step(trained(task, name, X, seconds=seconds, restarts=0), X) for name in names}
    # A long step needs fewer repeats to be told from the noise.
    repeats = 2 if X.n_times > 300 else 16
    repeats *= 1 if short else 2
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
