"""Functions whose derivative is written out: fewer, larger operations than autograd would take."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Gradients = Callable[[Tensor], Sequence[Tensor]]


def by_hand(
    run: Callable[..., tuple[Tensor, Gradients]], plain: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """`plain(*inputs)`, computed and differentiated as `run` does it.

    Derivatives of derivatives, derivatives in forward mode, `torch.func`, compiling and exporting
    use `plain`: they want operations that they know.

    Args:
        run: Inputs to the output and a function from its gradient to those of the inputs. It
            records nothing for autograd. What that function holds on to is freed with the graph;
            the output itself must not be among it, since that would keep the graph alive.
        plain: The same in ordinary operations.
        inputs: Everything that may have a gradient.
    """
    if wants_plain() or not torch.is_grad_enabled():
        return plain(*inputs)
    return _ByHand.apply(run, plain, *inputs)


def wants_plain() -> bool:
    """Whether something is at work that wants ordinary operations: a compiler or `torch.func`."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        run: Callable[..., tuple[Tensor, Gradients]],
        plain: Callable[..., Tensor],
        *inputs: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        ctx.plain = plain
        output, ctx.gradients = run(*inputs)
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        inputs = ctx.saved_tensors  # which also refuses inputs that were changed in the meantime
        if torch.is_grad_enabled():
            return None, None, *torch.func.vjp(ctx.plain, *inputs)[1](g)
        return None, None, *ctx.gradients(g)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor:  # noqa: ANN401
        inputs = ctx.saved_tensors
        directions = tuple(
            torch.zeros_like(value) if tangent is None else tangent
            for value, tangent in zip(inputs, tangents[2:], strict=True)
        )
        # Gradients are linear in what they start from: to differentiate that map turns it round.
        output, pull = torch.func.vjp(ctx.plain, *inputs)[:2]
        return torch.func.vjp(pull, torch.zeros_like(output))[1](directions)[0]
