"""Dense output: evaluates a smooth curve at a few nodes and interpolates at many times."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

DEGREE = 32  # of the polynomial on a panel
# Fewer times per node are not interpolated, since that would not be faster.
_MIN_TIMES_PER_NODE = 3
_CHUNK_ENTRIES = 2**18  # of the basis; chunks of this size stay in the cache

Curve = Callable[[Tensor, Tensor], Tensor]


def dense_curve(
    curve: Curve,
    start: Tensor,
    times: Tensor,
    *,
    tolerance: float,
    panels: int,
    scale: Tensor | None = None,
) -> Tensor:
    """Evaluates `curve(start, times)` to `tolerance`, at fewer points if there are many times.

    The span of the times is divided into panels with Chebyshev nodes. Panels whose last
    coefficients are small enough to bound the error are interpolated. The others and their
    neighbors are divided in two, until there would be nearly as many nodes as times: then the
    curve itself is evaluated. The panels of each series are chosen independently.

    Args:
        curve: Function of starts (N, D) and times (T,) or (N, T) that returns states (N, T, D),
            smooth in time.
        start: (N, D).
        times: (T,) shared by all series, or (N, T).
        tolerance: Largest error, relative to the largest absolute value of each series' curve.
        panels: Number of panels to try first.
        scale: (N,) a lower bound of that largest absolute value, from a longer part of the curve.
    """
    n_times = times.shape[-1]
    if n_times < _MIN_TIMES_PER_NODE * panels * (DEGREE + 1):
        return curve(start, times)
    nodes, transform = _make_chebyshev(DEGREE)
    transform = transform.to(times)
    first = times.amin(-1, keepdim=True)
    span = times.amax(-1, keepdim=True) - first
    edges = torch.arange(panels, dtype=nodes.dtype).unsqueeze(1)
    fractions = ((edges + (nodes + 1) / 2) / panels).flatten().to(times)
    values = curve(start, first + span * fractions).unflatten(1, (panels, DEGREE + 1))
    position = (times - first) / span.clamp(min=torch.finfo(times.dtype).tiny) * panels
    largest = values.detach().abs().amax((1, 2, 3))
    scale = largest if scale is None else torch.maximum(scale, largest)
    unresolved = _add_neighbors(~_is_resolved(transform, values.detach(), tolerance * scale))
    if unresolved.all():
        return dense_curve(
            curve, start, times, tolerance=tolerance, panels=2 * panels, scale=scale
        )
    interpolate = _interpolate_shared if times.ndim == 1 else _interpolate_per_series
    states = interpolate(transform, values, position)
    if not unresolved.any():
        return states
    series, rows = _find_rows(position, unresolved)
    if not len(series):
        return states  # no time lies in an unresolved panel
    panel_times = times[rows] if times.ndim == 1 else times[series.unsqueeze(1), rows]
    panel_states = dense_curve(
        curve, start[series], panel_times, tolerance=tolerance, panels=2, scale=scale[series]
    )
    return states.index_put((series.unsqueeze(1), rows), panel_states)


def _add_neighbors(panels: Tensor) -> Tensor:
    """Adds adjacent panels to a mask (N, P), since a sharp bend near an edge can be missed."""
    result = panels.clone()
    result[:, 1:] |= panels[:, :-1]
    result[:, :-1] |= panels[:, 1:]
    return result


def _find_rows(position: Tensor, panel_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the series (B,) of each panel of a mask (N, P), and its rows among the times (B, W).

    Panels without times are left out. Those with fewer than W times repeat their last row.
    """
    sorted_position, order = position.sort(dim=-1)
    edges = torch.arange(panel_mask.shape[1] + 1, dtype=position.dtype, device=position.device)
    edges[-1] = torch.inf  # the last edge belongs to the last panel
    begins = torch.searchsorted(
        sorted_position, edges.expand(*position.shape[:-1], -1).contiguous()
    )
    counts = begins.diff(dim=-1).expand(len(panel_mask), -1)
    series, panel = (panel_mask & (counts > 0)).nonzero(as_tuple=True)
    count = counts[series, panel].unsqueeze(1)
    begin = begins.expand(len(panel_mask), -1)[series, panel].unsqueeze(1)
    width = int(count.max()) if len(count) else 0
    slot = begin + torch.arange(width, device=position.device).minimum(count - 1)
    return series, order[slot] if order.ndim == 1 else order[series.unsqueeze(1), slot]


@cache
def _make_chebyshev(degree: int) -> tuple[Tensor, Tensor]:
    """Returns the Chebyshev nodes (K,), ascending from -1 to 1, and the transform (K, K).

    K is degree + 1. The transform maps values at the nodes to coefficients of Chebyshev
    polynomials.
    """
    with torch.inference_mode(mode=False):  # cached, so that later calls may record gradients
        k = torch.arange(degree + 1, dtype=torch.float64)
        transform = torch.cos(math.pi / degree * k.unsqueeze(1) * (degree - k)) * (2 / degree)
        transform[:, [0, -1]] /= 2
        transform[[0, -1]] /= 2
        return -torch.cos(math.pi * k / degree), transform


