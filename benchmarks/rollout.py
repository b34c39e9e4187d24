"""Roll-outs of learned ODEs at ten times the data's resolution: closed forms against solvers."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.rows import Row, timed_rows
from benchmarks.trajectories import CANDIDATES, LEARNED, available, problem, trained
from latent_morph.diagnostics import evaluations_in, interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import rolled_out
from latent_morph.series import SeriesBatch

TITLE = "Roll-outs of learned ODEs from all starts at once, at ten times the data's resolution"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """On briefly trained models, the estimator's `predict` and the flow inside it."""
    rows: list[Row] = []
    for task in available(LEARNED, only):
        names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
        seconds = 3.0 if short else 20.0
        models = {
            name: trained(task, name, problem(task).train_X, seconds=seconds) for name in names
        }
        rows += measured(task, models, problem(task).test_X, repeats=9 if short else 20)
    return rows


def measured(
    task: str,
    models: Mapping[str, DynamicsRegressor],
    test: SeriesBatch,
    *,
    repeats: int,
    flows: bool = True,
) -> list[Row]:
    """One row a model for `predict`, in double precision, and one for its flow, in single."""
    calls = {"predict": {name: _predict(model, test) for name, model in models.items()}}
    if flows:
        calls["flow"] = {name: _flow(model, test) for name, model in models.items()}
    evaluations = {
        name: evaluations_in(model.model_, calls["predict"][name])
        for name, model in models.items()
    }
    shape = {"starts": len(test), "n_times": test.n_times}
    rows: list[Row] = []
    for direction, some in calls.items():
        timings = interleaved(some, repeats=repeats)
        rows += timed_rows(
            task, timings, direction=direction, field_evaluations=evaluations, **shape
        )
    return rows


def _predict(model: DynamicsRegressor, test: SeriesBatch) -> Callable[[], Any]:
    return lambda: rolled_out(model, test)


def _flow(model: DynamicsRegressor, test: SeriesBatch) -> Callable[[], Any]:
    flow = copy.deepcopy(model.model_.flow).float()
    starts = model._states("y0", test.values[:, 0].numpy())
    z0 = model.model_.lift(starts).float()
    elapsed = (test.times - test.times[:, :1]) / model.scaler_.time_scale_
    times = (elapsed[0] if (elapsed == elapsed[0]).all() else elapsed).float()

    @torch.inference_mode()
    def call() -> None:
        flow(z0, times)

    return call
