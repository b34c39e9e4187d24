"""Time and memory of the filter bank by number of rows, channels and cases."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.memory import peak_above
from benchmarks.rows import Row, make_timing_rows
from latent_morph import FilterBank
from latent_morph.diagnostics import time_interleaved
from latent_morph.series import SeriesBatch

TITLE = "Growth of the filter bank with the number of rows, channels and cases"

CANDIDATE = "FilterBank"
FIT_CASES = 200
# Sizes of each kind; the others are (cases, rows, channels) in SIZES.
GROWTH = {
    "rows": (100, 200, 400, 800, 1600, 3200),
    "channels": (1, 2, 4, 8, 16, 32, 64),
    "cases": (100, 1000, 10_000),
}
SHORT_GROWTH = {"rows": (100, 200, 400), "channels": (1, 4, 16), "cases": (100, 1000)}
SIZES = {"rows": 200, "channels": 12, "cases": 200}


def run(*, short: bool) -> list[Row]:
    """Times `transform` on random walks at random times, of which a tenth is missing.

    The last row has the largest number of cases. Slopes are of straight lines through logarithms.
    """
    rows: list[Row] = []
    for kind, numbers in (SHORT_GROWTH if short else GROWTH).items():
        part: list[Row] = []
        for number in numbers:
            sizes = SIZES | {kind: number}
            X = make_walks(**sizes)
            call = _make_call(FilterBank(random_state=0).fit(X[:FIT_CASES]), X)
            repeats = 1 if short or sizes["cases"] > 1000 else 3
            part += make_timing_rows(
                f"{kind} {number}",
                time_interleaved({CANDIDATE: call}, repeats=repeats),
                peak_mb=peak_above(call),
                **sizes,
            )
        slopes = {
            f"{key}_slope": _fit_slope(numbers, part, key) for key in ("median_ms", "peak_mb")
        }
        rows += [row | slopes for row in part]
    return rows


def make_walks(cases: int, rows: int, channels: int) -> SeriesBatch:
    """Makes random walks at random times."""
    rng = np.random.default_rng(0)
    times = torch.from_numpy(rng.exponential(size=(cases, rows)).cumsum(1))
    values = torch.from_numpy(rng.normal(size=(cases, rows, channels)).cumsum(1))
    return SeriesBatch(values, times, torch.from_numpy(rng.random(values.shape) > 0.1))


def _make_call(model: FilterBank, X: SeriesBatch) -> Callable[[], Any]:
    return lambda: model.transform(X)


def _fit_slope(numbers: tuple[int, ...], rows: list[Row], key: str) -> float | None:
    """Returns the power of growth, from the larger half of the numbers; None if not measured."""
    half = slice(-max(2, (len(numbers) + 1) // 2), None)
    measured = [row[key] for row in rows[half]]
    if not all(measured):
        return None
    return float(np.polyfit(np.log(numbers[half]), np.log(measured), 1)[0])
