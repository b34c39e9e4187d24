"""The INN's matrix products, and how much longer than these an integration takes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models import SETTINGS, query, trained
from benchmarks.rows import Row, timed_rows
from latent_morph.bijections import CouplingINN
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
        layers = [part for part in flow.warp.modules() if isinstance(part, nn.Linear)]
        flops = 2 * n_points * sum(layer.weight.numel() for layer in layers)
        timings = interleaved(
            {
                "morph": _inference(partial(flow, z0, times)),
                "products": _inference(_products(layers, n_points, piece)),
                "square product": _inference(lambda: square @ square),
            },
            repeats=5 if short else 20,
        )
        rate = 2 * 512**3 / timings.pop("square product").mean_ms / 1e6
        at_full_rate = flops / rate / 1e6
        rows += timed_rows(
            task,
            timings,
            megaflop=flops / 1e6,
            gigaflop_per_s={name: flops / t.mean_ms / 1e6 for name, t in timings.items()},
            times_products={
                name: t.mean_ms / timings["products"].mean_ms for name, t in timings.items()
            },
            machine_gigaflop_per_s=rate,
            times_full_rate={name: t.mean_ms / at_full_rate for name, t in timings.items()},
        )
    return rows


def _inference(call: Callable[[], Any]) -> Callable[[], Any]:
    return torch.inference_mode()(call)


def _products(layers: list[nn.Linear], n_points: int, piece: int) -> Callable[[], Any]:
    """The weights of all layers times as many columns, in pieces as the INN takes them."""
    sizes = [len(part) for part in torch.arange(n_points).split(piece)]
    widths = {layer.in_features for layer in layers}
    inputs: dict[tuple[int, int], Tensor] = {
        (width, size): torch.randn(width, size) for width in widths for size in set(sizes)
    }

    def call() -> None:
        for size in sizes:
            for layer in layers:
                torch.mm(layer.weight, inputs[layer.in_features, size])

    return call
