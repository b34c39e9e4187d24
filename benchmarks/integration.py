"""Time of the generative ODE alone, for closed forms and solvers at the paper's sizes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import CANDIDATES, SETTINGS, make_query, train_estimator
from benchmarks.rows import Row, make_timing_rows
from latent_morph.diagnostics import count_field_evaluations, time_interleaved
from latent_morph.flows import Flow

TITLE = "Integration of a batch of 50 series"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Times forward in inference mode, and forward and backward, of briefly trained models."""
    rows: list[Row] = []
    for task, setting in SETTINGS.items():
        if only not in (None, task):
            continue
        names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
        seconds = 3.0 if short else 20.0
        n_cases = 2000 if setting.dataset == "ecg" else None
        flows, starts, times, evaluations = {}, {}, {}, {}
        for name in names:
            model = train_estimator(setting, name, seconds=seconds, n_cases=n_cases)
            batch, starts[name], times[name] = make_query(model, setting, n_cases=n_cases)
            flows[name] = model.model_.flow
            evaluations[name] = count_field_evaluations(model.model_, batch, times[name])
        shape = {"n_times": times[names[0]].shape[-1], "latent_dim": setting.latent_dim}
        for direction, make in (
            ("forward", _make_forward),
            ("forward+backward", _make_forward_backward),
        ):
            calls = {name: make(flows[name], starts[name], times[name]) for name in names}
            timings = time_interleaved(calls, repeats=5 if short else 20)
            rows += make_timing_rows(
                task, timings, direction=direction, field_evaluations=evaluations, **shape
            )
    return sorted(rows, key=lambda row: row["direction"])


def _make_forward(flow: Flow, z0: Tensor, times: Tensor) -> Callable[[], Any]:
    @torch.inference_mode()
    def call() -> None:
        flow(z0, times)

    return call


def _make_forward_backward(flow: Flow, z0: Tensor, times: Tensor) -> Callable[[], Any]:
    start = z0.clone().requires_grad_()

    def call() -> None:
        flow.zero_grad(set_to_none=True)
        flow(start, times).sum().backward()

    return call
