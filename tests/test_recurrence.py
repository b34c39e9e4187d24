"""The recurrence with its own backward pass, against the plain loop that autograd records."""

import pytest
import torch

from latent_morph.recurrence import chunked_recurrence, linear_recurrence

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
