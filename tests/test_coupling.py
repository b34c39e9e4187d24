"""CouplingINN, our own coupling network: held against FrEIA's blocks, with derivatives checked."""

import pytest
import torch
from helpers import perturb, states

from latent_morph.bijections import Anchored, CouplingINN, FreiaINN, make_inn
from latent_morph.bijections.coupling import CHUNK_BYTES
from latent_morph.flows import FLOWS
from latent_morph.nn import ACTIVATIONS

pytestmark = pytest.mark.usefixtures("float64")

WAYS = pytest.mark.parametrize("inverse", [False, True], ids=["forward", "inverse"])
GOALS = pytest.mark.parametrize("goal", [None, [1.0, -2.0, 0.5]], ids=["free", "anchored"])


def network(dim: int = 3, goal=None, **options):
    inn = perturb(make_inn(dim, **{"blocks": 3, "width": 8, "seed": 0} | options))
    return inn if goal is None else Anchored(inn, torch.tensor(goal))


def apply(bijection, x, *, inverse):
    return bijection.inverse(x) if inverse else bijection(x)


def freia_twin(ours: CouplingINN, **options) -> FreiaINN:
    """FrEIA's GLOW blocks with the weights and permutations of our own network."""
    twin = make_inn(ours.dim, "glow", **{"blocks": 3, "width": 8} | options).double()
    weights = {}
    for name, value in ours.state_dict().items():
        # FrEIA's subnet2 moves the first half, and its subnet1 the second.
        weights[name.replace(".first.", ".subnet2.").replace(".second.", ".subnet1.")] = value
    twin.load_state_dict(weights)
    return twin


@WAYS
@pytest.mark.parametrize("dim", [2, 3, 5, 6])
@pytest.mark.parametrize(
    "options", [{}, {"depth": 2}, {"clamp": 2.0}, {"activation": "tanh"}], ids=str
)
def test_coupling_equals_freias_glow_block_with_gradients(dim, options, inverse):
    ours = network(dim, **options)
    theirs = freia_twin(ours, **options)
    results = []
    for bijection in (ours, theirs):
        x = states(7, dim=dim).requires_grad_()
        image = apply(bijection, x, inverse=inverse)
        weight = states(7, dim=dim, seed=2)
        gradients = torch.autograd.grad((weight * image).sum(), [x, *bijection.parameters()])
        by_size = sorted(gradients[1:], key=lambda g: (g.numel(), float(g.sum())))
        results.append([image, gradients[0], *by_size])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.view(other.shape), other, atol=1e-12, rtol=1e-10)


@WAYS
@GOALS
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_coupling_gradcheck(activation, goal, inverse):
    bijection = network(goal=goal, blocks=1, width=3, activation=activation)
    parameters = [p for p in bijection.parameters() if p.requires_grad]

    def function(x, *_):
        return apply(bijection, x, inverse=inverse)

    assert torch.autograd.gradcheck(function, (states(2).requires_grad_(), *parameters))


@GOALS
def test_coupling_supports_second_derivatives_and_function_transforms(goal):
    bijection, x = network(goal=goal), states(4)
    assert torch.autograd.gradgradcheck(bijection, x.requires_grad_())
    jacobian = torch.func.vmap(torch.func.jacrev(bijection))(x.detach())
    forward_mode = torch.func.vmap(torch.func.jacfwd(bijection))(x.detach())
    torch.testing.assert_close(jacobian, forward_mode)


@WAYS
@GOALS
def test_coupling_is_the_same_with_and_without_gradients(goal, inverse):
    """In single precision too: no path depends on whether gradients are recorded."""
    for bijection in (network(goal=goal), network(goal=goal).float()):
        x = states(50).to(next(bijection.parameters()).dtype)
        recorded = apply(bijection, x, inverse=inverse).detach()
        with torch.no_grad():
            assert torch.equal(apply(bijection, x, inverse=inverse), recorded)
        with torch.inference_mode():
            assert torch.equal(apply(bijection, x, inverse=inverse), recorded)


@pytest.mark.parametrize("preset", ["compact", "glow"])
def test_coupling_in_pieces_maps_the_same_points(preset):
    inn, x = perturb(make_inn(3, preset, width=256, seed=0)), states(2, 1500)
    assert CHUNK_BYTES // (inn.width * x.element_size()) < 3000
    with torch.inference_mode():
        image = inn(x)
    torch.testing.assert_close(image, inn(x).detach(), atol=1e-13, rtol=1e-13)
    torch.testing.assert_close(inn.inverse(image.clone()).detach(), x, atol=1e-10, rtol=1e-10)


@WAYS
@pytest.mark.parametrize("preset", ["compact", "rnvp"])
def test_coupling_uses_permutations_that_were_loaded_later(preset, inverse):
    one, other = (perturb(make_inn(5, preset, seed=seed)) for seed in (0, 1))
    x = states(4, dim=5)
    apply(one, x, inverse=inverse)
    one.load_state_dict(other.state_dict())
    assert torch.equal(apply(one, x, inverse=inverse), apply(other, x, inverse=inverse))


@GOALS
def test_inverse_and_forward_agree_with_the_two_maps(goal):
    bijection, y = network(goal=goal), states(2, 4)
    x, forward = bijection.inverse_and_forward(y)
    torch.testing.assert_close(x, bijection.inverse(y))
    torch.testing.assert_close(forward(x), y)
    torch.testing.assert_close(forward(2 * x), bijection(2 * x))


@GOALS
def test_masked_trajectory_without_queries_has_zero_gradients(goal):
    flow = perturb(FLOWS["morph"](3, goal=goal, seed=0))
    z, mask = states(2).requires_grad_(), torch.zeros(2, 4, dtype=torch.bool)
    path = flow(z, torch.linspace(0, 1, 4), query_mask=mask)
    gradients = torch.autograd.grad(path.sum(), [z, *flow.parameters()], allow_unused=True)
    assert not path.any()
    assert all(g is None or not g.any() for g in gradients)


def test_coupling_needs_two_coordinates():
    with pytest.raises(ValueError, match="dim must be at least 2, got 1"):
        CouplingINN(1)
