"""Coupling blocks by hand: the same map, and the derivatives that autograd would find."""

import gc
import weakref

import pytest
import torch
from helpers import states, stirred
from torch.autograd import forward_ad

from latent_morph.bijections import CouplingINN, coupling, make_inn
from latent_morph.nn import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("float64")

WAYS = pytest.mark.parametrize("inverse", [False, True], ids=["forwards", "backwards"])
SIZES = pytest.mark.parametrize("dim", [2, 3, 6])


def network(dim: int, **options) -> CouplingINN:
    return stirred(make_inn(dim, blocks=3, width=8, seed=0, **options))


def mapped(warp: CouplingINN, x: torch.Tensor, *, inverse: bool) -> torch.Tensor:
    return warp.inverse(x) if inverse else warp(x)


def by_hand_nodes(image: torch.Tensor) -> list:
    """Those in the graph behind `image`."""
    nodes = [image.grad_fn]
    for node in nodes:
        nodes += [before for before, _ in node.next_functions if before is not None]
    return [node for node in nodes if hasattr(node, "gradients")]


@pytest.fixture
def plainly(monkeypatch):
    """A call under which networks use ordinary operations."""

    def call(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            for module in ("by_hand", "bijections.coupling"):
                patch.setattr(f"latent_morph.{module}.wants_plain", lambda: True)
            return function(*args, **kwargs)

    return call


@WAYS
@SIZES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_same_values_and_gradients(plainly, activation, dim, inverse):
    warp, weight = network(dim, activation=activation), states(40, dim=dim, seed=1)
    found = []
    for call in (plainly, lambda function, *args, **kwargs: function(*args, **kwargs)):
        x = states(40, dim=dim).requires_grad_()
        y = call(mapped, warp, x, inverse=inverse)
        gradients = torch.autograd.grad((weight * y).sum(), [x, *warp.parameters()])
        found.append([y, *gradients])
    assert by_hand_nodes(y)
    for plain, by_hand in zip(*found, strict=True):
        torch.testing.assert_close(by_hand, plain, atol=1e-12, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(mapped(warp, x, inverse=inverse), y, atol=1e-13, rtol=1e-13)


@WAYS
def test_gradients_by_finite_differences(inverse):
    warp, x = network(3), states(4).requires_grad_()
    names = [name for name, _ in warp.named_parameters()]

    def image(x, *weights):
        swapped = dict(zip(names, weights, strict=True))
        call = {"inverse": inverse}
        return torch.func.functional_call(_Way(warp), _within(swapped), (x,), call)

    weights = [weight.detach().clone().requires_grad_() for weight in warp.parameters()]
    torch.autograd.gradcheck(image, (x, *weights), check_forward_ad=True)
    torch.autograd.gradgradcheck(image, (x, *weights))


class _Way(torch.nn.Module):
    """Lets `functional_call` choose the direction."""

    def __init__(self, warp: CouplingINN) -> None:
        super().__init__()
        self.warp = warp

    def forward(self, x, *, inverse):
        return mapped(self.warp, x, inverse=inverse)


def _within(weights):
    return {f"warp.{name}": weight for name, weight in weights.items()}


@WAYS
def test_weights_that_were_swapped_are_the_ones_that_count(inverse):
    warp, x = network(4), states(5, dim=4)
    other = {name: 1.1 * weight.detach() for name, weight in warp.named_parameters()}
    way = _Way(warp)
    swapped = torch.func.functional_call(way, _within(other), (x,), {"inverse": inverse})
    warp.load_state_dict(other, strict=False)
    torch.testing.assert_close(swapped, mapped(warp, x, inverse=inverse), atol=0, rtol=0)


@WAYS
def test_transforms_of_functions_work(inverse):
    warp, x = network(3), states(5)

    def image(x):
        return mapped(warp, x, inverse=inverse)

    together = torch.func.vmap(torch.func.jacrev(image))(x)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(image))(x), together)
    with forward_ad.dual_level():
        tangent = torch.ones_like(x)
        moved = forward_ad.unpack_dual(image(forward_ad.make_dual(x, tangent))).tangent
    torch.testing.assert_close(moved, together.sum(-1))


