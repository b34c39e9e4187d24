"""Time of an integration relative to that of the matrix products in the INN."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import SETTINGS, make_query, train_estimator
from benchmarks.rows import Row, make_timing_rows
from latent_morph.bijections.coupling import CHUNK_BYTES, CouplingINN
from latent_morph.diagnostics import time_interleaved
from latent_morph.flows import MorphFlow

TITLE = "Integration against the matrix products in it"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Times exact integration, its matrix products alone, and a large product per task."""
    rows: list[Row] = []
    square = torch.randn(512, 512)
    for task, setting in SETTINGS.items():
        if only not in (None, task):
            continue
        n_cases = 2000 if setting.dataset == "ecg" else None
        model = train_estimator(
            setting, "morph-exact", seconds=3.0 if short else 10.0, n_cases=n_cases
        )
        _, z0, times = make_query(model, setting, n_cases=n_cases)
        flow = model.model_.flow
        assert isinstance(flow, MorphFlow)
        n_points = len(z0) * times.shape[-1]
        assert isinstance(flow.warp, CouplingINN)
        piece = min(n_points, CHUNK_BYTES // (flow.warp.width * z0.element_size()))
        layers = [part for part in flow.warp.modules() if isinstance(part, nn.Linear)]
        matrices = [layer.weight.detach() for layer in layers]
        flops = 2 * n_points * sum(matrix.numel() for matrix in matrices)
        timings = time_interleaved(
            {
                "morph": _in_inference_mode(partial(flow, z0, times)),
                "products": _in_inference_mode(_make_products(matrices, n_points, piece)),
                "square product": _in_inference_mode(lambda: square @ square),
            },
            repeats=5 if short else 20,
        )
        rate = 2 * 512**3 / timings.pop("square product").median_ms / 1e6
        at_full_rate = flops / rate / 1e6
        rows += make_timing_rows(
            task,
            timings,
            megaflop=flops / 1e6,
            gigaflop_per_s={name: flops / t.median_ms / 1e6 for name, t in timings.items()},
            times_products={
                name: t.median_ms / timings["products"].median_ms for name, t in timings.items()
            },
            machine_gigaflop_per_s=rate,
            times_full_rate={name: t.median_ms / at_full_rate for name, t in timings.items()},
        )
    return rows


def _in_inference_mode(call: Callable[[], Any]) -> Callable[[], Any]:
    return torch.inference_mode()(call)


def _make_products(matrices: list[Tensor], n_points: int, piece: int) -> Callable[[], Any]:
    """Multiplies the weights of all layers by as many columns, in the batches of the INN."""
    sizes = [len(part) for part in torch.arange(n_points).split(piece)]
    widths = {matrix.shape[1] for matrix in matrices}
    inputs: dict[tuple[int, int], Tensor] = {
        (width, size): torch.randn(width, size) for width in widths for size in set(sizes)
    }

    def call() -> None:
        for size in sizes:
            for matrix in matrices:
                torch.mm(matrix, inputs[matrix.shape[1], size])

    return call
