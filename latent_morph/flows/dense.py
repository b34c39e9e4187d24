"""Dense output: a smooth curve is evaluated at a few nodes and interpolated at many times."""

import math
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

DEGREE = 32  # of the polynomial on a panel
# Interpolation is tried where there are this many times as many times as nodes.
_PAYS = 3
_PIECE = 2**18  # entries of the basis at a time: what is computed then stays in the cache

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
    """`curve(start, times)` to `tolerance`, from fewer evaluations where there are many times.

    The span of the times is cut into panels with Chebyshev nodes in each. Panels of a series whose
    last coefficients are small, which bounds what the polynomial leaves out, are read off. The
    others and their neighbours are cut in two, until there would be nearly as many nodes as
    times, and the curve itself is evaluated. Series do not see each other: each gets the panels it
    needs.

    Args:
        curve: Starts (N, D) and times (T,) or (N, T) to states (N, T, D), smooth in time.
        start: (N, D).
        times: (T,) shared by all series, or (N, T).
        tolerance: Largest error, relative to the largest absolute value of each series' curve.
        panels: How many to try first.
        scale: (N,) that largest value, as far as it is known from more of the curve than `times`.
    """
    n_times = times.shape[-1]
    if n_times < _PAYS * panels * (DEGREE + 1):
        return curve(start, times)
    nodes, transform = _chebyshev(DEGREE)
    transform = transform.to(times)
    first = times.amin(-1, keepdim=True)
    span = times.amax(-1, keepdim=True) - first
    edges = torch.arange(panels, dtype=nodes.dtype).unsqueeze(1)
    share = ((edges + (nodes + 1) / 2) / panels).flatten().to(times)
    values = curve(start, first + span * share).unflatten(1, (panels, DEGREE + 1))
    place = (times - first) / span.clamp(min=torch.finfo(times.dtype).tiny) * panels
    seen = values.detach().abs().amax((1, 2, 3))
    scale = seen if scale is None else torch.maximum(scale, seen)
    unresolved = _with_neighbours(~_resolved(transform, values.detach(), tolerance * scale))
    if unresolved.all():
        return dense_curve(
            curve, start, times, tolerance=tolerance, panels=2 * panels, scale=scale
        )
    states = (_read_shared if times.ndim == 1 else _read_ragged)(transform, values, place)
    if not unresolved.any():
        return states
    series, rows = _rows_in(place, unresolved)
    if not len(series):
        return states  # nobody asks where it is not
    asked = times[rows] if times.ndim == 1 else times[series.unsqueeze(1), rows]
    finer = dense_curve(
        curve, start[series], asked, tolerance=tolerance, panels=2, scale=scale[series]
    )
    return states.index_put((series.unsqueeze(1), rows), finer)


def _with_neighbours(panels: Tensor) -> Tensor:
    """(N, P) also the panels beside: a bend at an edge is hard to see from one side of it."""
    wider = panels.clone()
    wider[:, 1:] |= panels[:, :-1]
    wider[:, :-1] |= panels[:, 1:]
    return wider


