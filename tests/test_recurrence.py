"""The recurrence with its own backward pass, against the plain loop that autograd records.

Responses to ramps are compared with the integral that defines them.
"""

import numpy as np
import pytest
import torch

from latent_morph.recurrence import (
    chunked_recurrence,
    linear_recurrence,
    ramp_response,
    rotation_minus_one,
)

pytestmark = pytest.mark.usefixtures("float64")


def reference(rates, frequencies, gaps, inputs):
    """One step after the other, in complex numbers; direction 1 from the last row to the first."""
    exponent = torch.complex(-rates, frequencies)
    u = torch.view_as_complex(inputs.contiguous())
    ahead, back = [u[0, :, 0]], [u[-1, :, 1]]
    for k in range(1, len(u)):
        ahead.append((exponent[0] * gaps[k, :, None]).exp() * ahead[-1] + u[k, :, 0])
    for k in reversed(range(len(u) - 1)):
        back.append((exponent[1] * gaps[k + 1, :, None]).exp() * back[-1] + u[k, :, 1])
    return torch.view_as_real(torch.stack([torch.stack(ahead), torch.stack(back[::-1])], dim=2))


EVALUATIONS = {"loop": linear_recurrence, "chunks": chunked_recurrence}


def make_inputs(steps, *, gap=None):
    generator = torch.Generator().manual_seed(0)
    gaps = (
        torch.rand(steps, 3, generator=generator) if gap is None else torch.full((steps, 3), gap)
    )
    rates = torch.rand(2, 4, generator=generator) + 0.5
    frequencies, inputs = (
        torch.randn(*shape, generator=generator) for shape in ((2, 4), (steps, 3, 2, 4, 2))
    )
    return [
        rates.requires_grad_(),
        frequencies.requires_grad_(),
        gaps,
        inputs.requires_grad_(),
    ]


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 70])
def test_recurrence_equals_the_step_by_step_reference_with_gradients(steps, evaluation):
    ours, theirs = make_inputs(steps), make_inputs(steps)
    actual, expected = EVALUATIONS[evaluation](*ours), reference(*theirs)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    weights = torch.randn(actual.shape, generator=torch.Generator().manual_seed(1))
    (weights * actual).sum().backward()
    (weights * expected).sum().backward()
    for left, right in zip(ours, theirs, strict=True):
        if left.requires_grad:
            grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (left, right)]
            torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-10)


def test_recurrence_gradcheck():
    assert torch.autograd.gradcheck(linear_recurrence, make_inputs(4))


@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("gap", [1e-6, 1e6])
def test_recurrence_of_long_series_and_extreme_gaps_stays_finite(gap, evaluation):
    ours = make_inputs(10_000 if evaluation == "loop" else 2_000, gap=gap)
    states = EVALUATIONS[evaluation](*ours)
    states.sum().backward()
    assert states.isfinite().all()
    assert all(x.grad.isfinite().all() for x in ours if x.requires_grad)


# Responses to ramps


def make_ramps(n_times, seed=0, n_cases=2, n_channels=2, n_modes=4):
    """Rates and frequencies (P,), gaps (T, N) and values (T, N, C)."""
    generator = torch.Generator().manual_seed(seed)
    rates = torch.tensor([0.1, 1.0, 1.0, 5.0])[:n_modes]
    frequencies = torch.tensor([0.0, 0.0, 3.0, -20.0])[:n_modes]
    gaps = torch.rand(n_times, n_cases, generator=generator)
    values = torch.randn(n_times, n_cases, n_channels, generator=generator)
    return rates, frequencies, gaps, values


def ramp_reference(rates, frequencies, gaps, values):
    """Each piece of the integral of exp(lambda (t - s)) x'(s), in closed form, summed in full."""
    exponent = torch.complex(-rates, frequencies).view(-1, 1)
    answer = torch.zeros(*values.shape[:2], 2, values.shape[2], len(rates), dtype=torch.complex128)
    for case in range(values.shape[1]):
        times = torch.cat([torch.zeros(1), gaps[1:, case].cumsum(0)])
        for direction, x, t in ((0, values[:, case], times), (1, values[:, case].flip(0), None)):
            t = -times.flip(0) if t is None else t
            length = t.diff()
            change = x.diff(dim=0)
            # The mean of exp(lambda (end - s)) over a piece; 1 for a jump.
            z = exponent * length
            mean = torch.where(z == 0, 1.0, torch.expm1(z) / torch.where(z == 0, 1.0, z))
            for k in range(len(t)):
                carried = (exponent * (t[k] - t[1 : k + 1])).exp() * mean[:, :k]  # (P, pieces)
                row = len(t) - 1 - k if direction else k
                answer[row, case, direction] = change[:k].t().to(carried.dtype) @ carried.t()
    return torch.view_as_real(answer)


