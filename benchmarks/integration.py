"""The generative ODE alone: closed forms against solvers, at the paper's sizes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import CANDIDATES, SETTINGS, query, trained
from benchmarks.rows import Row, timed_rows
from latent_morph.diagnostics import field_evaluations, interleaved
from latent_morph.flows import Flow

TITLE = "Integration of a batch of 50 series"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Forward in inference mode, then forward and backward, on briefly trained models."""
    rows: list[Row] = []
    for task, setting in SETTINGS.items():
        if only not in (None, task):
            continue
        names = [name for name in CANDIDATES if not (short and name == "morph-paper")]
        seconds = 3.0 if short else 20.0
        n_cases = 2000 if setting.dataset == "ecg" else None
        flows, starts, times, evaluations = {}, {}, {}, {}
        for name in names:
            model = trained(setting, name, seconds=seconds, n_cases=n_cases)
            batch, starts[name], times[name] = query(model, setting, n_cases=n_cases)
            flows[name] = model.model_.flow
            evaluations[name] = field_evaluations(model.model_, batch, times[name])
        shape = {"n_times": times[names[0]].shape[-1], "latent_dim": setting.latent_dim}
        for direction, make in (("forward", _forward), ("forward+backward", _both)):
            calls = {name: make(flows[name], starts[name], times[name]) for name in names}
            timings = interleaved(calls, repeats=5 if short else 20)
            rows += timed_rows(
                task, timings, direction=direction, field_evaluations=evaluations, **shape
            )
    return sorted(rows, key=lambda row: row["direction"])


def _forward(flow: Flow, z0: Tensor, times: Tensor) -> Callable[[], Any]:
    @torch.inference_mode()
    def call() -> None:
        flow(z0, times)

    return call


def _both(flow: Flow, z0: Tensor, times: Tensor) -> Callable[[], Any]:
    start = z0.clone().requires_grad_()

    def call() -> None:
        flow.zero_grad(set_to_none=True)
        flow(start, times).sum().backward()

    return call
