"""A linear recurrence of damped rotations over irregular steps, with its own backward pass.

    h[k] = A[k] h[k-1] + u[k],   A[k] = [[c[k], -s[k]], [s[k], c[k]]]   for each mode

On a CPU a loop over time works in place on time-major memory, and its backward pass is the same
loop in the other direction: autograd would record four operations a step and keep all of their
results. On an accelerator, where a step's launch costs more than its arithmetic, a scan composes
neighbouring steps and needs as many rounds as the number of steps has binary digits.
"""

from typing import Any

import torch
from torch import Tensor


def rotating_recurrence(
    cos: Tensor, sin: Tensor, u: Tensor, v: Tensor, *, backwards: bool = False
) -> tuple[Tensor, Tensor]:
    """States of damped rotations driven by an input, from a start at zero.

    Args:
        cos: (T, N, P) exp(a dt) cos(b dt) of the step between row k - 1 and row k; the first is
            not used.
        sin: (T, N, P) exp(a dt) sin(b dt).
        u: (T, N, P) what is added to the first half of the state at each row.
        v: (T, N, P) and to the second half.
        backwards: From the last row to the first, over the same steps.

    Returns:
        (T, N, P) twice: the two halves of the state at each row.
    """
    if u.device.type == "cpu":
        return _Rotation.apply(cos, sin, u, v, backwards)
    return _scan_backwards(cos, sin, u, v) if backwards else _scan(cos, sin, u, v)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        cos: Tensor,
        sin: Tensor,
        u: Tensor,
        v: Tensor,
        backwards: bool,  # noqa: FBT001
    ) -> tuple[Tensor, Tensor]:
        re, im = _accumulate(cos, sin, u, v, backwards=backwards, sense=1)
        ctx.save_for_backward(cos, sin, re, im)
        ctx.backwards = backwards
        return re, im

    @staticmethod
    def backward(ctx: Any, grad_re: Tensor, grad_im: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        cos, sin, re, im = ctx.saved_tensors
        # The transposed rotations turn the other way round, and time runs the other way.
        g, h = _accumulate(cos, sin, grad_re, grad_im, backwards=not ctx.backwards, sense=-1)
        # Step k led from one of its two rows to the other.
        here, there = (
            (slice(None, -1), slice(1, None))
            if ctx.backwards
            else (
                slice(1, None),
                slice(None, -1),
            )
        )
        grad_cos, grad_sin = torch.zeros_like(cos), torch.zeros_like(sin)
        torch.addcmul(g[here] * re[there], h[here], im[there], out=grad_cos[1:])
        torch.addcmul(h[here] * re[there], g[here], im[there], value=-1, out=grad_sin[1:])
        return grad_cos, grad_sin, g, h, None


def _accumulate(
    cos: Tensor, sin: Tensor, u: Tensor, v: Tensor, *, backwards: bool, sense: int
) -> tuple[Tensor, Tensor]:
    """The loop itself; `sense` -1 turns every rotation the other way."""
    re = u.clone(memory_format=torch.contiguous_format)
    im = v.clone(memory_format=torch.contiguous_format)
    rows = list(zip(re.unbind(), im.unbind(), strict=True))
    turns = list(zip(cos.unbind(), sin.unbind(), strict=True))
    if backwards:
        rows.reverse()
        turns = turns[:1] + turns[:0:-1]
    for (r0, i0), (r1, i1), (c, s) in zip(rows, rows[1:], turns[1:], strict=False):
        r1.addcmul_(c, r0).addcmul_(s, i0, value=-sense)
        i1.addcmul_(c, i0).addcmul_(s, r0, value=sense)
    return re, im


def _scan(cos: Tensor, sin: Tensor, re: Tensor, im: Tensor) -> tuple[Tensor, Tensor]:
    """After each round, row k holds the composition of the last 1, 2, 4, ... steps up to k."""
    reach = 1
    while reach < len(re):
        (c0, c1), (s0, s1), (r0, r1), (i0, i1) = (
            (rows[:-reach], rows[reach:]) for rows in (cos, sin, re, im)
        )
        done = slice(None, reach)
        re = torch.cat([re[done], r1 + c1 * r0 - s1 * i0])
        im = torch.cat([im[done], i1 + s1 * r0 + c1 * i0])
        cos, sin = (
            torch.cat([cos[done], c1 * c0 - s1 * s0]),
            torch.cat([sin[done], s1 * c0 + c1 * s0]),
        )
        reach *= 2
    return re, im


def _scan_backwards(cos: Tensor, sin: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    # Reversed, row j is reached by the step that used to lead into row j - 1 from there.
    cos, sin = (torch.cat([turn[:1], turn[1:].flip(0)]) for turn in (cos, sin))
    re, im = _scan(cos, sin, u.flip(0), v.flip(0))
    return re.flip(0), im.flip(0)
