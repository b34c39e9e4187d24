"""MorphFlow: agreement with SolverFlow, and stability as the theorem promises it."""

import pytest
import torch
from helpers import CLOSED_FORMS, build_flow, perturb, states

from latent_morph.bijections import make_inn
from latent_morph.flows import FLOWS, LinearFlow, MorphFlow, SolverFlow

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_form_flow_agrees_with_solver_flow_on_its_field(name):
    flow, z = build_flow(name), states(5)
    solver = SolverFlow(field=flow.field, latent_dim=3, rtol=1e-10, atol=1e-10)
    times = torch.linspace(-0.5, 2.0, 11)
    torch.testing.assert_close(solver(z, times), flow(z, times), atol=1e-6, rtol=1e-6)
    assert solver.field_evaluations > 10
    assert {id(p) for p in solver.parameters()} == {id(p) for p in flow.parameters()}


def test_morph_flow_neural_base_equals_warped_solver_flow():
    flow, z, times = build_flow("morph-neural"), states(4), torch.tensor([0.2, 0.9])
    inside = flow.base(flow.warp.inverse(z), times)
    torch.testing.assert_close(flow(z, times), flow.warp(inside))


def test_morph_flow_field_is_pushforward_of_base_field():
    """f(y) = J_F(F^-1(y)) g(F^-1(y)), the paper's equation for the learned ODE."""
    flow, z = build_flow("morph"), states()
    x = flow.warp.inverse(z)
    jacobian = torch.func.jacrev(flow.warp)(x)
    torch.testing.assert_close(flow.field(z), jacobian @ flow.base.field(x))


@pytest.mark.parametrize("goal", [None, [4.0, -1.0, 2.0]])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_morph_flow_stable_converges_and_loses_energy(spectrum, goal):
    """Theorem 4.1 of the paper, from 1,000 random starts far outside any data."""
    flow = perturb(
        FLOWS["morph"](3, stable=True, spectrum=spectrum, goal=goal, seed=0), amount=0.2
    )
    rest = flow.equilibrium()
    if goal is not None:
        assert rest.tolist() == goal
        with torch.no_grad():
            assert flow.warp(torch.zeros(3)).tolist() == goal
    torch.testing.assert_close(flow.field(rest), torch.zeros(3).double(), atol=1e-12, rtol=0)

    starts = 10 * states(1000)
    slowest = -1 / flow.base.rates.max()
    path = flow(starts, torch.linspace(0, 60, 200).double() * slowest)
    assert path.isfinite().all()
    assert (path[:, -1] - rest).abs().max() < 1e-6

    # V(y) = |modes of F^-1(y)|^2 is the base's Lyapunov function, mapped through the warp.
    energy = flow.base.basis().to_modes(flow.warp.inverse(path[:, :60])).square().sum(-1)
    assert (energy.diff(dim=-1) < 0).all()


def test_morph_flow_goal_needs_linear_base():
    base = SolverFlow(torch.nn.Linear(2, 2), 2)
    with pytest.raises(ValueError, match="base must be a LinearFlow for a goal, got SolverFlow"):
        MorphFlow(base, make_inn(2), goal=torch.zeros(2))
    with pytest.raises(ValueError, match="base must be a LinearFlow .*, got SolverFlow"):
        MorphFlow(base, make_inn(2)).equilibrium()


def test_morph_flow_rejects_warp_of_other_dim():
    with pytest.raises(ValueError, match="warp must have dim 3 as base has, got 2"):
        MorphFlow(LinearFlow(3), make_inn(2))


def test_morph_flow_oscillation_needs_complex_spectrum():
    """Two turns of a circle: with real eigenvalues no change of coordinates closes an orbit."""
    times = torch.linspace(0, 1, 40).double()
    angle = 4 * torch.pi * times
    circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
    losses, inn = {}, {"blocks": 2, "width": 16}
    for spectrum in ("complex", "real"):
        flow = FLOWS["morph"](2, spectrum=spectrum, horizon=0.3, inn=inn, seed=0).double()
        optimizer = torch.optim.Adam(flow.parameters(), lr=3e-2)
        for _ in range(150):
            loss = (flow(circle[0], times) - circle).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[spectrum] = loss.item()
    assert losses["complex"] < 0.1 < losses["real"]
