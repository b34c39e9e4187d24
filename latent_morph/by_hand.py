"""Functions whose derivative is written out: fewer, larger operations than autograd would take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# The gradient of the output and what was kept, to the gradients of the inputs.
Gradients = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor]]


def by_hand(
    run: Callable[..., tuple[Tensor, Sequence[Tensor]]],
    gradients: Gradients,
    plain: Callable[..., Tensor],
    *inputs: Tensor,
) -> Tensor:
    """`plain(*inputs)`, computed by `run` and differentiated by `gradients`.

    Derivatives of derivatives and whatever `wants_plain` finds go through `plain`: they want
    operations that they know.

    Args:
        run: Inputs to the output and tensors to keep for the way back. It records nothing for
            autograd.
        gradients: The way back.
        plain: The same in ordinary operations.
        inputs: Everything that may have a gradient.
    """
    if wants_plain():
        return plain(*inputs)
    return _ByHand.apply(run, gradients, plain, *inputs)


def wants_plain() -> bool:
    """Whether something is at work that needs to see ordinary operations.

    That is a compiler or tracer, `torch.func`, derivatives in forward mode, or mixed precision.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
    )


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        run: Callable[..., tuple[Tensor, Sequence[Tensor]]],
        gradients: Gradients,
        plain: Callable[..., Tensor],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.gradients, ctx.plain, ctx.n_inputs = gradients, plain, len(inputs)
        output, kept = run(*inputs)
        ctx.save_for_backward(*inputs, *kept)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        saved = ctx.saved_tensors  # which also refuses inputs that were changed in the meantime
        inputs, kept = saved[: ctx.n_inputs], saved[ctx.n_inputs :]
        found: Sequence[Tensor]
        if torch.is_grad_enabled() or wants_plain():
            found = torch.func.vjp(ctx.plain, *inputs)[1](g)
        elif torch._C._functorch.is_legacy_batchedtensor(g):
            # Several gradients at once, as `torch.autograd.functional.jacobian` asks for.
            with torch.enable_grad():
                leaves = [value.detach().requires_grad_() for value in inputs]
                found = torch.autograd.grad(ctx.plain(*leaves), leaves, g)
        else:
            found = ctx.gradients(g, kept)
        return None, None, None, *found
