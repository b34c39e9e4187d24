"""Functions whose derivative is written out: fewer, larger operations than autograd would take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# What is kept for the way back, a sequence for each function that has run, the last one last.
Kept = list[Sequence[Tensor]]
Run = Callable[[Tensor, Kept | None], Tensor]
Gradients = Callable[[Tensor, Kept], Sequence[Tensor]]


@dataclass(frozen=True)
class ByHand:
    """A function of a tensor and of weights, and its derivative.

    Derivatives of derivatives and whatever `wants_plain` finds go through `plain`: they want
    operations that they know.

    Attributes:
        run: The tensor to the output, with the weights as they are. It records nothing for
            autograd; if given a list, it appends what the way back needs.
        gradients: The way back: from the gradient of the output and what was kept, of which it
            takes its own off the end, to the gradients of the tensor and of each of the weights.
            It overwrites no tensor that it is given.
        plain: The tensor and the weights to the output, in ordinary operations.
        weights: What else may have a gradient.
    """

    run: Run
    gradients: Gradients
    plain: Callable[..., Tensor]
    weights: tuple[Tensor, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """The output."""
        if wants_plain():
            return self.plain(x, *self.weights)
        inputs = (x, *self.weights)
        if (
            not torch.is_grad_enabled()
            or torch.is_inference_mode_enabled()  # where nothing is recorded even so
            or not any(value.requires_grad for value in inputs)
        ):
            return self.run(x, None)
        # The tensor is kept, for derivatives of derivatives. One made where nothing is recorded
        # cannot be, and of a view the caller may overwrite the rest.
        if x.is_inference() or x._is_view():
            x = x.clone()
        return _Recorded.apply(self, x, *self.weights)


def in_a_row(*functions: ByHand) -> ByHand:
    """The functions one after the other, as one. They may share weights."""
    weights = {id(weight): weight for function in functions for weight in function.weights}

    def run(x: Tensor, kept: Kept | None) -> Tensor:
        for function in functions:
            x = function.run(x, kept)
        return x

    def gradients(g: Tensor, kept: Kept) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for function in reversed(functions):
            g, *others = function.gradients(g, kept)
            for weight, other in zip(function.weights, others, strict=True):
                before = found.get(id(weight))
                found[id(weight)] = other if before is None else before + other
        return [g, *(found[name] for name in weights)]

    def plain(x: Tensor, *values: Tensor) -> Tensor:
        known = dict(zip(weights, values, strict=True))
        for function in functions:
            x = function.plain(x, *(known[id(weight)] for weight in function.weights))
        return x

    return ByHand(run, gradients, plain, tuple(weights.values()))


def wants_plain() -> bool:
    """Whether something is at work that needs to see ordinary operations.

    That is a compiler or tracer, `torch.func`, derivatives in forward mode, mixed precision, or a
    mode that watches or replaces operations, as with tensors that have no numbers.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_any_autocast_enabled()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


# Operations go straight to the processor's kernels. Without this each of them first asks autograd,
# to hear that nothing is recorded, which takes a tenth of the time of a small one.
_unrecorded = torch._C._AutoDispatchBelowAutograd


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: ByHand, *inputs: Tensor) -> Tensor:  # noqa: ANN401
        kept: Kept = []
        with _unrecorded():
            output = function.run(inputs[0], kept)
        ctx.function, ctx.sizes = function, [len(part) for part in (inputs, *kept)]
        ctx.save_for_backward(*inputs, *chain.from_iterable(kept))
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        function: ByHand = ctx.function
        saved = iter(ctx.saved_tensors)  # which also refuses inputs that were changed since
        parts: Kept = [tuple(islice(saved, size)) for size in ctx.sizes]
        inputs, kept = parts[0], parts[1:]
        found: Sequence[Tensor]
        # Several gradients at once, as `torch.autograd.functional.jacobian` asks for.
        several = torch._C._functorch.is_legacy_batchedtensor(g)
        if torch.is_grad_enabled() or wants_plain() or several:
            found = torch.func.vjp(function.plain, *inputs)[1](g)
        else:
            with _unrecorded():
                found = function.gradients(g, kept)
        return None, *found
