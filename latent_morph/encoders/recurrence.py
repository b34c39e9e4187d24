"""Damped rotations driven at irregular times, in both directions of time, in closed form.

    h[k] = exp((-a + ib) gap[k]) h[k-1] + u[k]   forward, and likewise backward, for each mode

On a CPU a loop over time works in place on time-major memory, and its backward pass is the same
loop in the other direction; autograd would record every step and keep all intermediate results
(measured: 1.45 times as long). Elsewhere, and in exported programs, the sum over earlier rows is
written out in chunks of time, in ordinary operations without a loop.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 32


def linear_recurrence(rates: Tensor, frequencies: Tensor, gaps: Tensor, inputs: Tensor) -> Tensor:
    """States of damped rotations driven by an input, from a start at zero.

    Args:
        rates: (2, P) decay per unit of time, positive; of the modes that run forward in time, and
            of those that run backward.
        frequencies: (2, P) radians per unit of time.
        gaps: (T, N) time between row k - 1 and row k; the first is not used. Receives no gradient.
        inputs: (T, N, 2, P, 2) what is added at each row: direction, mode, half of the state.

    Returns:
        (T, N, 2, P, 2) the states after the input at each row.
    """
    if inputs.device.type == "cpu" and not torch.compiler.is_compiling():
        return _LinearRecurrence.apply(rates, frequencies, gaps, inputs)
    return chunked_recurrence(rates, frequencies, gaps, inputs)


def damped_rotation(rates: Tensor, frequencies: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """exp(-a t) cos(b t) and exp(-a t) sin(b t): modes (..., P), gaps (...) to (..., ..., P)."""
    t = gaps.view(*gaps.shape, *[1] * rates.ndim)
    decay, angle = (-rates * t).exp(), frequencies * t
    return decay * angle.cos(), decay * angle.sin()


class _LinearRecurrence(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        rates: Tensor,
        frequencies: Tensor,
        gaps: Tensor,
        inputs: Tensor,
    ) -> Tensor:
        factors = torch.complex(*damped_rotation(rates, frequencies, gaps))
        states = inputs.clone(memory_format=torch.contiguous_format)
        _sweep(torch.view_as_complex(states), factors, forward=0)
        ctx.save_for_backward(gaps, inputs, factors, states)
        return states

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        gaps, inputs, factors, states = ctx.saved_tensors
        # The adjoint of a rotation is the rotation back, and time runs the other way. On
        # conjugates it is the same sweep with the directions exchanged.
        grad = grad.clone(memory_format=torch.contiguous_format)
        grad[..., 1].neg_()
        conjugate = torch.view_as_complex(grad)
        _sweep(conjugate, factors, forward=1)
        # A state without its input is what came over the gap: the derivative with respect to that
        # gap's exponent is this times the adjoint.
        carried = torch.view_as_real(conjugate * torch.view_as_complex(states - inputs))
        grad[..., 1].neg_()
        crossed = torch.stack([gaps, torch.cat([gaps[1:], torch.zeros_like(gaps[:1])])])
        by_direction = carried.flatten(0, 1).flatten(2).transpose(0, 1)  # (2, T N, 2 P)
        by_mode = torch.bmm(crossed.flatten(1).unsqueeze(1), by_direction)
        grad_rates, grad_frequencies = by_mode.unflatten(2, (-1, 2)).squeeze(1).neg().unbind(-1)
        return grad_rates, grad_frequencies, None, grad


def _sweep(states: Tensor, factors: Tensor, *, forward: int) -> None:
    """Adds to each row what comes over the gap, in place; complex (T, N, 2, P).

    The direction `forward` starts at the first row, the other at the last.
    """
    rows, steps = states[:, :, forward].unbind(), factors[:, :, forward].unbind()
    for before, row, step in zip(rows, rows[1:], steps[1:], strict=False):
        row.addcmul_(step, before)
    rows, steps = states[:, :, 1 - forward].unbind()[::-1], factors[:, :, 1 - forward].unbind()
    for before, row, step in zip(rows, rows[1:], steps[:0:-1], strict=False):
        row.addcmul_(step, before)


def chunked_recurrence(rates: Tensor, frequencies: Tensor, gaps: Tensor, inputs: Tensor) -> Tensor:
    """`linear_recurrence` without a loop: sums over lags within chunks, then between chunks."""
    times = gaps.cumsum(0)
    forward = _sum_over_past(rates[0], frequencies[0], times, inputs[:, :, 0])
    # Backward in time is forward in negative time, rows reversed.
    backward = _sum_over_past(
        rates[1], frequencies[1], -times.flip(0), inputs[:, :, 1].flip(0)
    ).flip(0)
    return torch.stack([forward, backward], dim=2)


def _sum_over_past(rates: Tensor, frequencies: Tensor, times: Tensor, inputs: Tensor) -> Tensor:
    """h[k] = sum over j <= k of exp((-a + ib)(t[k] - t[j])) u[j].

    Rows are padded to whole chunks, at least two, since exported programs must not have to tell
    one chunk from several.

    Args:
        rates: (P,).
        frequencies: (P,).
        times: (T, N), never falling.
        inputs: (T, N, P, 2).

    Returns:
        (T, N, P, 2).
    """
    n_times = times.shape[0]
    n_chunks = n_times // CHUNK + 2
    chunk = torch.arange(n_chunks, device=times.device)
    place = torch.arange(CHUNK, device=times.device)
    row = chunk.unsqueeze(1) * CHUNK + place  # (chunks, rows of a chunk)
    inside = (row < n_times).view(n_chunks, CHUNK, 1, 1, 1)
    row = row.clamp(max=n_times - 1)  # rows beyond the last repeat its time
    times = times[row].movedim(2, 0)  # (N, chunks, rows)
    inputs = torch.where(inside, inputs[row], 0.0).movedim(2, 0)  # (N, chunks, rows, P, 2)

    within = _respond(
        rates,
        frequencies,
        times.unsqueeze(-1) - times.unsqueeze(-2),
        place[:, None] >= place,
        inputs,
    )
    # The state at the end of each chunk by its own inputs, carried over to the chunks after it,
    # and from the end of the chunk before to each row.
    ends = times[..., -1]
    carried = _respond(
        rates,
        frequencies,
        ends.unsqueeze(-1) - ends.unsqueeze(-2),
        chunk[:, None] >= chunk,
        within[..., -1, :, :],
    )
    before = torch.cat([torch.zeros_like(carried[:, :1]), carried], dim=1)[:, :n_chunks]
    end_before = torch.cat([times[:, :1, 0], ends], dim=1)[:, :n_chunks]
    cos, sin = damped_rotation(rates, frequencies, times - end_before.unsqueeze(-1))
    re, im = before.unsqueeze(2).unbind(-1)
    rest = torch.stack([cos * re - sin * im, cos * im + sin * re], dim=-1)
    row = torch.arange(n_times, device=times.device)
    return (within + rest).movedim(0, 2)[row // CHUNK, row % CHUNK]


def _respond(
    rates: Tensor, frequencies: Tensor, lags: Tensor, causal: Tensor, inputs: Tensor
) -> Tensor:
    """Sums inputs (..., J, P, 2) over causal (K, J) pairs at lags (..., K, J): (..., K, P, 2)."""
    lags = torch.where(causal, lags, 0.0)
    cos, sin = damped_rotation(rates, frequencies, lags)
    cos, sin = (torch.where(causal.unsqueeze(-1), x, 0.0) for x in (cos, sin))
    re, im = inputs.unbind(-1)

    def contract(kernel: Tensor, values: Tensor) -> Tensor:
        return (kernel * values.unsqueeze(-3)).sum(-2)

    return torch.stack(
        [contract(cos, re) - contract(sin, im), contract(cos, im) + contract(sin, re)], dim=-1
    )
