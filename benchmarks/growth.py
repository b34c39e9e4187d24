"""Time and memory of an integration by number of query times, batch size and latent size."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.memory import peak_above
from benchmarks.models import SETTINGS, Setting, make_query, train_estimator
from benchmarks.rows import Row, make_timing_rows
from latent_morph.diagnostics import time_interleaved
from latent_morph.flows import Flow

TITLE = "Growth with the number of times, the batch and the latent size"

NAMES = ("morph", "morph-exact", "dopri5", "rk4")
SLOW = ("rk4",)  # four evaluations per time: skipped where that takes minutes
BASE = SETTINGS["periodic 100"]


def run(*, short: bool) -> list[Row]:
    """Times forward passes in inference mode of models trained on the periodic data."""
    seconds, repeats = (3.0, 3) if short else (20.0, 10)
    rows: list[Row] = []
    models = {name: train_estimator(BASE, name, seconds=seconds) for name in NAMES}
    starts = {name: make_query(model, BASE)[1] for name, model in models.items()}
    for n_times in (100, 1000, 10_000):
        names = [n for n in NAMES if not (n in SLOW and n_times > 1000)]
        grid = torch.linspace(0, 1, n_times)
        calls = {n: _make_call(models[n].model_.flow, starts[n], grid) for n in names}
        rows += _measure(f"times {n_times}", calls, repeats, n_times=n_times)
    for n_series in (50, 200, 800):
        grid = torch.linspace(0, 1, 1000)
        names = [n for n in NAMES if n not in SLOW]
        calls = {
            n: _make_call(models[n].model_.flow, starts[n].repeat(n_series // 50, 1), grid)
            for n in names
        }
        rows += _measure(f"batch {n_series}", calls, repeats, n_times=1000)
    for size in (5, 20, 80):
        setting = Setting("periodic", size, units=100, layers=2)
        names = [n for n in NAMES if n not in SLOW]
        grid = torch.linspace(0, 1, 1000)
        sized = {n: train_estimator(setting, n, seconds=seconds / 2) for n in names}
        calls = {
            n: _make_call(model.model_.flow, make_query(model, setting)[1], grid)
            for n, model in sized.items()
        }
        rows += _measure(f"latent size {size}", calls, repeats, n_times=1000)
    return rows


def _measure(
    task: str, calls: dict[str, Callable[[], Any]], repeats: int, **more: int
) -> list[Row]:
    memory = {name: peak_above(call) for name, call in calls.items()}
    return make_timing_rows(task, time_interleaved(calls, repeats=repeats), peak_mb=memory, **more)


def _make_call(flow: Flow, z0: torch.Tensor, times: torch.Tensor) -> Callable[[], Any]:
    @torch.inference_mode()
    def call() -> None:
        flow(z0, times)

    return call
