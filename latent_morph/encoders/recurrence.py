"""Damped rotations that are pushed at irregular times, both ways through time, in closed form.

    h[k] = exp((-a + ib) gap[k]) h[k-1] + u[k]   forwards, and the like backwards, for each mode

On a CPU a loop over time works in place on time-major memory, and its backward pass is the same
loop the other way: autograd would record every step and keep all of their results. What a step
leaves to do, one product and one sum, is done on complex views of real memory, a third of the
calls that halves would need; exponentials and turns, where complex functions are slow, are
real. On an accelerator, where a step's launch costs more than its arithmetic, a scan composes
neighbouring steps and needs as many rounds as the number of steps has binary digits.
"""

from typing import Any

import torch
from torch import Tensor


def pushed_modes(rates: Tensor, frequencies: Tensor, gaps: Tensor, pushes: Tensor) -> Tensor:
    """States of damped rotations driven by an input, from a start at zero.

    Args:
        rates: (2, P) decay a unit of time, positive; of the modes that run forwards in time, and
            of those that run backwards.
        frequencies: (2, P) radians a unit of time.
        gaps: (T, N) time between row k - 1 and row k; the first is not used. Receives no gradient.
        pushes: (T, N, 2, P, 2) what is added at each row: direction, mode, half of the state.

    Returns:
        (T, N, 2, P, 2) the states after the push at each row.
    """
    if pushes.device.type == "cpu":
        return _PushedModes.apply(rates, frequencies, gaps, pushes)
    return _scanned(rates, frequencies, gaps, pushes)


def turns(rates: Tensor, frequencies: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-a t) cos(b t) and exp(-a t) sin(b t): modes (..., P), gaps (...) to (..., ..., P)."""
    t = gaps.view(*gaps.shape, *[1] * rates.ndim)
    decay, angle = (-rates * t).exp(), frequencies * t
    return decay * angle.cos(), decay * angle.sin()


class _PushedModes(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        rates: Tensor,
        frequencies: Tensor,
        gaps: Tensor,
        pushes: Tensor,
    ) -> Tensor:
        factors = torch.complex(*turns(rates, frequencies, gaps))
        states = pushes.clone(memory_format=torch.contiguous_format)
        _sweep(torch.view_as_complex(states), factors, forwards=0)
        ctx.save_for_backward(gaps, pushes, factors, states)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        gaps, pushes, factors, states = ctx.saved_tensors
        # The adjoint of a turn is the turn back, and time runs the other way. On conjugates it is
        # the same sweep with the directions exchanged.
        grad = grad.clone(memory_format=torch.contiguous_format)
        grad[..., 1].neg_()
        conjugate = torch.view_as_complex(grad)
        _sweep(conjugate, factors, forwards=1)
        # A state without its push is what came over the gap: the derivative by that gap's
        # exponent is this times the adjoint.
        came = torch.view_as_real(conjugate * torch.view_as_complex(states - pushes))
        grad[..., 1].neg_()
        crossed = torch.stack([gaps, torch.cat([gaps[1:], torch.zeros_like(gaps[:1])])])
        by_direction = came.flatten(0, 1).flatten(2).transpose(0, 1)  # (2, T N, 2 P)
        by_mode = torch.bmm(crossed.flatten(1).unsqueeze(1), by_direction)
        by_rate, by_frequency = by_mode.unflatten(2, (-1, 2)).squeeze(1).neg().unbind(-1)
        return by_rate, by_frequency, None, grad


def _sweep(states: Tensor, factors: Tensor, *, forwards: int) -> None:
    """Adds to each row what comes over the gap, in place; complex (T, N, 2, P).

    The direction `forwards` starts at the first row, the other at the last.
    """
    rows, steps = states[:, :, forwards].unbind(), factors[:, :, forwards].unbind()
    for before, row, step in zip(rows, rows[1:], steps[1:], strict=False):
        row.addcmul_(step, before)
    rows, steps = states[:, :, 1 - forwards].unbind()[::-1], factors[:, :, 1 - forwards].unbind()
    for before, row, step in zip(rows, rows[1:], steps[:0:-1], strict=False):
        row.addcmul_(step, before)


def _scanned(rates: Tensor, frequencies: Tensor, gaps: Tensor, pushes: Tensor) -> Tensor:
    """`pushed_modes` as a scan, on real halves."""
    cos, sin = turns(rates, frequencies, gaps)
    u, v = pushes.unbind(-1)
    forwards = _scan(*(x[:, :, 0] for x in (cos, sin, u, v)))
    # Reversed, row j is reached by the step that used to lead into row j - 1 from there.
    cos, sin = (torch.cat([x[:1], x[1:].flip(0)])[:, :, 1] for x in (cos, sin))
    backwards = _scan(cos, sin, u[:, :, 1].flip(0), v[:, :, 1].flip(0))
    halves = [
        torch.stack([one, other.flip(0)], dim=2)
        for one, other in zip(forwards, backwards, strict=True)
    ]
    return torch.stack(halves, dim=-1)


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
