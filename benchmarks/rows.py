"""Rows of results, which every benchmark returns, and their tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from latent_morph.diagnostics import Timing

Row = dict[str, Any]

# The candidate to which times are relative.
REFERENCE = "morph"


def make_timing_rows(task: str, timings: Mapping[str, Timing], **more: Any) -> list[Row]:  # noqa: ANN401
    """Makes one row per candidate, with ratios of medians.

    `more` has further columns: a value for all rows, or a mapping from candidate to value.
    """
    reference = timings[REFERENCE].median_ms if REFERENCE in timings else None
    return [
        {
            "task": task,
            "candidate": name,
            "mean_ms": timing.mean_ms,
            "std_ms": timing.std_ms,
            "median_ms": timing.median_ms,
            "ratio_to_morph": None if reference is None else timing.median_ms / reference,
            "threads": torch.get_num_threads(),
            **{
                key: value.get(name) if isinstance(value, Mapping) else value
                for key, value in more.items()
            },
        }
        for name, timing in timings.items()
    ]


def format_markdown(rows: Sequence[Row]) -> str:
    """Formats a table of all columns in which some row has a value."""
    keys = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if any(row.get(key) is not None for row in rows)
    ]
    lines = ["| " + " | ".join(keys) + " |", "|" + " --- |" * len(keys)]
    lines += ["| " + " | ".join(_format_cell(row.get(key)) for key in keys) + " |" for row in rows]
    return "\n".join(lines)


def _format_cell(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return str(value)
