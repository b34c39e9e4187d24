"""Damped rotations with inputs at irregular times, in both directions of time, in closed form.

    h[k] = exp((-a + ib) gap[k]) h[k-1] + u[k]   forward, and likewise backward, for each mode

The inputs are either impulses, which a layer of an encoder learns, or ramps between rows, which
make a filter of a piecewise linear channel.

On a CPU, a loop over time works in place on time-major memory, and so does its backward pass;
autograd, which records every step and keeps all intermediate results, took 1.45 times as long.
On other devices and in exported programs, sums over earlier rows are computed in chunks of time,
without a loop.
"""

from typing import Any

import torch
from torch import Tensor

CHUNK = 32


def linear_recurrence(rates: Tensor, frequencies: Tensor, gaps: Tensor, inputs: Tensor) -> Tensor:
    """Returns the states of damped rotations that start at zero and are driven by inputs.

    Args:
        rates: (2, P) positive decay rates of the forward and of the backward modes.
        frequencies: (2, P) radians per unit of time.
        gaps: (T, N) time between rows k - 1 and k; the first is not used. Receives no gradient.
        inputs: (T, N, 2, P, 2), added at each row: direction, mode, real and imaginary part.

    Returns:
        (T, N, 2, P, 2) the states after the input at each row.
    """
    if inputs.device.type == "cpu" and not torch.compiler.is_compiling():
        return _LinearRecurrence.apply(rates, frequencies, gaps, inputs)
    return chunked_recurrence(rates, frequencies, gaps, inputs)


