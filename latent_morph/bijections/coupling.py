"""The arithmetic of a chain of coupling blocks on points as columns, and its derivative by hand.

A step of training a small network is hundreds of small operations, and to launch them takes
longer than to compute them. Here is the same map twice: `coupled` in operations that anything can
differentiate, compile or export, and `Chain`, which launches as few as it can.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from latent_morph.bijections import few
from latent_morph.bijections.wiring import Wiring
from latent_morph.by_hand import ByHand, Kept

# Weights (B, n_out, n_in) and biases (B, n_out) of a layer, those of all B blocks together.
Layer = tuple[Tensor, Tensor]
Subnet = Sequence[Layer]
# What moves one half in every block: one subnet that gives scale and shift, or one for each.
Mover = Sequence[Subnet]


def coupled(x: Tensor, wiring: Wiring, movers: Sequence[Mover], *, inverse: bool) -> Tensor:
    """Maps points as columns, (dim, M) to (dim, M).

    Args:
        x: The points.
        wiring: How the blocks are connected.
        movers: What moves the first half, by the second, and then the second, by the new first.
        inverse: Which way.
    """
    *orders, last = wiring.gathers[inverse]
    blocks = [[_in_block(mover, number) for mover in movers] for number in range(len(orders))]
    for order, (one, two) in zip(orders, blocks[::-1] if inverse else blocks, strict=True):
        first, second = x.index_select(0, order).split_with_sizes(wiring.halves)
        if inverse:
            second = _moved_back(second, first, two, wiring)
            first = _moved_back(first, second, one, wiring)
        else:
            first = _moved(first, second, one, wiring)
            second = _moved(second, first, two, wiring)
        x = torch.cat([first, second])
    return x.index_select(0, last)


def _in_block(mover: Mover, number: int) -> Mover:
    """The mover of one block: layers of (n_out, n_in) and (n_out,)."""
    return [[(weight[number], bias[number]) for weight, bias in subnet] for subnet in mover]


def _moved(x: Tensor, passive: Tensor, mover: Mover, wiring: Wiring) -> Tensor:
    scale, shift = _coefficients(passive, mover, wiring, wiring.clamp)
    return torch.addcmul(shift, x, scale)


def _moved_back(y: Tensor, passive: Tensor, mover: Mover, wiring: Wiring) -> Tensor:
    scale, shift = _coefficients(passive, mover, wiring, -wiring.clamp)
    return (y - shift) * scale


def _coefficients(
    passive: Tensor, mover: Mover, wiring: Wiring, clamp: float
) -> tuple[Tensor, Tensor]:
    """What scales and what shifts one half, computed from the other."""
    found = [_on_columns(subnet, passive, _FUNCTIONS[wiring.activation]) for subnet in mover]
    u, shift = found[0].chunk(2) if len(found) == 1 else found
    # The exponential of `clamp` times what lies between -1 and 1, 2 sigmoid(u) - 1.
    return ((u.sigmoid() - 0.5) * (2 * clamp)).exp(), shift


def _on_columns(subnet: Subnet, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    *hidden, (weight, bias) = subnet
    for inner_weight, inner_bias in hidden:
        x = activation(torch.addmm(inner_bias.unsqueeze(1), inner_weight, x))
    return torch.addmm(bias.unsqueeze(1), weight, x)


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "tanh": torch.tanh,
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "relu": torch.relu,
}


# By hand, for movers of one subnet with one hidden layer and this activation. Points have a row
# of ones between their halves, and hidden units one below, so that a layer is one product: its
# bias is a column of the matrix like any other.

BY_HAND = "silu"
# The bias of a hidden unit that sees nothing else and gives one.
_BIAS_OF_ONE = 1.2784645427610738

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input


def _activated(x: Tensor, one: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A hidden layer, which is overwritten, to its activation and, if given a one, its slope."""
    if one is None:
        return functional.silu(x, inplace=True), None
    share = x.sigmoid()
    y = x.mul_(share)
    # s + y (1 - s), which takes a third of the time of torch's own derivative
    return y, torch.lerp(share, one, y, out=share)


