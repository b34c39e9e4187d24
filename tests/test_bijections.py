"""The laws of `Bijection`, for every bijection."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch
from helpers import ALL_BIJECTIONS, perturb, states

from latent_morph.bijections import (
    FREIA_COUPLINGS,
    Anchored,
    Bijection,
    Composed,
    FreiaINN,
    make_inn,
)

pytestmark = pytest.mark.usefixtures("float64")

EVERY = pytest.mark.parametrize("name", ALL_BIJECTIONS)
SIZES = pytest.mark.parametrize("dim", [1, 2, 3, 6])


def train_briefly(bijection: Bijection, steps: int = 40) -> Bijection:
    """Trains the bijection for a few steps towards a map that is far from the identity."""
    bijection = bijection.double()
    x = states(64, dim=bijection.dim)
    optimizer = torch.optim.Adam(bijection.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = (bijection(x) - (x + x.flip(-1).sin())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return bijection


@EVERY
@SIZES
def test_bijection_inverse_after_training(name, dim):
    warp, x = train_briefly(ALL_BIJECTIONS[name](dim)), states(100, dim=dim, seed=5)
    assert (warp(x) - x).abs().max() > 1e-2  # it learned something
    torch.testing.assert_close(warp.inverse(warp(x)), x, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(warp(warp.inverse(x)), x, atol=1e-10, rtol=1e-10)


@EVERY
@SIZES
def test_bijection_leading_axes(name, dim):
    warp, x = perturb(ALL_BIJECTIONS[name](dim)), states(2, 3, dim=dim)
    rows = torch.stack([torch.stack([warp(x[i, j]) for j in range(3)]) for i in range(2)])
    torch.testing.assert_close(warp(x), rows)
    assert warp.inverse(x[:, :0]).shape == (2, 0, dim)


@pytest.mark.parametrize("preset", ["compact", "paper", *FREIA_COUPLINGS])
@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_make_inn_starts_as_identity(preset, dim):
    x = states(5, dim=dim)
    image = make_inn(dim, preset, width=16).double()(x)
    if preset == "all-in-one":  # which starts as a permutation
        image, x = image.sort(dim=-1).values, x.sort(dim=-1).values
    torch.testing.assert_close(image, x, atol=1e-12, rtol=0)


@EVERY
def test_bijection_mixes_all_coordinates(name):
    if name in ("deep", "all-in-one"):
        return  # these are too few blocks to mix six coordinates fully
    warp = perturb(ALL_BIJECTIONS[name](6))
    jacobian = torch.func.jacrev(warp)(states(dim=6))
    assert (jacobian.abs() > 1e-12).all()


@EVERY
@SIZES
def test_bijection_pickle_and_deepcopy(name, dim):
    warp, x = perturb(ALL_BIJECTIONS[name](dim)), states(4, dim=dim)
    if dim == 1 or name not in ("nice", "all-in-one"):  # in which FrEIA has lambdas
        assert torch.equal(pickle.loads(pickle.dumps(warp))(x), warp(x))
    assert torch.equal(copy.deepcopy(warp)(x), warp(x))


def test_make_inn_seed_keeps_rng_states():
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    for preset in ("compact", *FREIA_COUPLINGS):
        first, second, other = (make_inn(6, preset, seed=s).state_dict() for s in (3, 3, 4))
        assert all(torch.equal(first[key], second[key]) for key in first)
        assert not all(torch.equal(first[key], other[key]) for key in first)
    after = torch.random.get_rng_state(), np.random.get_state()[1], random.getstate()
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all() and before[2] == after[2]


@pytest.mark.parametrize("coupling", FREIA_COUPLINGS)
@pytest.mark.parametrize("dim", [2, 5])
def test_freia_inn_runs_freia_modules(coupling, dim):
    inn = perturb(make_inn(dim, coupling, seed=0))
    assert isinstance(inn, FreiaINN)
    calls = []
    for block in inn.blocks:
        assert type(block).__module__.startswith("FrEIA.")
        block.register_forward_hook(lambda *_: calls.append(1))
    rows = expected = states(7, dim=dim)
    for block, order in zip(inn.blocks, inn.enter, strict=True):
        (expected,), _ = block([expected[:, order]])
    calls.clear()
    torch.testing.assert_close(inn(rows), expected[:, inn.leave], atol=1e-13, rtol=1e-13)
    assert len(calls) == len(inn.blocks)


def test_make_inn_paper_preset_sizes():
    inn = make_inn(4, "paper")
    assert isinstance(inn, FreiaINN) and len(inn.blocks) == 5
    assert {type(block).__name__ for block in inn.blocks} == {"RNVPCouplingBlock"}
    layers = [part for part in inn.modules() if isinstance(part, torch.nn.Linear)]
    assert {layer.weight.shape for layer in layers} == {(1500, 2), (2, 1500)}


def test_anchored_maps_origin_to_goal():
    goal = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for seed in range(20):
        warp = perturb(Anchored(make_inn(3, seed=seed), goal))
        image = warp(torch.zeros(3, dtype=torch.float64))
        torch.testing.assert_close(image, goal, atol=1e-15, rtol=0)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: make_inn(0), ValueError, "dim must be at least 1, got 0"),
        (lambda: make_inn(3, "papr"), ValueError, "preset must be one of .*did you mean 'paper'"),
        (lambda: make_inn(3, coupling="x"), ValueError, "coupling must be one of affine, rnvp"),
        (lambda: make_inn(3, blocks=0), ValueError, "blocks must be at least 1, got 0"),
        (lambda: make_inn(3, width=0), ValueError, "width must be at least 1, got 0"),
        (lambda: make_inn(3, activation="sin"), ValueError, "activation must be one of silu"),
        (lambda: make_inn(3, clamp=-1.0), ValueError, "clamp must be positive"),
        (lambda: Composed(), ValueError, "at least one bijection"),
        (lambda: Composed(make_inn(2), make_inn(3)), ValueError, r"the same dim, got \[2, 3\]"),
        (lambda: Anchored(make_inn(2), torch.zeros(3)), ValueError, "goal must have a last axis"),
        (lambda: make_inn(3)(torch.zeros(2)), ValueError, "x must have a last axis of size 3"),
        (lambda: make_inn(3).inverse(torch.zeros(3).long()), TypeError, "y must be real floating"),
    ],
)
def test_bijection_rejects_invalid_arguments(build, error, message):
    with pytest.raises(error, match=message):
        build()
