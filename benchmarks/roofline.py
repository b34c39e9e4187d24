"""The INN's matrix products, and how much longer than these an integration takes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.models import SETTINGS, query, trained
from benchmarks.rows import Row, timed_rows
from latent_morph.bijections.inn import CouplingINN, LayerOfBlocks
from latent_morph.diagnostics import interleaved
from latent_morph.flows import MorphFlow

TITLE = "Integration against the matrix products in it"


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Per task: exact integration, the products alone in the INN's shapes, and at full rate."""
    rows: list[Row] = []
    square = torch.randn(512, 512)
    for task, setting in SETTINGS.items():
        if only not in (None, task):
            continue
        n_cases = 2000 if setting.dataset == "ecg" else None
        model = trained(setting, "morph-exact", seconds=3.0 if short else 10.0, n_cases=n_cases)
        _, z0, times = query(model, setting, n_cases=n_cases)
        flow = model.model_.flow
        assert isinstance(flow, MorphFlow)
        n_points = len(z0) * times.shape[-1]
        assert isinstance(flow.warp, CouplingINN)
        piece = min(n_points, flow.warp.piece(z0.dtype))
        layers = [part for part in flow.warp.modules() if isinstance(part, LayerOfBlocks)]
        matrices = [matrix for layer in layers for matrix in layer.weight.detach()]
        flops = 2 * n_points * sum(matrix.numel() for matrix in matrices)
        timings = interleaved(
            {
                "morph": _inference(partial(flow, z0, times)),
                "products": _inference(_products(matrices, n_points, piece)),
                "square product": _inference(lambda: square @ square),
            },
            repeats=5 if short else 20,
        )
        rate = 2 * 512**3 / timings.pop("square product").median_ms / 1e6
        at_full_rate = flops / rate / 1e6
        rows += timed_rows(
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


def _inference(call: Callable[[], Any]) -> Callable[[], Any]:
    return torch.inference_mode()(call)


def _products(matrices: list[Tensor], n_points: int, piece: int) -> Callable[[], Any]:
    """The weights of all layers times as many columns, in pieces as the INN takes them."""
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
