"""Dense output: a smooth curve is evaluated at a few nodes and interpolated at many times."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

NODES = 16  # a panel
_PIECE = 2**18  # entries of the basis at a time: what is computed then stays in the cache

Curve = Callable[[Tensor, Tensor], Tensor]


def dense_curve(
    curve: Curve, start: Tensor, times: Tensor, *, tolerance: float, panels: int
) -> Tensor:
    """`curve(start, times)` to `tolerance`, from fewer evaluations where there are many times.

    The span of the times is cut into panels with Chebyshev nodes in each. Series whose last
    coefficients in every panel are small, which bounds what the polynomials leave out, are read
    off; the others get twice as many panels, until there would be as many nodes as times, and the
    curve itself is evaluated. Series do not see each other: each gets the panels it needs.

    Args:
        curve: Starts (N, D) and times (T,) or (N, T) to states (N, T, D), smooth in time.
        start: (N, D).
        times: (T,) shared by all series, or (N, T).
        tolerance: Largest error, relative to the largest absolute value of each series' curve.
        panels: How many to try first.
    """
    if panels * NODES >= times.shape[-1]:
        return curve(start, times)
    first = times.amin(-1, keepdim=True)
    span = (times.amax(-1, keepdim=True) - first).clamp(min=torch.finfo(times.dtype).tiny)
    values = curve(start, first + span * _nodes(panels).to(times))
    coefficients = _cosine_transform().to(times) @ values.unflatten(1, (panels, NODES))
    place = (times - first) / span * panels
    read = _read_shared if times.ndim == 1 else _read_ragged
    good = _resolved(coefficients.detach(), values.detach(), tolerance)
    if good.all():
        return read(coefficients, place)

    def chosen(series: Tensor, which: Tensor) -> Tensor:
        return series if series.ndim == 1 else series[which]

    states = start.new_empty(len(start), times.shape[-1], start.shape[-1])
    if good.any():
        states[good] = read(coefficients[good], chosen(place, good))
    states[~good] = dense_curve(
        curve, start[~good], chosen(times, ~good), tolerance=tolerance, panels=2 * panels
    )
    return states


def _nodes(panels: int) -> Tensor:
    """(panels * NODES,) Chebyshev nodes of the panels of [0, 1], ascending."""
    x = -torch.cos(math.pi * (torch.arange(NODES, dtype=torch.float64) + 0.5) / NODES)
    return ((torch.arange(panels).unsqueeze(1) + (x + 1) / 2) / panels).flatten()


def _cosine_transform() -> Tensor:
    """(NODES, NODES): values at the ascending nodes to coefficients of Chebyshev polynomials."""
    k = torch.arange(NODES, dtype=torch.float64)
    angles = math.pi * (NODES - 1 - k + 0.5) / NODES
    matrix = torch.cos(k.unsqueeze(1) * angles) * (2 / NODES)
    matrix[0] /= 2
    return matrix


def _resolved(coefficients: Tensor, values: Tensor, tolerance: float) -> Tensor:
    """(N,) whether what lies beyond the last coefficients, (N, P, NODES, D), is negligible.

    Coefficients of a smooth curve fall geometrically. Falling by a third each, all that are left
    out and their images on the nodes sum to no more than twice the last two.
    """
    left_out = 2 * coefficients[:, :, -2:].abs().sum(2).amax((1, 2))
    return left_out <= tolerance * values.abs().amax((1, 2))


def _panel(place: Tensor, panels: int) -> Tensor:
    """The panel of each place, whole numbers being edges; the last edge belongs to the last."""
    return place.long().clamp(max=panels - 1)


def _basis(x: Tensor) -> Tensor:
    """Chebyshev polynomials (..., NODES) at x from -1 to 1."""
    columns = [torch.ones_like(x), x]
    while len(columns) < NODES:
        columns.append(2 * x * columns[-1] - columns[-2])
    return torch.stack(columns, dim=-1)


def _read_shared(coefficients: Tensor, place: Tensor) -> Tensor:
    """(N, P, NODES, D) at places (T,): one matrix product a panel, for all series together."""
    n_series, panels, _, dim = coefficients.shape
    columns = coefficients.permute(1, 2, 0, 3).flatten(2)
    ordered, order = place.sort()
    panel = _panel(ordered, panels)
    counts = panel.bincount(minlength=panels).tolist()
    parts = _basis(2 * (ordered - panel) - 1).split(counts)
    rows = torch.cat([part @ matrix for part, matrix in zip(parts, columns, strict=True)])
    if not torch.equal(order, torch.arange(len(order), device=order.device)):
        rows = rows.index_select(0, order.argsort())
    return rows.unflatten(1, (n_series, dim)).transpose(0, 1)


def _read_ragged(coefficients: Tensor, place: Tensor) -> Tensor:
    """(N, P, NODES, D) at places (N, T): each series has times of its own in every panel."""
    size = max(1, _PIECE // (place.shape[1] * NODES))
    pieces = zip(coefficients.split(size), place.split(size), strict=True)
    return torch.cat([_read_some(*piece) for piece in pieces])


def _read_some(coefficients: Tensor, place: Tensor) -> Tensor:
    """(N, P, NODES, D) at (N, T): times are put into one padded row a panel, and read back."""
    n_series, panels, _, dim = coefficients.shape
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
    read = _basis(padded).unflatten(1, (panels, width)) @ coefficients
    return read.flatten(1, 2).take_along_dim(slot.unsqueeze(-1).expand(-1, -1, dim), dim=1)