def _is_resolved(transform: Tensor, values: Tensor, tolerance: Tensor) -> Tensor:
    """Returns (N, P) whether polynomials through values (N, P, K, D) are accurate to `tolerance`.

    Coefficients of a smooth curve decay geometrically. The ratio of the last quarter of them to
    the quarter before, taken as at least one half, extrapolates to a bound on the sum of all that
    are left out; a safety factor of four sufficed in all tests. Coefficients at the level of
    rounding errors decay no further and are not extrapolated. `tolerance` (N,) is absolute.
    """
    quarter = len(transform) // 4
    n_series, panels = values.shape[:2]
    coefficients = transform[-2 * quarter :] @ values.movedim(2, 0).flatten(1)
    sizes = coefficients.view(2, quarter, n_series, panels, -1).abs().amax((1, 4))  # (2, N, P)
    largest = values.abs().amax((2, 3))
    last = sizes[1]
    ratio = (last / sizes[0].clamp(min=torch.finfo(last.dtype).tiny)).clamp(0.5, 0.99)
    error = 4 * last * (1 + quarter * ratio / (1 - ratio))
    rounding = 16 * torch.finfo(last.dtype).eps
    error = torch.where(last <= rounding * largest, 4 * last, error)
    return error <= tolerance.unsqueeze(1)


def _find_panel(position: Tensor, panels: int) -> Tensor:
    """Returns the panel of each position in units of panels; the last edge is in the last one."""
    return position.long().clamp(max=panels - 1)


def _evaluate_basis(x: Tensor, size: int) -> Tensor:
    """Returns the first Chebyshev polynomials (..., size) at x from -1 to 1."""
    columns = [torch.ones_like(x), x]
    while len(columns) < size:
        columns.append(2 * x * columns[-1] - columns[-2])
    return torch.stack(columns, dim=-1)


def _interpolate_shared(transform: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """Interpolates values (N, P, K, D) at positions (T,), by one matrix product per panel."""
    n_series, panels, n_terms, dim = values.shape
    sorted_position, order = position.sort()
    panel = _find_panel(sorted_position, panels)
    weights = _evaluate_basis(2 * (sorted_position - panel) - 1, n_terms) @ transform
    blocks = weights.split(panel.bincount(minlength=panels).tolist())
    rows = _multiply_blocks(blocks, values.permute(1, 2, 0, 3).flatten(2))
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        rows = rows.index_select(0, order.argsort())
    return rows.unflatten(1, (n_series, dim)).transpose(0, 1)


def _multiply_blocks(blocks: Sequence[Tensor], columns: Tensor) -> Tensor:
    """Multiplies blocks (T_p, K) by columns (P, K, M) and stacks the products: (T, M)."""
    if torch.is_grad_enabled():
        return torch.cat([block @ matrix for block, matrix in zip(blocks, columns, strict=True)])
    rows = columns.new_empty(sum(map(len, blocks)), columns.shape[-1])
    products = rows.split([len(block) for block in blocks])
    for block, matrix, product in zip(blocks, columns, products, strict=True):
        torch.mm(block, matrix, out=product)
    return rows


def _interpolate_per_series(transform: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """Interpolates values (N, P, K, D) at positions (N, T), in chunks of series."""
    size = max(1, _CHUNK_ENTRIES // (position.shape[1] * len(transform)))
    chunks = zip(values.split(size), position.split(size), strict=True)
    return torch.cat([_interpolate_chunk(transform @ chunk, where) for chunk, where in chunks])


def _interpolate_chunk(coefficients: Tensor, position: Tensor) -> Tensor:
    """Evaluates polynomials (N, P, K, D) at positions (N, T), padded to one length per panel."""
    n_series, panels, n_terms, dim = coefficients.shape
    sorted_position, order = position.sort(dim=1)
    panel = _find_panel(sorted_position, panels)
    counts = torch.zeros(n_series, panels, dtype=torch.long, device=position.device)
    counts.scatter_add_(1, panel, torch.ones_like(panel))
    begins = counts.cumsum(1) - counts
    rank = torch.arange(position.shape[1], device=position.device) - begins.gather(1, panel)
    width = int(counts.max())
    slot = panel * width + rank
    padded = position.new_zeros(n_series, panels * width)
    padded.scatter_(1, slot, 2 * (sorted_position - panel) - 1)
    slot = torch.empty_like(slot).scatter_(1, order, slot)
    states = _evaluate_basis(padded, n_terms).unflatten(1, (panels, width)) @ coefficients
    return states.flatten(1, 2).take_along_dim(slot.unsqueeze(-1).expand(-1, -1, dim), dim=1)
