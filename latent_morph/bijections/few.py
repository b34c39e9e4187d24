"""A chain of coupling blocks passed backwards by a few points, in NumPy.

The starts of trajectories are a handful of points. Their pass through a network costs what it
takes to launch operations, and NumPy launches one in half of torch's time or less.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from latent_morph.bijections.wiring import Wiring
from latent_morph.by_hand import Kept

DTYPES = (torch.float32, torch.float64)
# Entries of a hidden layer up to which that pays: torch computes faster.
MOST = 4096


class Mover(NamedTuple):
    """The weights of what moves one half, of all B blocks."""

    weight: np.ndarray  # (B, width, passive)
    bias: np.ndarray  # (B, width, 1)
    last_weight: np.ndarray  # (B, 2 * moved, width): what scales, then what shifts
    last_bias: np.ndarray  # (B, 2 * moved, 1)


Movers = tuple[Mover, Mover]  # of the first half, of the second


class _Trace(NamedTuple):
    """What N points leave for the derivative where one half is moved, in all B blocks."""

    moved: np.ndarray  # (B, moved, N): that half, afterwards
    passive: np.ndarray  # (B, passive, N): the other
    gate: np.ndarray  # (B, width, N): sigmoid of the hidden layer
    active: np.ndarray  # (B, width, N): that times the layer
    share: np.ndarray  # (B, moved, N): sigmoid of what scales
    scale: np.ndarray  # (B, moved, N)

    @classmethod
    def of(cls, mover: Mover, n_points: int) -> "_Trace":
        """Not filled yet."""
        n_blocks, width, passive = mover.weight.shape
        moved = mover.last_weight.shape[1] // 2
        sizes = (moved, passive, width, width, moved, moved)
        dtype = mover.weight.dtype
        return cls(*(np.empty((n_blocks, size, n_points), dtype) for size in sizes))


def copied(weights: Sequence[Tensor]) -> Movers:
    """`Chain.weights` as they are now."""
    # Copies: torch never again resizes memory that NumPy has seen.
    arrays = [weight.detach().clone().numpy() for weight in weights]
    for k in (1, 3, 5, 7):
        arrays[k] = arrays[k][:, :, np.newaxis]
    return Mover(*arrays[:4]), Mover(*arrays[4:])


def were(kept: Kept) -> bool:
    """Whether it was `backwards` that kept the last: it keeps arrays of all blocks together."""
    return kept[-1][0].ndim == 3


@np.errstate(all="ignore")  # torch does not warn of infinities either
def backwards(y: Tensor, wiring: Wiring, movers: Movers, kept: Kept | None) -> Tensor:
    """The inverse of a chain at points as columns, (dim, N) to (dim, N).

    Args:
        y: The points.
        wiring: How the blocks are connected.
        movers: The weights.
        kept: Where to append what `backwards_gradients` needs.
    """
    one, two = movers
    traces = [_Trace.of(mover, y.shape[1]) for mover in movers]
    first, second = slice(wiring.halves[0]), slice(wiring.halves[0], None)
    *orders, last = wiring.gathers_in_numpy[1]
    unit, clamp, width = _numbers(one.bias, 1.0, wiring.clamp, 2 * wiring.clamp)
    x = y.detach().clone().numpy()
    for k, order in zip(reversed(range(len(one.bias))), orders, strict=True):
        x = x.take(order, 0)
        for half, passive, mover, trace in (
            (x[second], x[first], two, traces[1]),
            (x[first], x[second], one, traces[0]),
        ):
            trace.passive[k] = passive
            active = np.dot(mover.weight[k], passive, trace.active[k])
            active += mover.bias[k]
            active *= _sigmoid(active, unit, trace.gate[k])
            found = mover.last_weight[k].dot(active)
            found += mover.last_bias[k]
            share, shift = found[: len(half)], found[len(half) :]
            scale = np.multiply(width, _sigmoid(share, unit, trace.share[k]), trace.scale[k])
            np.exp(np.subtract(clamp, scale, scale), scale)
            half -= shift
            half *= scale
            trace.moved[k] = half
    if kept is not None:
        kept.append([torch.from_numpy(part) for trace in traces for part in trace])
    return torch.from_numpy(x.take(last, 0))


@np.errstate(all="ignore")
def backwards_gradients(g: Tensor, wiring: Wiring, movers: Movers, kept: Kept) -> list[Tensor]:
    """From the gradient of what `backwards` gave to those of the points and of the weights."""
    parts = [part.numpy() for part in kept.pop()]
    size = len(_Trace._fields)
    traces = _Trace(*parts[:size]), _Trace(*parts[size:])
    first, second = slice(wiring.halves[0]), slice(wiring.halves[0], None)
    *orders, last = wiring.gathers_in_numpy[0]
    unit, width = _numbers(movers[0].bias, 1.0, -2 * wiring.clamp)
    # Of all blocks at once: what hidden layers and scales answer to a small change.
    slopes = [trace.gate + trace.active * (unit - trace.gate) for trace in traces]
    bends = [width * trace.moved * trace.share * (unit - trace.share) for trace in traces]
    g_hiddens = [np.empty_like(trace.gate) for trace in traces]
    g_lasts = [
        np.empty((len(m.bias), m.last_bias.shape[1], g.shape[1]), m.bias.dtype) for m in movers
    ]
    points = g.resolve_neg().clone().numpy()
    for k, order in enumerate(orders):
        points = points.take(order, 0)
        for number, half, passive in (
            (0, points[first], points[second]),
            (1, points[second], points[first]),
        ):
            mover, g_last = movers[number], g_lasts[number][k]
            np.multiply(half, bends[number][k], g_last[: len(half)])
            half *= traces[number].scale[k]
            np.negative(half, g_last[len(half) :])
            g_hidden = np.dot(mover.last_weight[k].T, g_last, g_hiddens[number][k])
            g_hidden *= slopes[number][k]
            passive += mover.weight[k].T.dot(g_hidden)
    found = [points.take(last, 0)]
    for trace, g_hidden, g_last in zip(traces, g_hiddens, g_lasts, strict=True):
        found += [g_hidden @ trace.passive.transpose(0, 2, 1), g_hidden.sum(2)]
        found += [g_last @ trace.active.transpose(0, 2, 1), g_last.sum(2)]
    return [torch.from_numpy(part) for part in found]


def _sigmoid(x: np.ndarray, unit: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Written to `out`."""
    np.exp(np.negative(x, out), out)
    return np.reciprocal(np.add(out, unit, out), out)


def _numbers(like: np.ndarray, *values: float) -> list[np.ndarray]:
    """As arrays, which NumPy takes sooner than numbers."""
    return [np.array(value, like.dtype) for value in values]
