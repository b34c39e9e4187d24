"""The recurrence with its own backward pass, against the plain loop that autograd records."""

from functools import partial

import pytest
import torch

from latent_morph import recurrence
from latent_morph.recurrence import rotating_recurrence

pytestmark = pytest.mark.usefixtures("float64")


def reference(cos, sin, u, v):
    re, im = [u[0]], [v[0]]
    for k in range(1, len(u)):
        before = re[-1], im[-1]
        re.append(cos[k] * before[0] - sin[k] * before[1] + u[k])
        im.append(sin[k] * before[0] + cos[k] * before[1] + v[k])
    return torch.stack(re), torch.stack(im)


def reversed_reference(cos, sin, u, v):
    """In reverse order, where the step into row k of the reversed series is its next one's."""
    flipped = [torch.cat([turn[:1], turn[1:].flip(0)]) for turn in (cos, sin)]
    re, im = reference(*flipped, u.flip(0), v.flip(0))
    return re.flip(0), im.flip(0)


DIRECTIONS = {
    "loop": (rotating_recurrence, reference),
    "loop backwards": (partial(rotating_recurrence, backwards=True), reversed_reference),
    "scan": (recurrence._scan, reference),
    "scan backwards": (recurrence._scan_backwards, reversed_reference),
}


def inputs(steps, *, gap=None):
    generator = torch.Generator().manual_seed(0)
    shape = (steps, 3, 4)
    gaps = (
        torch.rand(steps, 3, 1, generator=generator)
        if gap is None
        else torch.full((steps, 3, 1), gap)
    )
    decay, turn = (-gaps * torch.arange(1, 5)).exp(), gaps * torch.arange(4.0)
    u, v = torch.randn(2, *shape, generator=generator)
    return [x.detach().requires_grad_() for x in (decay * turn.cos(), decay * turn.sin(), u, v)]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_equals_the_step_by_step_reference_and_so_does_its_gradient(steps, direction):
    evaluate, expected = DIRECTIONS[direction]
    ours, theirs = inputs(steps), inputs(steps)
    weights = torch.randn(2, steps, 3, 4, generator=torch.Generator().manual_seed(1))
    found, wanted = evaluate(*ours), expected(*theirs)
    for left, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-12, rtol=1e-12)
    sum((w * x).sum() for w, x in zip(weights, found, strict=True)).backward()
    sum((w * x).sum() for w, x in zip(weights, wanted, strict=True)).backward()
    for left, right in zip(ours, theirs, strict=True):
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (left, right)]
        torch.testing.assert_close(*grads, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("backwards", [False, True])
def test_gradcheck(backwards):
    evaluate = partial(rotating_recurrence, backwards=backwards)
    assert torch.autograd.gradcheck(evaluate, inputs(4))


@pytest.mark.parametrize("gap", [1e-6, 1e6])
def test_long_series_and_extreme_gaps_stay_finite(gap):
    states = rotating_recurrence(*inputs(10_000, gap=gap))
    assert all(torch.isfinite(half).all() for half in states)