class _Numbers(NamedTuple):
    """Some that operations want as tensors."""

    zero: Tensor
    one: Tensor
    low: Tensor  # a scale is the exponential of something between this
    high: Tensor  # and this
    bias_of_one: Tensor


@lru_cache(maxsize=64)
def _numbers(clamp: float, dtype: torch.dtype, device: torch.device) -> _Numbers:
    with torch.inference_mode(mode=False):  # kept for calls that record gradients, too
        values = torch.tensor([0.0, 1.0, -clamp, clamp, _BIAS_OF_ONE], dtype=dtype, device=device)
        return _Numbers(*values.unbind())


class _Matrices(NamedTuple):
    """What moves a half in one block."""

    hidden: Tensor  # (width + 1, passive + 1); the bias is where the ones are
    last: Tensor  # (2 * moved, width + 1): rows of what scales, then of what shifts
    hidden_transposed: Tensor  # (passive, width + 1)
    last_transposed: Tensor


class _Trace(NamedTuple):
    """What a move leaves for its derivative."""

    moved: Tensor  # the half that was moved: as it was before, or in the inverse as it is after
    passive: Tensor  # the other, with the ones
    active: Tensor
    slope: Tensor
    share: Tensor  # sigmoid of what scales
    scale: Tensor


class Chain:
    """Blocks ready to be passed by hand, either way.

    Args:
        wiring: How the blocks are connected.
        movers: Of one subnet each, with one hidden layer of the activation `BY_HAND`.

    Attributes:
        weights: Weight and bias of the hidden layer and of the last one of what moves the first
            half, then those of what moves the second.
    """

    def __init__(self, wiring: Wiring, movers: Sequence[Mover]) -> None:
        self.wiring = wiring
        self.weights = tuple(part for (subnet,) in movers for layer in subnet for part in layer)
        half, other = wiring.halves
        self.parts = (half, 1, other)
        self.width = 2 * wiring.clamp

    @cached_property
    def numbers(self) -> _Numbers:
        """Made when they are needed: a compiler, which does not need them, cannot see a cache."""
        like = self.weights[0]
        return _numbers(self.wiring.clamp, like.dtype, like.device)

    @cached_property
    def copied(self) -> few.Movers:
        """The weights for `few`, which has the same numbers on its way back."""
        return few.copied(self.weights)

    @cached_property
    def blocks(self) -> list[tuple[_Matrices, _Matrices]]:
        """What moves the first half and what moves the second, in each block."""
        with torch.no_grad():
            one = self._matrices(*self.weights[:4], ones_first=True)
            two = self._matrices(*self.weights[4:], ones_first=False)
        return list(zip(one, two, strict=True))

    def _matrices(
        self,
        weight: Tensor,
        bias: Tensor,
        last_weight: Tensor,
        last_bias: Tensor,
        *,
        ones_first: bool,
    ) -> Iterator[_Matrices]:
        columns = bias.unsqueeze(2), weight
        around = (0, weight.shape[2]) if ones_first else (weight.shape[2], 0)
        unit = functional.pad(self.numbers.bias_of_one.expand(len(bias), 1, 1), around)
        hidden = torch.cat([torch.cat(columns if ones_first else columns[::-1], 2), unit], 1)
        last = torch.cat([last_weight, last_bias.unsqueeze(2)], 2)
        seen = hidden[:, :, 1:] if ones_first else hidden[:, :, :-1]
        return map(_Matrices, *(part.unbind() for part in (hidden, last, seen.mT, last.mT)))

    @property
    def forwards(self) -> ByHand:
        """The map of points as columns, (dim, M) to (dim, M)."""
        plain = partial(self._plain, inverse=False)
        return ByHand(self._forwards, self._forwards_gradients, plain, self.weights)

    @property
    def backwards(self) -> ByHand:
        """Its inverse."""
        plain = partial(self._plain, inverse=True)
        return ByHand(self._backwards, self._backwards_gradients, plain, self.weights)

    def _plain(self, x: Tensor, *weights: Tensor, inverse: bool) -> Tensor:
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        return coupled(x, self.wiring, [[layers[:2]], [layers[2:]]], inverse=inverse)

    def _forwards(self, x: Tensor, kept: Kept | None) -> Tensor:
        *orders, last = self.wiring.gathers_with_ones[0]
        half, ones = self.wiring.halves[0], self.numbers.one.expand(1, x.shape[1])
        traces = _traces(kept)
        x = torch.cat([x, ones])
        for order, (one, two) in zip(orders, self.blocks, strict=True):
            x = x.index_select(0, order)
            first, _, second = x.split_with_sizes(self.parts)
            first = torch.cat([self._move(first, x[half:], one, traces), ones])
            x = torch.cat([first, self._move(second, first, two, traces)])
        return x.index_select(0, last)

    def _backwards(self, y: Tensor, kept: Kept | None) -> Tensor:
        if self._few(y):
            return few.backwards(y, self.wiring, self.copied, kept)
        *orders, last = self.wiring.gathers_with_ones[1]
        half, ones = self.wiring.halves[0], self.numbers.one.expand(1, y.shape[1])
        traces = _traces(kept)
        y = torch.cat([y, ones])
        for order, (one, two) in zip(orders, reversed(self.blocks), strict=True):
            y = y.index_select(0, order)
            first, _, second = y.split_with_sizes(self.parts)
            second = torch.cat([ones, self._move_back(second, y[: half + 1], two, traces)])
            y = torch.cat([self._move_back(first, second, one, traces), second])
        return y.index_select(0, last)

    def _few(self, y: Tensor) -> bool:
        """Whether the points go backwards in NumPy, which knows no other kinds of tensors."""
        weight = self.weights[0]
        return (
            y.shape[1] * weight.shape[1] <= few.MOST
            and type(y) is Tensor
            and not y.is_neg()
            and y.device.type == "cpu"
            and y.dtype == weight.dtype
            and y.dtype in few.DTYPES
        )

    def _move(
        self, x: Tensor, passive: Tensor, matrices: _Matrices, traces: list[Tensor] | None
    ) -> Tensor:
        active, slope, share, shift = self._evaluated(passive, matrices, traces)
        scale = torch.add(self.numbers.low, share, alpha=self.width).exp_()
        if traces is not None and slope is not None:
            traces += _Trace(x, passive, active, slope, share, scale)
        return torch.addcmul(shift, x, scale)

    def _move_back(
        self, y: Tensor, passive: Tensor, matrices: _Matrices, traces: list[Tensor] | None
    ) -> Tensor:
        active, slope, share, shift = self._evaluated(passive, matrices, traces)
        scale = torch.sub(self.numbers.high, share, alpha=self.width).exp_()
        x = torch.sub(y, shift).mul_(scale)
        if traces is not None and slope is not None:
            traces += _Trace(x, passive, active, slope, share, scale)
        return x

    def _evaluated(
        self, passive: Tensor, matrices: _Matrices, traces: list[Tensor] | None
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        hidden = torch.mm(matrices.hidden, passive)
        active, slope = _activated(hidden, None if traces is None else self.numbers.one)
        last = torch.mm(matrices.last, active)
        half = last.shape[0] // 2
        share, shift = last.split_with_sizes((half, half))
        return active, slope, share.sigmoid_(), shift

    def _forwards_gradients(self, g: Tensor, kept: Kept) -> list[Tensor]:
        """From the gradient of the image to those of the points and of all weights."""
        *orders, last = self.wiring.gathers[1]
        traces = _gathered(kept.pop())
        found = []
        for order, (one, two) in zip(orders, reversed(self.blocks), strict=True):
            g = g.index_select(0, order)
            g_first, g_second = g.split_with_sizes(self.wiring.halves)
            of_two = self._unmove(g_second, g_first, traces.pop(), two)
            of_one = self._unmove(g_first, g_second, traces.pop(), one)
            found.append(of_one + of_two)
        return [g.index_select(0, last), *self._of_weights(reversed(found))]

    def _backwards_gradients(self, g: Tensor, kept: Kept) -> list[Tensor]:
        """The same for the inverse."""
        if few.were(kept):
            return few.backwards_gradients(g, self.wiring, self.copied, kept)
        *orders, last = self.wiring.gathers[0]
        traces = _gathered(kept.pop())
        found = []
        for order, (one, two) in zip(orders, self.blocks, strict=True):
            g = g.index_select(0, order)
            g_first, g_second = g.split_with_sizes(self.wiring.halves)
            of_one = self._unmove_back(g_first, g_second, traces.pop(), one)
            of_two = self._unmove_back(g_second, g_first, traces.pop(), two)
            found.append(of_one + of_two)
        return [g.index_select(0, last), *self._of_weights(found)]

    # These take the gradients of both halves back through a move, in place, and return those of
    # its matrices, the first one transposed: in this order the product takes half as long.

    def _unmove(
        self, g: Tensor, g_passive: Tensor, trace: _Trace, matrices: _Matrices
    ) -> tuple[Tensor, Tensor]:
        g_last = torch.cat([g, g])
        g_share = g_last[: g.shape[0]]
        g.mul_(trace.scale)
        torch.addcmul(self.numbers.zero, g, trace.moved, value=self.width, out=g_share)
        _sigmoid_backward(g_share, trace.share, grad_input=g_share)
        return self._through_layers(g_last, g_passive, trace, matrices)

    def _unmove_back(
        self, g: Tensor, g_passive: Tensor, trace: _Trace, matrices: _Matrices
    ) -> tuple[Tensor, Tensor]:
        g_share = torch.addcmul(self.numbers.zero, g, trace.moved, value=-self.width)
        _sigmoid_backward(g_share, trace.share, grad_input=g_share)
        g_last = torch.cat([g_share, g.mul_(trace.scale).neg()])
        return self._through_layers(g_last, g_passive, trace, matrices)

    def _through_layers(
        self, g_last: Tensor, g_passive: Tensor, trace: _Trace, matrices: _Matrices
    ) -> tuple[Tensor, Tensor]:
        g_hidden = torch.mm(matrices.last_transposed, g_last).mul_(trace.slope)
        g_passive.addmm_(matrices.hidden_transposed, g_hidden)
        product = functional.linear  # with the second one transposed
        return product(trace.passive, g_hidden), product(g_last, trace.active)

    def _of_weights(self, found: Iterable[tuple[Tensor, ...]]) -> Iterator[Tensor]:
        """The gradients of `weights` from those of the matrices of each block."""
        one, last_one, two, last_two = map(torch.stack, zip(*found, strict=True))
        one, two = one[:, :, :-1], two[:, :, :-1]
        for bias, weight, last in (
            (one[:, 0], one[:, 1:], last_one),
            (two[:, -1], two[:, :-1], last_two),
        ):
            for part in (weight.mT, bias, last[:, :, :-1], last[:, :, -1]):
                yield part.contiguous()  # somebody may want to see it as one row


def _traces(kept: Kept | None) -> list[Tensor] | None:
    """What moves add their traces to, if they are kept."""
    if kept is None:
        return None
    traces: list[Tensor] = []
    kept.append(traces)
    return traces


def _gathered(kept: Sequence[Tensor]) -> list[_Trace]:
    """The traces that these tensors were, the last one last."""
    size = len(_Trace._fields)
    return [_Trace(*kept[k : k + size]) for k in range(0, len(kept), size)]