def damped_rotation(rates: Tensor, frequencies: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Returns exp(-a t) cos(b t), exp(-a t) sin(b t): axes of the gaps t, then of a and b."""
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
        # The adjoint recurrence has conjugate factors and runs in the opposite direction of time:
        # on conjugates it is the same sweep with the directions exchanged.
        grad = grad.clone(memory_format=torch.contiguous_format)
        grad[..., 1].neg_()
        conjugate = torch.view_as_complex(grad)
        _sweep(conjugate, factors, forward=1)
        # A state minus its input is the factor of the gap times the previous state. Times the
        # adjoint it is the derivative with respect to the exponent of that factor.
        products = torch.view_as_real(conjugate * torch.view_as_complex(states - inputs))
        grad[..., 1].neg_()
        preceding = torch.stack([gaps, torch.cat([gaps[1:], torch.zeros_like(gaps[:1])])])
        by_direction = products.flatten(0, 1).flatten(2).transpose(0, 1)  # (2, T N, 2 P)
        by_mode = torch.bmm(preceding.flatten(1).unsqueeze(1), by_direction)
        grad_rates, grad_frequencies = by_mode.unflatten(2, (-1, 2)).squeeze(1).neg().unbind(-1)
        return grad_rates, grad_frequencies, None, grad


def _sweep(states: Tensor, factors: Tensor, *, forward: int) -> None:
    """Adds factor times previous state to each row, in place; complex (T, N, 2, P).

    Index `forward` of the third axis runs from the first row, the other one from the last.
    """
    rows, steps = states[:, :, forward].unbind(), factors[:, :, forward].unbind()
    for previous, row, step in zip(rows, rows[1:], steps[1:], strict=False):
        row.addcmul_(step, previous)
    rows, steps = states[:, :, 1 - forward].unbind()[::-1], factors[:, :, 1 - forward].unbind()
    for previous, row, step in zip(rows, rows[1:], steps[:0:-1], strict=False):
        row.addcmul_(step, previous)


def chunked_recurrence(rates: Tensor, frequencies: Tensor, gaps: Tensor, inputs: Tensor) -> Tensor:
    """`linear_recurrence` without a loop: sums within chunks of time, then over chunks."""
    times = gaps.cumsum(0)
    forward = _sum_over_past(rates[0], frequencies[0], times, inputs[:, :, 0])
    # The backward direction is the forward one in negative time, with rows reversed.
    backward = _sum_over_past(
        rates[1], frequencies[1], -times.flip(0), inputs[:, :, 1].flip(0)
    ).flip(0)
    return torch.stack([forward, backward], dim=2)


def _sum_over_past(rates: Tensor, frequencies: Tensor, times: Tensor, inputs: Tensor) -> Tensor:
    """Returns h[k] = sum over j <= k of exp((-a + ib)(t[k] - t[j])) u[j].

    Rows are padded to whole chunks, at least two, since exported programs treat an axis of size 1
    differently.

    Args:
        rates: (P,).
        frequencies: (P,).
        times: (T, N), non-decreasing.
        inputs: (T, N, P, 2).

    Returns:
        (T, N, P, 2).
    """
    n_times = times.shape[0]
    n_chunks = n_times // CHUNK + 2
    chunk = torch.arange(n_chunks, device=times.device)
    offset = torch.arange(CHUNK, device=times.device)
    row = chunk.unsqueeze(1) * CHUNK + offset  # (chunks, rows of a chunk)
    is_row = (row < n_times).view(n_chunks, CHUNK, 1, 1, 1)
    row = row.clamp(max=n_times - 1)  # padding repeats the last time
    times = times[row].movedim(2, 0)  # (N, chunks, rows)
    inputs = torch.where(is_row, inputs[row], 0.0).movedim(2, 0)  # (N, chunks, rows, P, 2)

    within = _apply_kernel(
        rates,
        frequencies,
        times.unsqueeze(-1) - times.unsqueeze(-2),
        offset[:, None] >= offset,
        inputs,
    )
    # The states at the ends of chunks, from all inputs so far, and their contributions to the rows
    # of the next chunk.
    ends = times[..., -1]
    carried = _apply_kernel(
        rates,
        frequencies,
        ends.unsqueeze(-1) - ends.unsqueeze(-2),
        chunk[:, None] >= chunk,
        within[..., -1, :, :],
    )
    previous = torch.cat([torch.zeros_like(carried[:, :1]), carried], dim=1)[:, :n_chunks]
    previous_end = torch.cat([times[:, :1, 0], ends], dim=1)[:, :n_chunks]
    cos, sin = damped_rotation(rates, frequencies, times - previous_end.unsqueeze(-1))
    re, im = previous.unsqueeze(2).unbind(-1)
    earlier = torch.stack([cos * re - sin * im, cos * im + sin * re], dim=-1)
    row = torch.arange(n_times, device=times.device)
    return (within + earlier).movedim(0, 2)[row // CHUNK, row % CHUNK]


def _apply_kernel(
    rates: Tensor, frequencies: Tensor, lags: Tensor, causal: Tensor, inputs: Tensor
) -> Tensor:
    """Sums inputs (..., J, P, 2) over pairs `causal` (K, J), lags (..., K, J): (..., K, P, 2)."""
    lags = torch.where(causal, lags, 0.0)
    cos, sin = damped_rotation(rates, frequencies, lags)
    cos, sin = (torch.where(causal.unsqueeze(-1), x, 0.0) for x in (cos, sin))
    re, im = inputs.unbind(-1)

    def contract(kernel: Tensor, values: Tensor) -> Tensor:
        return (kernel * values.unsqueeze(-3)).sum(-2)

    return torch.stack(
        [contract(cos, re) - contract(sin, im), contract(cos, im) + contract(sin, re)], dim=-1
    )


def ramp_response(rates: Tensor, frequencies: Tensor, gaps: Tensor, values: Tensor) -> Tensor:
    """Returns the responses of damped rotations to the slopes of piecewise linear channels.

    In either direction of time, D' = (-a + ib) D + x', starting at zero. Without gradients.

    Args:
        rates: (P,) positive.
        frequencies: (P,).
        gaps: (T, N) time between rows k - 1 and k; the first is not used.
        values: (T, N, C) the channels at the rows; between equal times they jump.

    Returns:
        (T, N, 2, C, P, 2) direction, channel, mode, real and imaginary part.
    """
    # A jump is a ramp so short that no mode decays meanwhile.
    gaps = gaps.clamp(min=1e-9 / rates.amax(0))
    change_re, change_im = rotation_minus_one(rates, frequencies, gaps)  # (T, N, P)
    # The response to a ramp of unit slope over each gap: the change, divided by -a + ib.
    size = rates.square() + frequencies.square()
    ramp_re = (frequencies * change_im - rates * change_re) / size
    ramp_im = -(rates * change_im + frequencies * change_re) / size
    previous = torch.cat([values[:1], values])[: values.shape[0]]
    slopes = (values - previous) / gaps.unsqueeze(-1)
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        ramp = torch.complex(ramp_re, ramp_im).unsqueeze(2)
        states = ramp.new_zeros(*values.shape[:2], 2, values.shape[2], len(rates))
        torch.mul(slopes.unsqueeze(-1), ramp, out=states[:, :, 0])
        torch.neg(states[1:, :, 0], out=states[:-1, :, 1])
        factors = torch.complex(1 + change_re, change_im).unsqueeze(2)
        _sweep(states, torch.stack([factors, factors], dim=2), forward=0)
        return torch.view_as_real(states)
    ramp = torch.stack([ramp_re, ramp_im], dim=-1).unsqueeze(2)
    forward = slopes.unsqueeze(-1).unsqueeze(-1) * ramp  # (T, N, C, P, 2)
    backward = -torch.cat([forward, torch.zeros_like(forward[:1])])[1:]
    n_channels = values.shape[2]
    states = chunked_recurrence(
        rates.repeat(2, n_channels),
        frequencies.repeat(2, n_channels),
        gaps,
        torch.stack([forward, backward], dim=2).flatten(3, 4),
    )
    return states.unflatten(3, (n_channels, len(rates)))


def rotation_minus_one(rates: Tensor, frequencies: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Returns real and imaginary part of exp((-a + ib) t) - 1, accurate for small t too."""
    t = gaps.unsqueeze(-1)
    decay = torch.expm1(-rates * t)
    half = frequencies * t / 2
    sin, cos = half.sin(), half.cos()
    versine = 2 * sin.square()
    return decay * (1 - versine) - versine, (decay + 1) * 2 * sin * cos
