"""Time of roll-outs of learned ODEs at ten times the data's resolution."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.rows import Row, make_timing_rows
from benchmarks.trajectories import (
    CANDIDATES,
    LEARNED,
    list_available,
    load_problem,
    train_estimator,
)
from latent_morph.diagnostics import count_evaluations, time_interleaved
from latent_morph.estimators import DynamicsRegressor
from latent_morph.experiments.dynamics import roll_out
from latent_morph.series import SeriesBatch

TITLE = "Roll-outs of learned ODEs from all starts at once, at ten times the data's resolution"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Times `predict` of briefly trained estimators, and the flow alone."""
    rows: list[Row] = []
    for task in list_available(LEARNED, only):
        names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
        seconds = 3.0 if short else 20.0
        data = load_problem(task)
        models = {
            name: train_estimator(task, name, data.train_X, seconds=seconds) for name in names
        }
        rows += measure(task, models, data.test_X, repeats=9 if short else 20)
    return rows


def measure(
    task: str,
    models: Mapping[str, DynamicsRegressor],
    test: SeriesBatch,
    *,
    repeats: int,
    flows: bool = True,
) -> list[Row]:
    """Times `predict` of each model in double precision, and its flow in single precision."""
    calls = {"predict": {name: _make_predict(model, test) for name, model in models.items()}}
    if flows:
        calls["flow"] = {name: _make_flow(model, test) for name, model in models.items()}
    evaluations = {
        name: count_evaluations(model.model_, calls["predict"][name])
        for name, model in models.items()
    }
    shape = {"starts": len(test), "n_times": test.n_times}
    rows: list[Row] = []
    for direction, candidates in calls.items():
        timings = time_interleaved(candidates, repeats=repeats)
        rows += make_timing_rows(
            task, timings, direction=direction, field_evaluations=evaluations, **shape
        )
    return rows


def _make_predict(model: DynamicsRegressor, test: SeriesBatch) -> Callable[[], Any]:
    return lambda: roll_out(model, test)


def _make_flow(model: DynamicsRegressor, test: SeriesBatch) -> Callable[[], Any]:
    flow = copy.deepcopy(model.model_.flow).float()
    starts = model._states("y0", test.values[:, 0].numpy())
    z0 = model.model_.lift(starts).float()
    elapsed = (test.times - test.times[:, :1]) / model.scaler_.time_scale_
    times = (elapsed[0] if (elapsed == elapsed[0]).all() else elapsed).float()

    @torch.inference_mode()
    def call() -> None:
        flow(z0, times)

    return call