def _rows_in(place: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The series (B,) of `chosen` panels (N, P), and which of the times are in each (B, W).

    A panel with fewer times than the fullest has its last one several times; one without any is
    left out.
    """
    ordered, order = place.sort(dim=-1)
    edges = torch.arange(chosen.shape[1] + 1, dtype=place.dtype, device=place.device)
    edges[-1] = torch.inf  # the last edge belongs to the last panel
    begins = torch.searchsorted(ordered, edges.expand(*place.shape[:-1], -1).contiguous())
    counts = begins.diff(dim=-1).expand(len(chosen), -1)
    series, panel = (chosen & (counts > 0)).nonzero(as_tuple=True)
    count = counts[series, panel].unsqueeze(1)
    begin = begins.expand(len(chosen), -1)[series, panel].unsqueeze(1)
    width = int(count.max()) if len(count) else 0
    within = torch.arange(width, device=place.device).minimum(count - 1)
    slot = begin + within
    return series, order[slot] if order.ndim == 1 else order[series.unsqueeze(1), slot]


@cache
def _chebyshev(degree: int) -> tuple[Tensor, Tensor]:
    """Nodes from -1 to 1 (degree + 1,), and the matrix from values there to coefficients."""
    with torch.inference_mode(mode=False):  # kept for calls that record gradients, too
        return _nodes(degree), _cosine_transform(degree)


def _nodes(degree: int) -> Tensor:
    """(degree + 1,) Chebyshev nodes from -1 to 1, ascending, the ends among them."""
    return -torch.cos(math.pi * torch.arange(degree + 1, dtype=torch.float64) / degree)


def _cosine_transform(degree: int) -> Tensor:
    """(degree + 1, degree + 1): values at the nodes to coefficients of Chebyshev polynomials."""
    k = torch.arange(degree + 1, dtype=torch.float64)
    matrix = torch.cos(math.pi / degree * k.unsqueeze(1) * (degree - k)) * (2 / degree)
    matrix[:, [0, -1]] /= 2
    matrix[[0, -1]] /= 2
    return matrix


def _resolved(transform: Tensor, values: Tensor, tolerance: Tensor) -> Tensor:
    """(N, P) whether what lies beyond the last coefficients of values (N, P, K, D) is negligible.

    Coefficients of a smooth curve fall geometrically: how fast is seen in the last two quarters,
    and what follows sums to a geometric series; four times that, with a fall of no more than one
    half believed, was enough in all of the tests. A sharp bend falls slowly, and a long tail of
    small coefficients is a large error. What has reached the rounding errors falls no further and
    is done. `tolerance` (N,) is absolute.
    """
    quarter = len(transform) // 4
    n_series, panels = values.shape[:2]
    ending = transform[-2 * quarter :] @ values.movedim(2, 0).flatten(1)
    sizes = ending.view(2, quarter, n_series, panels, -1).abs().amax((1, 4))  # (2, N, P)
    largest = values.abs().amax((2, 3))
    left = sizes[1]
    fall = (left / sizes[0].clamp(min=torch.finfo(left.dtype).tiny)).clamp(0.5, 0.99)
    beyond = 4 * left * (1 + quarter * fall / (1 - fall))
    rounding = 16 * torch.finfo(left.dtype).eps
    beyond = torch.where(left <= rounding * largest, 4 * left, beyond)
    return beyond <= tolerance.unsqueeze(1)


def _panel(place: Tensor, panels: int) -> Tensor:
    """The panel of each place, whole numbers being edges; the last edge belongs to the last."""
    return place.long().clamp(max=panels - 1)


def _basis(x: Tensor, size: int) -> Tensor:
    """The first Chebyshev polynomials (..., size) at x from -1 to 1."""
    columns = [torch.ones_like(x), x]
    while len(columns) < size:
        columns.append(2 * x * columns[-1] - columns[-2])
    return torch.stack(columns, dim=-1)


def _read_shared(transform: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """Values (N, P, K, D) at places (T,): one matrix product a panel, for all series together."""
    n_series, panels, n_terms, dim = values.shape
    ordered, order = place.sort()
    panel = _panel(ordered, panels)
    weights = _basis(2 * (ordered - panel) - 1, n_terms) @ transform
    parts = weights.split(panel.bincount(minlength=panels).tolist())
    columns = values.permute(1, 2, 0, 3).flatten(2)
    rows = _blocks(parts, columns)
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        rows = rows.index_select(0, order.argsort())
    return rows.unflatten(1, (n_series, dim)).transpose(0, 1)


def _blocks(parts: Sequence[Tensor], columns: Tensor) -> Tensor:
    """Products of `parts` (T_p, K) with `columns` (P, K, M), one below the other: (T, M)."""
    if torch.is_grad_enabled():
        return torch.cat([part @ matrix for part, matrix in zip(parts, columns, strict=True)])
    rows = columns.new_empty(sum(map(len, parts)), columns.shape[-1])
    places = rows.split([len(part) for part in parts])
    for part, matrix, place in zip(parts, columns, places, strict=True):
        torch.mm(part, matrix, out=place)
    return rows


def _read_ragged(transform: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """Values (N, P, K, D) at places (N, T): each series has times of its own in every panel."""
    size = max(1, _PIECE // (place.shape[1] * len(transform)))
    pieces = zip(values.split(size), place.split(size), strict=True)
    return torch.cat([_read_some(transform @ some, where) for some, where in pieces])


def _read_some(coefficients: Tensor, place: Tensor) -> Tensor:
    """Coefficients (N, P, K, D) at (N, T): times fill one padded row a panel, then read back."""
    n_series, panels, n_terms, dim = coefficients.shape
    ordered, order = place.sort(dim=1)
    panel = _panel(ordered, panels)
    counts = torch.zeros(n_series, panels, dtype=torch.long, device=place.device)
    counts.scatter_add_(1, panel, torch.ones_like(panel))
    begins = counts.cumsum(1) - counts
    rank = torch.arange(place.shape[1], device=place.device) - begins.gather(1, panel)
    width = int(counts.max())
    slot = panel * width + rank
    padded = place.new_zeros(n_series, panels * width)
    padded.scatter_(1, slot, 2 * (ordered - panel) - 1)
    slot = torch.empty_like(slot).scatter_(1, order, slot)
    read = _basis(padded, n_terms).unflatten(1, (panels, width)) @ coefficients
    return read.flatten(1, 2).take_along_dim(slot.unsqueeze(-1).expand(-1, -1, dim), dim=1)
