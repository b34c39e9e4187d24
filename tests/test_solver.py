"""SolverFlow: order of convergence, gradients, cost and errors of torchdiffeq's methods."""

import math

import pytest
import torch
from helpers import build_flow, states
from problems import PROBLEMS

from latent_morph.flows import METHODS, IntegrationError, SolverFlow
from latent_morph.flows.registry import solver as solver_recipe

pytestmark = pytest.mark.usefixtures("float64")

ORDERS = {"euler": 1, "midpoint": 2, "heun2": 2, "heun3": 3, "rk4": 4}


def test_solver_flow_has_every_method_of_torchdiffeq():
    from torchdiffeq._impl.odeint import SOLVERS

    assert set(METHODS) == set(SOLVERS) - {"fixed_adams"}  # an old alias of implicit_adams


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", METHODS)
def test_solver_flow_matches_exact_solutions(method, problem):
    field, exact = PROBLEMS[problem]
    fixed = METHODS[method] in ("fixed", "multistep")
    options = {"step_size": 1e-3} if fixed else {"rtol": 1e-8, "atol": 1e-8}
    flow = SolverFlow(field, 3, method=method, **options)
    z, times = 0.5 + 0.3 * states(4).tanh(), torch.tensor([0.0, 0.31, 0.5, 1.3]).double()
    tolerance = 5e-3 if method == "euler" else 1e-5
    torch.testing.assert_close(flow(z, times), exact(z, times), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("method", ORDERS)
@pytest.mark.parametrize("interval", [(0.0, 1.0), (0.0, -1.0), (0.0, 0.37, 1.0)])
def test_solver_flow_order_of_convergence(method, interval):
    """The slope of log error against log step, on y' = Ay; also for outputs off the grid."""
    field, exact = PROBLEMS["linear"]
    z, times = states(5), torch.tensor(interval).double()
    steps = [1 / 8, 1 / 16, 1 / 32, 1 / 64]
    errors = [
        (SolverFlow(field, 3, method=method, step_size=h)(z, times) - exact(z, times))
        .abs()
        .max()
        .item()
        for h in steps
    ]
    slope = (math.log(errors[0]) - math.log(errors[-1])) / (
        math.log(steps[0]) - math.log(steps[-1])
    )
    assert slope == pytest.approx(ORDERS[method], abs=0.3)


@pytest.mark.parametrize("method", ["rk4", "dopri5", "scipy_solver"])
def test_solver_flow_adjoint_gradients_match_direct(method):
    options = {"step_size": 0.01} if method == "rk4" else {"rtol": 1e-9, "atol": 1e-9}
    z, times = states(4), torch.tensor([[0.2, 0.9]] * 4).double()
    gradients = []
    for chosen, adjoint in (
        (("dopri5" if method == "scipy_solver" else method), False),
        (method, True),
    ):
        flow = solver_recipe(
            3,
            method=chosen,
            adjoint=adjoint,
            units=8,
            seed=0,
            **(options if chosen == method else {"rtol": 1e-9, "atol": 1e-9}),
        ).double()
        start = z.clone().requires_grad_()
        flow(start, times).square().sum().backward()
        gradients.append([start.grad, *(p.grad for p in flow.parameters())])
    for direct, by_adjoint in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, by_adjoint, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["rk4", "scipy_solver"])
def test_solver_flow_adjoint_in_inference_mode(method):
    flow = solver_recipe(3, method=method, adjoint=True, units=8, seed=0).double()
    z, times = states(4), torch.linspace(0, 1, 5).double()
    with torch.inference_mode():
        path = flow(z, times)
    torch.testing.assert_close(path, flow(z, times).detach(), atol=1e-12, rtol=1e-12)


def test_solver_flow_adjoint_one_time_per_series():
    z, times = states(4), torch.tensor([[0.2], [0.9], [0.0], [-0.4]]).double()
    gradients = []
    for adjoint in (False, True):
        flow = solver_recipe(
            3, method="rk4", adjoint=adjoint, units=8, seed=0, step_size=0.02
        ).double()
        flow(z, times).square().sum().backward()
        gradients.append([p.grad for p in flow.parameters()])
    for direct, by_adjoint in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, by_adjoint, atol=1e-5, rtol=1e-5)


