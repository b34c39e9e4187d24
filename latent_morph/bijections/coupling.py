"""The arithmetic of a chain of coupling blocks on points as columns, and its derivative by hand.

A step of training a small network is hundreds of small operations, and to launch them takes
longer than to compute them. Here is the same map twice: `coupled` in operations that anything can
differentiate, compile or export, and `Chain`, which launches as few as it can.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from latent_morph.by_hand import by_hand, wants_plain

# Weights (B, n_out, n_in) and biases (B, n_out) of a layer, those of all B blocks together.
Layer = tuple[Tensor, Tensor]
Subnet = Sequence[Layer]
# What moves one half in every block: one subnet that gives scale and shift, or one for each.
Mover = Sequence[Subnet]


class Wiring(NamedTuple):
    """What of a chain of B blocks does not learn.

    Attributes:
        enter: (dim,) of each block: the gather before it.
        undo: (dim,) of each block: the gather that undoes it.
        leave: (dim,) the gather after the last one.
        arrive: (dim,) the gather that undoes that.
        halves: How many rows each has.
        clamp: A block scales a coordinate by at most exp(clamp).
        activation: Name of the subnets' activation.
    """

    enter: Sequence[Tensor]
    undo: Sequence[Tensor]
    leave: Tensor
    arrive: Tensor
    halves: tuple[int, int]
    clamp: float
    activation: str


def coupled(x: Tensor, wiring: Wiring, movers: Sequence[Mover], *, inverse: bool) -> Tensor:
    """Maps points as columns, (dim, M) to (dim, M).

    Args:
        x: The points.
        wiring: How the blocks are connected.
        movers: What moves the first half, by the second, and then the second, by the new first.
        inverse: Which way.
    """
    blocks = [
        [_in_block(mover, number) for mover in movers] for number in range(len(wiring.enter))
    ]
    if inverse:
        x = x.index_select(0, wiring.arrive)
        for order, (one, two) in reversed(list(zip(wiring.undo, blocks, strict=True))):
            first, second = x.split_with_sizes(wiring.halves)
            second = _moved_back(second, first, two, wiring)
            first = _moved_back(first, second, one, wiring)
            x = torch.cat([first, second]).index_select(0, order)
        return x
    for order, (one, two) in zip(wiring.enter, blocks, strict=True):
        first, second = x.index_select(0, order).split_with_sizes(wiring.halves)
        first = _moved(first, second, one, wiring)
        second = _moved(second, first, two, wiring)
        x = torch.cat([first, second])
    return x.index_select(0, wiring.leave)


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


# By hand, for movers of one subnet with one hidden layer: four tensors of weights each.

_aten = torch.ops.aten
# Gradient of the output, then input and output, to gradient of the input.
_DERIVATIVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "silu": lambda g, x, y: _aten.silu_backward.default(g, x),
    "tanh": lambda g, x, y: _aten.tanh_backward.default(g, y),
    "gelu": lambda g, x, y: _aten.gelu_backward.default(g, x),
    "softplus": lambda g, x, y: _aten.softplus_backward.default(g, x, 1, 20),
    "relu": lambda g, x, y: _aten.threshold_backward.default(g, x, 0),
}


class _Weights(NamedTuple):
    """What moves a half in one block, as the products want it."""

    parts: tuple[int, int]  # rows of the last layer: what scales and what shifts
    weight: Tensor
    bias: Tensor  # a column, as is the other
    last_weight: Tensor
    last_bias: Tensor
    transposed: Tensor
    last_transposed: Tensor


class _Trace(NamedTuple):
    """What a move leaves for its derivative."""

    moved: Tensor  # the half that was moved: as it was before, or in the inverse as it is after
    passive: Tensor
    hidden: Tensor
    active: Tensor
    share: Tensor  # sigmoid of what scales
    scale: Tensor


class Chain:
    """Blocks ready to be passed by hand, either way.

    Args:
        wiring: How the blocks are connected.
        movers: Of one subnet each, with one hidden layer.

    Attributes:
        weights: Weight and bias of the hidden layer and of the last one of what moves the first
            half, then those of what moves the second.
    """

    def __init__(self, wiring: Wiring, movers: Sequence[Mover]) -> None:
        self.wiring = wiring
        self.weights = tuple(part for (subnet,) in movers for layer in subnet for part in layer)
        self.function = _FUNCTIONS[wiring.activation]
        self.derivative = _DERIVATIVES[wiring.activation]

    @cached_property
    def blocks(self) -> list[tuple[Tensor, Tensor, _Weights, _Weights]]:
        """What each block has: the gather before it, what undoes that, and its two movers."""
        with torch.no_grad():
            one, two = (_of_blocks(*four) for four in (self.weights[:4], self.weights[4:]))
        return list(zip(self.wiring.enter, self.wiring.undo, one, two, strict=True))

    def __call__(self, x: Tensor, *, inverse: bool) -> Tensor:
        """Maps points as columns, (dim, M) to (dim, M)."""
        run, gradients = (
            (self._backwards, self._backwards_gradients)
            if inverse
            else (self._forwards, self._forwards_gradients)
        )
        plain = partial(self._plain, inverse=inverse)
        inputs = (x, *self.weights)
        if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
            if x.is_inference():  # such a tensor cannot be kept for the way back
                inputs = (x.clone(), *self.weights)
            return by_hand(partial(self._traced, run), gradients, plain, *inputs)
        return plain(*inputs) if wants_plain() else run(x)

    @staticmethod
    def _traced(
        run: Callable[[Tensor, list[_Trace]], Tensor], x: Tensor, *_: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        traces: list[_Trace] = []
        image = run(x, traces)
        return image, [tensor for trace in traces for tensor in trace]

    def _plain(self, x: Tensor, *weights: Tensor, inverse: bool) -> Tensor:
        layers = list(zip(weights[::2], weights[1::2], strict=True))
        return coupled(x, self.wiring, [[layers[:2]], [layers[2:]]], inverse=inverse)

    def _forwards(self, x: Tensor, traces: list[_Trace] | None = None) -> Tensor:
        for order, _, one, two in self.blocks:
            x = x.index_select(0, order)
            y = torch.empty_like(x)
            first, second = x.split_with_sizes(self.wiring.halves)
            new_first, new_second = y.split_with_sizes(self.wiring.halves)
            done = (
                self._move(first, second, one, new_first),
                self._move(second, new_first, two, new_second),
            )
            if traces is not None:
                traces += done
            x = y
        return x.index_select(0, self.wiring.leave)

    def _backwards(self, y: Tensor, traces: list[_Trace] | None = None) -> Tensor:
        y = y.index_select(0, self.wiring.arrive)
        for _, order, one, two in reversed(self.blocks):
            x = torch.empty_like(y)
            first, second = y.split_with_sizes(self.wiring.halves)
            old_first, old_second = x.split_with_sizes(self.wiring.halves)
            done = (
                self._move_back(second, first, two, old_second),
                self._move_back(first, old_second, one, old_first),
            )
            if traces is not None:
                traces += done
            y = x.index_select(0, order)
        return y

    def _move(self, x: Tensor, passive: Tensor, weights: _Weights, out: Tensor) -> _Trace:
        hidden, active, share, shift = self._evaluated(passive, weights)
        scale = torch.sub(share, 0.5).mul_(2 * self.wiring.clamp).exp_()
        torch.addcmul(shift, x, scale, out=out)
        return _Trace(x, passive, hidden, active, share, scale)

    def _move_back(self, y: Tensor, passive: Tensor, weights: _Weights, out: Tensor) -> _Trace:
        hidden, active, share, shift = self._evaluated(passive, weights)
        scale = torch.sub(share, 0.5).mul_(-2 * self.wiring.clamp).exp_()
        torch.sub(y, shift, out=out).mul_(scale)
        return _Trace(out, passive, hidden, active, share, scale)

    def _evaluated(
        self, passive: Tensor, weights: _Weights
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # A product and a sum are faster than addmm, which first copies the bias to every column.
        hidden = torch.mm(weights.weight, passive).add_(weights.bias)
        active = self.function(hidden)
        last = torch.mm(weights.last_weight, active).add_(weights.last_bias)
        share, shift = last.split_with_sizes(weights.parts)
        return hidden, active, share.sigmoid_(), shift

    def _forwards_gradients(self, g: Tensor, kept: Sequence[Tensor]) -> list[Tensor]:
        """From the gradient of the image to those of the points and of all weights."""
        g = g.index_select(0, self.wiring.arrive)
        last = _last_first(kept)
        found = []
        for _, order, one, two in reversed(self.blocks):
            g_first, g_second = g.split_with_sizes(self.wiring.halves)
            of_two = self._unmove(g_second, g_first, next(last), two)
            of_one = self._unmove(g_first, g_second, next(last), one)
            found.append(of_one + of_two)
            g = g.index_select(0, order)
        return [g, *map(torch.stack, zip(*reversed(found), strict=True))]

    def _backwards_gradients(self, g: Tensor, kept: Sequence[Tensor]) -> list[Tensor]:
        """The same for the inverse."""
        last = _last_first(kept)
        found = []
        for order, _, one, two in self.blocks:
            g = g.index_select(0, order)
            g_first, g_second = g.split_with_sizes(self.wiring.halves)
            of_one = self._unmove(g_first, g_second, next(last), one, inverse=True)
            of_two = self._unmove(g_second, g_first, next(last), two, inverse=True)
            found.append(of_one + of_two)
        g = g.index_select(0, self.wiring.leave)
        return [g, *map(torch.stack, zip(*found, strict=True))]

    def _unmove(
        self,
        g: Tensor,
        g_passive: Tensor,
        trace: _Trace,
        weights: _Weights,
        *,
        inverse: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Takes the gradients of both halves back through a move, in place.

        Returns:
            Those of weight, bias, last weight and last bias.
        """
        moved, passive, hidden, active, share, scale = trace
        g_last = g.new_empty(2 * g.shape[0], g.shape[1])
        g_share, g_shift = g_last.split_with_sizes(weights.parts)
        if inverse:
            torch.mul(g, moved, out=g_share).mul_(-2 * self.wiring.clamp)
            torch.neg(g.mul_(scale), out=g_shift)
        else:
            g_shift.copy_(g)
            torch.mul(g.mul_(scale), moved, out=g_share).mul_(2 * self.wiring.clamp)
        _aten.sigmoid_backward.grad_input(g_share, share, grad_input=g_share)
        g_active = torch.mm(weights.last_transposed, g_last)
        g_hidden = self.derivative(g_active, hidden, active)
        g_passive.addmm_(weights.transposed, g_hidden)
        return (
            torch.mm(passive, g_hidden.t()).t(),  # in this order it takes half as long
            g_hidden.sum(1),
            torch.mm(g_last, active.t()),
            g_last.sum(1),
        )


def _last_first(kept: Sequence[Tensor]) -> Iterator[_Trace]:
    """The traces that these tensors were, in the order of the way back."""
    size = len(_Trace._fields)
    for end in range(len(kept), 0, -size):
        yield _Trace(*kept[end - size : end])


def _of_blocks(
    weight: Tensor, bias: Tensor, last_weight: Tensor, last_bias: Tensor
) -> list[_Weights]:
    columns = [
        weight,
        bias.unsqueeze(-1),
        last_weight,
        last_bias.unsqueeze(-1),
        weight.mT,
        last_weight.mT,
    ]
    half = last_bias.shape[1] // 2
    blocks = zip(*(part.unbind() for part in columns), strict=True)
    return [_Weights((half, half), *tensors) for tensors in blocks]
