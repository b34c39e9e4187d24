"""A linear recurrence of damped rotations over irregular steps, with its own backward pass.

    h[k] = A[k] h[k-1] + u[k],   A[k] = [[c[k], -s[k]], [s[k], c[k]]]   for each mode

The loop over time works in place on time-major memory, and the backward pass is the same loop
reversed. Autograd would record four operations a step and keep all of their results.
"""

from typing import Any

import torch
from torch import Tensor


class _Rotation(torch.autograd.Function):
    """(T, N, P) cos, sin, and the two halves of the input, to the two halves of the states."""

    @staticmethod
    def forward(ctx: Any, cos: Tensor, sin: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        re, im = (
            u.clone(memory_format=torch.contiguous_format),
            v.clone(memory_format=torch.contiguous_format),
        )
        for k in range(1, len(re)):
            re[k].addcmul_(cos[k], re[k - 1]).addcmul_(sin[k], im[k - 1], value=-1)
            im[k].addcmul_(sin[k], re[k - 1]).addcmul_(cos[k], im[k - 1])
        ctx.save_for_backward(cos, sin, re, im)
        return re, im

    @staticmethod
    def backward(ctx: Any, grad_re: Tensor, grad_im: Tensor) -> tuple[Tensor, ...]:  # noqa: ANN401
        cos, sin, re, im = ctx.saved_tensors
        g = grad_re.clone(memory_format=torch.contiguous_format)
        h = grad_im.clone(memory_format=torch.contiguous_format)
        for k in range(len(re) - 2, -1, -1):
            g[k].addcmul_(cos[k + 1], g[k + 1]).addcmul_(sin[k + 1], h[k + 1])
            h[k].addcmul_(cos[k + 1], h[k + 1]).addcmul_(sin[k + 1], g[k + 1], value=-1)
        grad_cos, grad_sin = torch.zeros_like(cos), torch.zeros_like(sin)
        torch.addcmul(g[1:] * re[:-1], h[1:], im[:-1], out=grad_cos[1:])
        torch.addcmul(h[1:] * re[:-1], g[1:], im[:-1], value=-1, out=grad_sin[1:])
        return grad_cos, grad_sin, g, h


def rotating_recurrence(cos: Tensor, sin: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """States of damped rotations driven by an input.

    Args:
        cos: (T, N, P) exp(a dt) cos(b dt) of each step; the first is not used.
        sin: (T, N, P) exp(a dt) sin(b dt).
        u: (T, N, P) what is added to the first half of the state at each step.
        v: (T, N, P) and to the second half.

    Returns:
        (T, N, P) twice: the two halves of the state after each step, from a start at zero.
    """
    return _Rotation.apply(cos, sin, u, v)