def test_solver_flow_counts_field_evaluations():
    flow = solver_recipe(2, method="rk4")
    flow(torch.zeros(3, 2), torch.linspace(0, 1, 11))
    assert flow.field_evaluations == 40
    flow.field_evaluations = 0
    flow(torch.zeros(3, 2), torch.rand(3, 1))
    assert flow.field_evaluations == 4  # one step for each series on its own interval


def test_solver_flow_cost_of_one_time_per_series():
    evaluations = {}
    for shape in ((50, 1), (50, 2)):
        flow = solver_recipe(2, method="euler")
        flow(torch.zeros(50, 2), torch.rand(*shape))
        evaluations[shape] = flow.field_evaluations
    assert evaluations[50, 1] == 1 and evaluations[50, 2] == 100


def test_solver_flow_cost_of_repeated_times():
    flow = solver_recipe(2, method="euler")
    flow(torch.zeros(50, 2), torch.full((50, 7), 0.5))
    assert flow.field_evaluations == 1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dopri5", {}, r"dopri5 failed between t = 0 and t = 5: .*larger rtol.*'morph'"),
        ("dopri5", {"max_steps": 3}, "max_num_steps exceeded"),
        (
            "rk4",
            {},
            "rk4 failed between t = 0 and t = 5: the state is not finite.*step_size",
        ),
        ("scipy_solver", {"max_steps": 100}, "scipy_solver failed between t = 0 and t = 5"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*lsoda:UserWarning", "ignore:overflow:RuntimeWarning")
def test_solver_flow_error_suggests_remedy(method, options, message):
    """z' = z^2 diverges at t = 1/z0."""
    flow = SolverFlow(lambda z: z**2, 1, method=method, **options)
    with pytest.raises(IntegrationError, match=message):
        flow(torch.tensor([2.0]), torch.linspace(0, 5, 50))


class _SteepField(torch.nn.Module):
    """The field -z with a wrong gradient, which makes the backward pass fail."""

    def __init__(self, slope):
        super().__init__()
        self.slope, self.weight = slope, torch.nn.Parameter(torch.ones(()))

    def forward(self, z):
        return _SteepGradient.apply(z, self.weight, self.slope)


class _SteepGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, weight, slope):
        ctx.slope = slope
        return -z

    @staticmethod
    def backward(ctx, gradient):
        return ctx.slope * gradient, ctx.slope * gradient.sum(), None


@pytest.mark.parametrize(
    ("method", "slope", "message"),
    [
        ("dopri5", 1e9, "dopri5 failed between t = 0 and t = 1: max_num_steps exceeded"),
        ("rk4", math.inf, "rk4 failed between t = 0 and t = 1: the gradient .* is not finite"),
    ],
)
def test_solver_flow_adjoint_error_in_backward_pass(method, slope, message):
    options = {"max_steps": 20} if method == "dopri5" else {}
    flow = SolverFlow(_SteepField(slope), 1, method=method, adjoint=True, **options)
    path = flow(torch.ones(3, 1), torch.linspace(0, 1, 5))
    with pytest.raises(IntegrationError, match=message):
        path.sum().backward()


def test_solver_flow_error_interval_of_one_time_per_series():
    flow = SolverFlow(lambda z: z**2, 1, method="dopri5")
    with pytest.raises(IntegrationError, match="between t = 0 and t = 5"):
        flow(torch.tensor([[2.0], [1.0]]), torch.tensor([[5.0], [0.1]]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"method": "dopri"},
            ValueError,
            "method must be one of euler, .*did you mean 'dopri[58]'",
        ),
        ({"rtol": 0.0}, ValueError, "rtol must be positive"),
        ({"step_size": 0.1}, ValueError, "step_size must be None for 'dopri5'.*, got 0.1"),
        ({"method": "rk4", "step_size": -1.0}, ValueError, "step_size must be positive"),
        ({"max_steps": 0}, ValueError, "max_steps must be at least 1"),
    ],
)
def test_solver_flow_rejects_invalid_options(options, error, message):
    with pytest.raises(error, match=message):
        SolverFlow(torch.nn.Linear(2, 2), 2, **options)


def test_solver_flow_rejects_field_not_callable():
    with pytest.raises(TypeError, match="field must be callable, got int"):
        SolverFlow(3, 2)


def test_solver_flow_is_independent_of_batch_within_tolerance():
    flow, z, times = build_flow("dopri5"), states(8), torch.linspace(0, 1, 5)
    torch.testing.assert_close(flow(z, times)[:2], flow(z[:2], times), atol=1e-5, rtol=1e-5)