@WAYS
def test_going_back_twice_finds_the_same(inverse):
    warp, x = network(4), states(6, dim=4)
    loss = mapped(warp, x, inverse=inverse).square().sum()
    first = torch.autograd.grad(loss, list(warp.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(warp.parameters()))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_weights_changed_before_going_back_are_refused():
    warp = network(4)
    loss = warp(states(6, dim=4)).sum()
    with torch.no_grad():
        next(warp.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_what_is_kept_for_going_back_is_freed_by_going_back():
    warp, kept = network(4), []

    def pack(tensor):
        kept.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        image = warp(states(6, dim=4))
    assert len(kept) > 6 * len(warp.blocks)  # hooks, which checkpoints are made of, see all of it
    image.sum().backward()
    image = image.detach()
    gc.collect()
    alive = sum(storage() is not None for storage in kept)
    assert alive <= len(list(warp.parameters()))


@WAYS
def test_several_gradients_at_once(inverse):
    warp, x = network(3), states()

    def image(x):
        return mapped(warp, x, inverse=inverse)

    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(image, x, vectorize=True), jacobian(image, x))


@WAYS
def test_tangents_without_gradients(inverse):
    warp, x = network(3), states(5)
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(mapped(warp, dual, inverse=inverse)).tangent
    expected = torch.func.jvp(
        lambda x: mapped(warp, x, inverse=inverse), (x,), (torch.ones_like(x),)
    )
    torch.testing.assert_close(tangent, expected[1])


@WAYS
def test_mixed_precision(inverse):
    warp, x = network(4).float(), states(6, dim=4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        image = mapped(warp, x, inverse=inverse)
    image.float().sum().backward()
    torch.testing.assert_close(image.float(), mapped(warp, x, inverse=inverse), atol=0.1, rtol=0.1)
    assert all(weight.grad.isfinite().all() for weight in warp.parameters())


@WAYS
def test_points_made_where_nothing_is_recorded(inverse):
    warp = network(4)
    with torch.inference_mode():
        x = states(6, dim=4) + 0
    image = mapped(warp, x, inverse=inverse)
    image.sum().backward()
    torch.testing.assert_close(image, mapped(warp, x.clone(), inverse=inverse))


def test_frozen_networks_keep_nothing():
    warp = network(4).requires_grad_(False)
    image = warp(states(6, dim=4))
    assert image.grad_fn is None
    x = states(6, dim=4).requires_grad_()
    gradient = torch.autograd.grad(warp(x).square().sum(), x)[0]
    warp.requires_grad_(True)
    torch.testing.assert_close(gradient, torch.autograd.grad(warp(x).square().sum(), x)[0])


@WAYS
def test_orders_that_were_swapped_are_the_ones_that_count(inverse):
    warp, x = network(6), states(5, dim=6).requires_grad_()
    other = stirred(make_inn(6, blocks=3, width=8, seed=5))
    assert not torch.equal(other.enter, warp.enter)
    way = _Way(warp)
    state = _within(other.state_dict())
    swapped = torch.func.functional_call(way, state, (x,), {"inverse": inverse})
    expected = mapped(other, x, inverse=inverse)
    torch.testing.assert_close(swapped, expected)
    torch.testing.assert_close(
        torch.autograd.grad(swapped.square().sum(), x),
        torch.autograd.grad(expected.square().sum(), x),
    )


def test_networks_of_other_kinds_use_ordinary_operations():
    for options in ({"coupling": "rnvp"}, {"depth": 2}):
        assert not by_hand_nodes(network(4, **options)(states(6, dim=4)))
    assert set(coupling._DERIVATIVES) == set(coupling._FUNCTIONS) == set(ACTIVATIONS)


@pytest.mark.parametrize("options", [{}, {"coupling": "rnvp"}, {"depth": 2}], ids=str)
def test_weights_that_blocks_had_to_themselves_still_load(options):
    """Until version 2 of model files: `blocks.0.subnet1.0.weight` and so on."""
    warp, x = network(4, **options), states(6, dim=4)
    sides = coupling_names(options.get("coupling", "glow"))
    old = {"enter": warp.enter, "leave": warp.leave}
    for mover, names in zip(warp.movers, sides, strict=True):
        for subnet, name in zip(mover, names, strict=True):
            for k, layer in enumerate(subnet):
                for kind in ("weight", "bias"):
                    for block, part in enumerate(getattr(layer, kind).detach()):
                        old[f"blocks.{block}.{name}.{2 * k}.{kind}"] = part
    other = make_inn(4, blocks=3, width=8, seed=1, **options)
    other.load_state_dict(old)
    assert torch.equal(other(x), warp(x)) and torch.equal(other.inverse(x), warp.inverse(x))


def coupling_names(kind: str) -> list[list[str]]:
    """FrEIA's, of what moves the first half and of what moves the second."""
    letters = [""] if kind == "glow" else ["_s", "_t"]
    return [[f"subnet{letter}{number}" for letter in letters] for number in (2, 1)]
