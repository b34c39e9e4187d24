"""The linear interpolant of every channel, at the rows of its series and on a uniform grid."""

from typing import NamedTuple

import torch
from torch import Tensor

# Of a step of the grid: a row on a grid point stays there in spite of rounded times.
SLACK = 1e-4


class Interpolant(NamedTuple):
    """Channels as piecewise linear functions of time, given by their values at the rows.

    A channel is constant before its first and after its last observation, and 0 if it has none.

    Attributes:
        values: (N, T, C), finite everywhere.
        times: (N, T) since the first observed row, non-decreasing.
        observed: (N, T), rows that count: those with an observation, unless others were given.
        weights: (N, T), the share of each observed row in the span of its series; 0 elsewhere.
        span: (N,) time of the last observed row.
    """

    values: Tensor
    times: Tensor
    observed: Tensor
    weights: Tensor
    span: Tensor


def interpolate(
    values: Tensor, times: Tensor, mask: Tensor, rows: Tensor | None = None
) -> Interpolant:
    """Interpolates every channel at every row.

    Args:
        values: (N, T, C).
        times: (N, T), non-decreasing.
        mask: (N, T, C), what was observed; False in the padding.
        rows: (N, T), the rows that count as observed; by default those with an observation.
    """
    observed = mask.any(-1) if rows is None else rows
    times, span = measure_times(times, observed)
    before, after = _neighbours(mask)
    clock = times.to(values.dtype).unsqueeze(-1).expand(mask.shape)
    values_before, values_after = _select(values, mask, before), _select(values, mask, after)
    start, stop = _select(clock, mask, before), _select(clock, mask, after)
    gap = stop - start
    share = torch.where(gap > 0, (clock - start) / torch.where(gap > 0, gap, 1.0), 0.0)
    return Interpolant(
        values=values_before + share * (values_after - values_before),
        times=times,
        observed=observed,
        weights=_row_weights(times, observed, values.dtype),
        span=span,
    )


def measure_times(times: Tensor, observed: Tensor) -> tuple[Tensor, Tensor]:
    """Counts time from the first to the last observed row.

    Rows before and after, which are not observed, are moved to these ends, where they add nothing.

    Args:
        times: (N, T), non-decreasing.
        observed: (N, T).

    Returns:
        (N, T) times since the first observed row, and (N,) the time of the last.
    """
    first = torch.where(observed, times, torch.inf).amin(1, keepdim=True)
    last = torch.where(observed, times, -torch.inf).amax(1, keepdim=True)
    empty = ~observed.any(1, keepdim=True)
    first, last = torch.where(empty, 0.0, first), torch.where(empty, 0.0, last)
    return times.clamp(first, last) - first, (last - first).squeeze(1)


def resample(interpolant: Interpolant, step: Tensor, n_points: int) -> tuple[Tensor, Tensor]:
    """Evaluates the interpolant on a grid with the same step for all series.

    Args:
        interpolant: Of N series.
        step: () time between grid points.
        n_points: G, the number of grid points.

    Returns:
        (N, G, C) values, constant beyond the end of a series, and (N, G) bool, the grid points
        within its span.
    """
    times = interpolant.times
    grid = torch.arange(n_points, device=times.device) * step.to(times)
    # The last row at or before each grid point: rows are counted into the cells of the grid.
    cell = (times / step - SLACK).ceil().clamp(0, n_points).long()
    counts = torch.zeros_like(times[:, :1]).expand(-1, n_points + 1)
    counts = counts.scatter_add(1, cell, torch.ones_like(times))
    n_rows = times.shape[1]
    before = (counts.cumsum(1)[:, :n_points].long() - 1).clamp(0, n_rows - 1)
    after = (before + 1).clamp(max=n_rows - 1)
    start, stop = times.gather(1, before), times.gather(1, after)
    gap = stop - start
    share = torch.where(gap > 0, (grid - start) / torch.where(gap > 0, gap, 1.0), 0.0)
    share = share.clamp(0.0, 1.0).to(interpolant.values.dtype).unsqueeze(-1)
    n_channels = interpolant.values.shape[-1]
    left = interpolant.values.gather(1, before.unsqueeze(-1).expand(-1, -1, n_channels))
    right = interpolant.values.gather(1, after.unsqueeze(-1).expand(-1, -1, n_channels))
    inside = grid <= interpolant.span.unsqueeze(1) + SLACK * step
    return left + share * (right - left), inside


def _neighbours(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ranks (N, T, C) of the last observation up to a row and of the first from it on.

    Ranks count from 1; 0 stands for none, in a channel without any observation.
    """
    count = mask.long().cumsum(1)
    total = count[:, -1:]
    first = total.clamp(max=1)
    before = torch.maximum(count, first)
    after = torch.minimum(torch.maximum(count + (~mask).long(), first), total)
    return before, after


def _select(values: Tensor, mask: Tensor, rank: Tensor) -> Tensor:
    """Returns the observations of `values` (N, T, C) at ranks (N, T, C); 0 at rank 0."""
    index = torch.where(mask, mask.long().cumsum(1), 0)
    empty = torch.zeros_like(torch.cat([values[:, :1], values], dim=1))
    ordered = empty.scatter(1, index, torch.where(mask, values, 0.0))
    return torch.where(rank > 0, ordered.gather(1, rank), 0.0)


def _row_weights(times: Tensor, observed: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights (N, T) of observed rows in means over time, by the trapezoidal rule.

    A series without a span, of one row or of one time, has equal weights.
    """
    rank = observed.long().cumsum(1)
    previous = _select(times, observed, torch.where(observed, rank - 1, 0).clamp(min=1))
    following = _select(times, observed, torch.minimum(rank + 1, rank[:, -1:]))
    length = torch.where(observed, (following - previous) / 2, 0.0)
    total = length.sum(1, keepdim=True)
    count = observed.sum(1, keepdim=True).clamp(min=1)
    even = observed.to(times.dtype) / count
    return torch.where(total > 0, length / torch.where(total > 0, total, 1.0), even).to(dtype)
