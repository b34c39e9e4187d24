"""The laws of `Bijection`, for every bijection there is."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from helpers import ALL_BIJECTIONS, states, stirred

from latent_morph.bijections import Anchored, Bijection, Composed, CouplingINN, make_inn

pytestmark = pytest.mark.usefixtures("float64")

EVERY = pytest.mark.parametrize("name", ALL_BIJECTIONS)
SIZES = pytest.mark.parametrize("dim", [1, 2, 3, 6])


def trained(bijection: Bijection, steps: int = 40) -> Bijection:
    """A few steps of real training towards a map that is far from the identity."""
    bijection = bijection.double()
    x = states(64, dim=bijection.dim)
    optimiser = torch.optim.Adam(bijection.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = (bijection(x) - (x + x.flip(-1).sin())).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return bijection


@EVERY
@SIZES
def test_inverse_after_training(name, dim):
    warp, x = trained(ALL_BIJECTIONS[name](dim)), states(100, dim=dim, seed=5)
    assert (warp(x) - x).abs().max() > 1e-2  # it learned something
    torch.testing.assert_close(warp.inverse(warp(x)), x, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(warp(warp.inverse(x)), x, atol=1e-10, rtol=1e-10)


@EVERY
@SIZES
def test_leading_axes(name, dim):
    warp, x = stirred(ALL_BIJECTIONS[name](dim)), states(2, 3, dim=dim)
    rows = torch.stack([torch.stack([warp(x[i, j]) for j in range(3)]) for i in range(2)])
    torch.testing.assert_close(warp(x), rows)
    assert warp.inverse(x[:, :0]).shape == (2, 0, dim)


@pytest.mark.parametrize("preset", ["compact", "paper"])
@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_starts_as_the_identity(preset, dim):
    x = states(5, dim=dim)
    warp = make_inn(dim, preset, width=16).double()
    torch.testing.assert_close(warp(x), x, atol=1e-12, rtol=0)


@EVERY
def test_every_coordinate_moves_every_other(name):
    if name == "deep":
        return  # two blocks are too few to mix six coordinates fully
    warp = stirred(ALL_BIJECTIONS[name](6))
    jacobian = torch.func.jacrev(warp)(states(dim=6))
    assert (jacobian.abs() > 1e-12).all()


@EVERY
@SIZES
def test_pickle_and_copy(name, dim):
    warp, x = stirred(ALL_BIJECTIONS[name](dim)), states(4, dim=dim)
    assert torch.equal(pickle.loads(pickle.dumps(warp))(x), warp(x))
    assert torch.equal(copy.deepcopy(warp)(x), warp(x))


def test_seed_leaves_every_random_state_alone():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    first, second, other = (make_inn(6, seed=s).state_dict() for s in (3, 3, 4))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    after = torch.random.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all() and before[2] == after[2]


@pytest.mark.parametrize("preset", ["compact", "paper"])
@pytest.mark.parametrize("dim", [2, 5])
def test_agrees_with_freias_own_evaluation(preset, dim):
    warp = stirred(make_inn(dim, preset, width=16, seed=0))
    rows = expected = states(7, dim=dim)
    for block, order in zip(warp.blocks, warp.enter, strict=True):
        (expected,), _ = block([expected[:, order]])
    torch.testing.assert_close(warp(rows), expected[:, warp.leave], atol=1e-13, rtol=1e-13)


def test_many_points_without_gradients_are_the_same_points():
    warp, x = stirred(make_inn(3, width=256, seed=0)), states(2, 1500)
    assert warp.piece(x.dtype) < 3000  # so they pass in pieces
    with torch.inference_mode():
        image = warp(x)
    torch.testing.assert_close(image, warp(x).detach(), atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(warp.inverse(image.clone()).detach(), x, atol=1e-10, rtol=1e-10)


def test_paper_preset_has_the_papers_sizes():
    warp = make_inn(4, "paper")
    assert isinstance(warp, CouplingINN) and len(warp.blocks) == 5
    assert {type(block).__name__ for block in warp.blocks} == {"RNVPCouplingBlock"}
    assert {layer.weight.shape for layer in warp.movers[0][0]} == {(5, 1500, 2), (5, 2, 1500)}


def test_anchored_sends_the_origin_to_the_goal():
    goal = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for seed in range(20):
        warp = stirred(Anchored(make_inn(3, seed=seed), goal))
        image = warp(torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(image, goal, atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: make_inn(0), ValueError, "dim must be at least 1, got 0"),
        (lambda: make_inn(3, "papr"), ValueError, "preset must be one of .*did you mean 'paper'"),
        (lambda: make_inn(3, coupling="x"), ValueError, "coupling must be one of glow, rnvp"),
        (lambda: make_inn(3, blocks=0), ValueError, "blocks must be at least 1, got 0"),
        (lambda: make_inn(3, width=0), ValueError, "width must be at least 1, got 0"),
        (lambda: make_inn(3, activation="sin"), ValueError, "activation must be one of silu"),
        (lambda: make_inn(3, clamp=-1.0), ValueError, "clamp must be positive"),
        (lambda: Composed(), ValueError, "at least one bijection"),
        (lambda: Composed(make_inn(2), make_inn(3)), ValueError, r"agree in dim, got \[2, 3\]"),
        (lambda: Anchored(make_inn(2), torch.zeros(3)), ValueError, "goal must have a last axis"),
        (lambda: make_inn(3)(torch.zeros(2)), ValueError, "x must have a last axis of size 3"),
        (lambda: make_inn(3).inverse(torch.zeros(3).long()), TypeError, "y must be real floating"),
    ],
)
def test_bad_arguments(build, error, words):
    with pytest.raises(error, match=words):
        build()
