"""Coupling blocks by hand: the same map, and the derivatives that autograd would find."""

import gc
import weakref

import pytest
import torch
from helpers import states, stirred
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from latent_morph.bijections import Anchored, CouplingINN, coupling, make_inn
from latent_morph.flows import FLOWS, LinearFlow, MorphFlow
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
    return [node for node in nodes if type(node).__name__ == "_RecordedBackward"]


@pytest.fixture
def plainly(monkeypatch):
    """A call under which networks use ordinary operations."""

    def call(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            for module in ("by_hand", "bijections.inn"):
                patch.setattr(f"latent_morph.{module}.wants_plain", lambda: True)
            return function(*args, **kwargs)

    return call


@WAYS
@SIZES
@pytest.mark.parametrize("n_points", [1, 9, 600])  # few of them go backwards in another way
def test_the_same_values_and_gradients(plainly, n_points, dim, inverse):
    warp, weight = network(dim), states(n_points, dim=dim, seed=1)
    found = []
    for call in (plainly, lambda function, *args, **kwargs: function(*args, **kwargs)):
        x = states(n_points, dim=dim).requires_grad_()
        y = call(mapped, warp, x, inverse=inverse)
        gradients = torch.autograd.grad((weight * y).sum(), [x, *warp.parameters()])
        found.append([y, *gradients])
    assert by_hand_nodes(y)
    for plain, by_hand in zip(*found, strict=True):
        torch.testing.assert_close(by_hand, plain, atol=1e-12, rtol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(mapped(warp, x, inverse=inverse), y, atol=1e-13, rtol=1e-13)


def test_few_points_beyond_all_numbers(plainly):
    """As torch has it, and without the warnings that NumPy would give."""
    warp, y = network(3), torch.full((3, 3), float("inf")).double()
    y[0], y[1] = 1e308, float("nan")
    with torch.no_grad():
        found, expected = warp.inverse(y), plainly(warp.inverse, y)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("goal", [None, [1.0, -2.0, 0.5]])
@pytest.mark.parametrize("n_points", [7, 600])
def test_conjugation_is_there_through_and_back(n_points, goal):
    """As one function by hand, with its gradients, and step by step."""
    warp, base = network(3), stirred(LinearFlow(3, stable=True))
    if goal is not None:
        warp = Anchored(warp, torch.tensor(goal, dtype=torch.float64))
    times = torch.linspace(0, 1, 4).double()
    inputs = [*warp.parameters(), *base.parameters()]
    y = states(n_points).mT.requires_grad_()
    found = []
    for path in (
        warp.conjugated(y, base.after(times)),
        warp.conjugated(y, lambda x: base.after(times)(x)),
        warp(base.after(times)(warp.inverse(y.mT).mT).mT).mT,
    ):
        gradients = torch.autograd.grad(path.square().sum(), [y, *inputs])
        found.append([path, *gradients])
    assert len(by_hand_nodes(warp.conjugated(y, base.after(times)))) == 1
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one, two, atol=1e-11, rtol=1e-10)
    with torch.no_grad():
        path = warp.conjugated(y, base.after(times))
        torch.testing.assert_close(path, found[0][0], atol=1e-12, rtol=1e-12)


def test_conjugation_has_higher_derivatives():
    warp = Anchored(stirred(make_inn(2, blocks=2, width=3, seed=0)), torch.ones(2).double())
    inner = stirred(LinearFlow(2)).after(torch.linspace(0, 1, 3).double())
    y = states(2, dim=2).mT.requires_grad_()
    torch.autograd.gradgradcheck(lambda y: warp.conjugated(y, inner), y)
    torch.autograd.gradcheck(lambda y: warp.conjugated(y, inner), y, check_forward_ad=True)


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
@torch.no_grad()  # with gradients rounding is another
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


@WAYS
@pytest.mark.parametrize("options", [{}, {"coupling": "rnvp"}], ids=str)
def test_orders_that_were_loaded_after_use_are_the_ones_that_count(options, inverse):
    warp, x = network(6, **options), states(5, dim=6)
    mapped(warp, x, inverse=inverse)
    other = stirred(make_inn(6, blocks=3, width=8, seed=5, **options))
    assert not torch.equal(other.enter, warp.enter)
    warp.load_state_dict(other.state_dict())
    torch.testing.assert_close(
        mapped(warp, x, inverse=inverse), mapped(other, x, inverse=inverse), atol=0, rtol=0
    )


@WAYS
@pytest.mark.parametrize("options", [{}, {"coupling": "rnvp"}], ids=str)
def test_networks_learn_after_a_use_where_nothing_was_recorded(options, inverse):
    warp, x = network(4, **options), states(6, dim=4)
    with torch.inference_mode():
        before = mapped(warp, x, inverse=inverse)
    image = mapped(warp, x, inverse=inverse)
    image.sum().backward()
    torch.testing.assert_close(image, before.clone())


def test_the_unit_that_carries_the_bias_gives_one():
    bias = torch.tensor(coupling._BIAS_OF_ONE)
    for dtype, error in ((torch.float64, 1e-15), (torch.float32, 2e-7)):
        found = coupling._FUNCTIONS[coupling.BY_HAND](bias.to(dtype))
        assert abs(float(found) - 1) < error


def test_networks_of_other_kinds_use_ordinary_operations():
    others = [{"activation": name} for name in ACTIVATIONS if name != coupling.BY_HAND]
    for options in ({"coupling": "rnvp"}, {"depth": 2}, *others):
        assert not by_hand_nodes(network(4, **options)(states(6, dim=4)))
    assert set(coupling._FUNCTIONS) == set(ACTIVATIONS)


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


def morph(**options) -> MorphFlow:
    return stirred(FLOWS["morph"](3, inn={"blocks": 2, "width": 8}, seed=0, **options))


def gradients(flow: MorphFlow, path: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(path.square().sum(), list(flow.parameters())))


def test_times_and_starts_may_be_overwritten_before_going_back():
    for flow in (morph(), stirred(LinearFlow(3))):
        z, times = states(4), torch.linspace(0, 1, 5).double()
        expected = gradients(flow, flow(z, times))
        path = flow(z, times)
        times.mul_(3), z.zero_()
        for one, other in zip(gradients(flow, path), expected, strict=True):
            assert torch.equal(one, other)


def test_a_path_may_be_filled_step_by_step():
    for flow in (morph(), stirred(LinearFlow(3))):
        path = torch.zeros(4, 3).double()
        path[0] = states()
        for k in range(3):
            path[k + 1] = flow(path[k], torch.tensor([0.1]).double())[0]
        whole = flow(states(), torch.tensor([0.0, 0.1, 0.2, 0.3]).double())
        for one, other in zip(gradients(flow, path), gradients(flow, whole), strict=True):
            torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("goal", [None, [1.0, -2.0, 0.5]])
def test_nothing_wanted_has_gradients_of_zero(goal):
    flow = morph(goal=goal)
    times, nothing = torch.linspace(0, 1, 5).double(), torch.zeros(4, 5, dtype=torch.bool)
    for found in gradients(flow, flow(states(4), times, wanted=nothing)):
        assert not found.any()


class _Kind(torch.Tensor):
    """A user's own kind of tensor."""


@pytest.mark.parametrize("kind", ["subclass", "parameter", "negative"])
def test_unusual_tensors(kind):
    flow, times = morph(), torch.linspace(0, 1, 5).double()
    z = states(4)
    given = {
        "subclass": lambda: z.as_subclass(_Kind),
        "parameter": lambda: torch.nn.Parameter(z),
        "negative": lambda: torch.complex(z, -z).conj().imag,  # the sign is a note beside them
    }[kind]()
    expected = gradients(flow, flow(z, times))
    for one, other in zip(gradients(flow, flow(given, times)), expected, strict=True):
        torch.testing.assert_close(one.as_subclass(torch.Tensor), other)
    columns = torch.nn.Parameter(z.mT.clone()) if kind == "parameter" else given.mT
    path = flow.warp.conjugated(columns, flow.base.after(times))
    path.backward(torch.complex(path.detach(), -path.detach()).conj().imag)


def test_modes_that_watch_operations_see_ordinary_ones():
    flow, z, times = morph(), states(4), torch.linspace(0, 1, 5).double()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert flow.warp(mode.from_tensor(z)).shape == (4, 3)
    with torch.no_grad():
        recorded = make_fx(lambda x: flow.warp.inverse(x))(z)
        torch.testing.assert_close(recorded(z + 1), flow.warp.inverse(z + 1))
    assert flow(z, times).isfinite().all()
    shadow = morph().to("meta").warp
    for _ in range(2):
        assert shadow(z.to("meta")).shape == (4, 3)


@pytest.mark.parametrize("n_points", [5, 600])
def test_weights_that_were_overwritten_unseen_do_not_count_on_the_way_back(n_points):
    """As with averages of weights that are swapped in through `.data`."""
    warp, x = network(4), states(n_points, dim=4).requires_grad_()
    expected = torch.autograd.grad(warp.inverse(x).square().sum(), x)[0]
    loss = warp.inverse(x).square().sum()
    for weight in warp.parameters():
        weight.data.mul_(2)
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


@WAYS
def test_memory_can_be_resized_afterwards(inverse):
    """As `out=` and training on several machines do, which memory that NumPy has seen forbids."""
    warp, x = network(3), states(4)
    mapped(warp, x.requires_grad_(), inverse=inverse).sum().backward()
    for tensor in (x, *warp.parameters()):
        assert tensor.untyped_storage().resizable()


@WAYS
@pytest.mark.parametrize("n_points", [5, 600])
def test_gradients_are_laid_out_as_the_weights(n_points, inverse):
    warp = network(3)
    image = mapped(warp, states(n_points), inverse=inverse)
    for found in torch.autograd.grad(image.sum(), list(warp.parameters())):
        assert found.is_contiguous()


def test_what_was_overwritten_since_is_noticed():
    """Times and chosen series are no weights, but gradients hang on them."""
    flow, z = stirred(LinearFlow(3)), states(2).mT
    for series in (None, torch.tensor([0, 1, 1])):
        times = torch.linspace(0, 1, 3).double()
        for given in [times] if series is None else [times, series]:
            path = flow.after(times, series)(z)
            given.mul_(0)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                path.sum().backward()


@pytest.mark.parametrize("goal", [None, [1.0, -2.0, 0.5]])
def test_starts_of_another_precision(goal):
    times = torch.linspace(0, 1, 5)
    for flow in (morph(goal=goal), stirred(LinearFlow(3))):
        expected = gradients(flow, flow(states(4).float().double(), times.float().double()))
        path = flow(states(4).float(), times.float())
        assert path.dtype == torch.float64
        for one, other in zip(gradients(flow, path), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_where_nothing_is_recorded_nobody_asks_for_gradients():
    flow, times = morph(), torch.linspace(0, 1, 5).double()
    with torch.inference_mode(), torch.enable_grad():
        found = flow(states(4), times)
    torch.testing.assert_close(found.clone(), flow(states(4), times))


def test_on_another_device_than_the_default_one():
    x = states(2)
    with torch.device("cpu"):
        warp = network(3)
        expected = warp(x), warp.inverse(x)
        warp = network(3)
    with torch.device("meta"):
        found = warp(x), warp.inverse(x)
    assert all(map(torch.equal, found, expected))


@WAYS
def test_weights_that_were_replaced_do_not_count_on_the_way_back(inverse):
    warp, x = network(4), states(5, dim=4).requires_grad_()
    expected = torch.autograd.grad(mapped(warp, x, inverse=inverse).square().sum(), x)[0]
    loss = mapped(warp, x, inverse=inverse).square().sum()
    for weight in warp.parameters():
        weight.data = 2 * weight.data
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)