def chunked_ramp_response(rates, frequencies, gaps, values):
    """What other devices and exported programs compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        return ramp_response(rates, frequencies, gaps, values)


RAMPS = {"loop": ramp_response, "chunks": chunked_ramp_response}


@pytest.mark.parametrize("evaluation", RAMPS)
@pytest.mark.parametrize("n_times", [1, 2, 31, 33, 70])
def test_ramp_response_equals_the_integral(n_times, evaluation):
    inputs = make_ramps(n_times)
    actual = RAMPS[evaluation](*inputs)
    assert actual.shape == (n_times, 2, 2, 2, 4, 2)
    torch.testing.assert_close(actual, ramp_reference(*inputs), atol=1e-11, rtol=1e-9)


def test_ramp_response_equals_a_dense_solution_of_the_ode():
    """D' = lambda D + x' by Runge-Kutta, in steps that end at the rows, in both directions."""
    rates, frequencies, gaps, values = make_ramps(8)
    exponent = torch.complex(-rates, frequencies)
    answer = torch.view_as_complex(ramp_response(rates, frequencies, gaps, values))
    for direction in (0, 1):
        rows = list(range(8)) if direction == 0 else list(range(7, -1, -1))
        state = torch.zeros(2, 2, 4, dtype=torch.complex128)  # (N, C, P)
        torch.testing.assert_close(answer[rows[0], :, direction], state)
        for before, row in zip(rows, rows[1:], strict=False):
            gap = gaps[max(before, row)].view(-1, 1, 1)
            slope = (values[row] - values[before]).unsqueeze(-1) / gap
            for _ in range(400):
                k1 = exponent * state + slope
                k2 = exponent * (state + gap / 800 * k1) + slope
                k3 = exponent * (state + gap / 800 * k2) + slope
                k4 = exponent * (state + gap / 400 * k3) + slope
                state = state + gap / 2400 * (k1 + 2 * k2 + 2 * k3 + k4)
            torch.testing.assert_close(answer[row, :, direction], state, atol=1e-8, rtol=0)


@pytest.mark.parametrize("evaluation", RAMPS)
def test_ramp_response_adds_jumps_at_equal_times(evaluation):
    rates, frequencies, gaps, values = make_ramps(40)
    gaps[7:12] = gaps[30] = 0.0
    actual = RAMPS[evaluation](rates, frequencies, gaps, values)
    expected = ramp_reference(rates, frequencies, gaps, values)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    jump = torch.view_as_complex(actual[7, :, 0] - actual[6, :, 0])
    change = (values[7] - values[6]).unsqueeze(-1).expand(-1, -1, 4).to(jump.dtype)
    torch.testing.assert_close(jump, change, atol=1e-6, rtol=0)


@pytest.mark.parametrize("evaluation", RAMPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [1e-12, 1e-6, 1e-3])
def test_ramp_response_of_tiny_gaps(gap, dtype, evaluation):
    """A ramp of size 1 in many tiny steps, during which the modes hardly decay."""
    rates, frequencies, *_ = make_ramps(1)
    values = torch.linspace(0, 1, 50, dtype=dtype).view(-1, 1, 1)
    gaps = torch.full((50, 1), gap, dtype=dtype)
    actual = RAMPS[evaluation](rates.to(dtype), frequencies.to(dtype), gaps, values)
    expected = ramp_reference(rates, frequencies, gaps.double(), values.double())
    rounding = 1e-5 if dtype == torch.float32 else 1e-6  # jumps shorter than 1e-9 / rate
    torch.testing.assert_close(actual.double(), expected, atol=rounding, rtol=0)


@pytest.mark.parametrize("evaluation", RAMPS)
def test_ramp_response_ignores_padding(evaluation):
    """Rows that repeat the last time and value add nothing, in either direction."""
    rates, frequencies, gaps, values = make_ramps(20)
    gaps[0] = 0.0
    padded_gaps = torch.cat([gaps, torch.zeros(15, 2)])
    padded_values = torch.cat([values, values[-1:].expand(15, -1, -1)])
    short = RAMPS[evaluation](rates, frequencies, gaps, values)
    long = RAMPS[evaluation](rates, frequencies, padded_gaps, padded_values)
    torch.testing.assert_close(long[:20], short, atol=1e-12, rtol=0)
    torch.testing.assert_close(long[20:, :, 0], short[19:, :, 0].expand_as(long[20:, :, 0]))
    assert (long[20:, :, 1] == 0).all()


def test_ramp_response_is_zero_for_constants():
    rates, frequencies, gaps, values = make_ramps(20)
    constant = values[:1].expand_as(values)
    assert (ramp_response(rates, frequencies, gaps, constant) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rotation_minus_one_is_accurate_for_small_and_large_exponents(dtype):
    rates = torch.tensor([1e-3, 1.0, 7.0], dtype=dtype)
    frequencies = torch.tensor([0.0, -2.0, 40.0], dtype=dtype)
    gaps = torch.logspace(-10, 1, 60).to(dtype)
    actual = torch.complex(*rotation_minus_one(rates, frequencies, gaps)).to(torch.complex128)
    z = torch.complex(-rates.double(), frequencies.double()) * gaps.double().unsqueeze(1)
    expected = torch.from_numpy(np.expm1(z.numpy()))
    error = (actual - expected).abs() / expected.abs()
    # Rounding of the angle, of up to 400 radians, is not the function's.
    assert (error < 8 * torch.finfo(dtype).eps * (1 + z.abs())).all()
    # The naive difference loses most digits.
    naive = (z.exp() - 1 - expected).abs() / expected.abs()
    assert naive.max() > 1e-9
