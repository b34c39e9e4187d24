"""Dense output: fewer evaluations, the promised error, and exactness where it would not pay."""

import math

import pytest
import torch
from helpers import states, stirred

from latent_morph.flows import FLOWS, MorphFlow, morph
from latent_morph.flows.dense import DEGREE, dense_curve
from latent_morph.flows.registry import morph_neural

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(autouse=True)
def small_networks_interpolate_too(monkeypatch):
    monkeypatch.setattr(morph, "_MIN_WORK", 0)


def pair(tolerance, *, dim=4, seed=0, **options):
    """The same stirred flow twice: exact, and with dense output."""
    settings = {"inn": {"blocks": 3, "width": 16}, "seed": seed} | options
    exact = stirred(FLOWS["morph"](dim, **settings), amount=0.3)
    dense = FLOWS["morph"](dim, **settings, dense_output=tolerance).double()
    dense.load_state_dict(exact.state_dict())
    return exact, dense


def error(found, wanted):
    """Largest error of each series relative to its largest absolute value; the worst of them."""
    off = (found - wanted).abs().amax((-2, -1))
    return float((off / wanted.abs().amax((-2, -1))).max().detach())


class Counted:
    """A curve that counts the times it was evaluated at."""

    def __init__(self, curve):
        self.curve, self.n_times = curve, 0

    def __call__(self, start, times):
        self.n_times += len(start) * times.shape[-1]
        return self.curve(start, times)


SHAPES = {
    "shared": lambda n: torch.linspace(0.0, 3.0, n).double(),
    "shared, any order, repeated": lambda n: (3 * torch.rand(n).double()).round(decimals=2),
    "both sides": lambda n: torch.linspace(-1.0, 2.0, n).double(),
    "own": lambda n: 3 * torch.rand(5, n).double(),
    "own, sorted, unequal spans": lambda n: (
        torch.rand(5, n).double().sort(1).values * torch.arange(1, 6).unsqueeze(1) / 2
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5, 1e-8])
def test_error_is_within_tolerance(shape, tolerance):
    torch.manual_seed(0)
    exact, dense = pair(tolerance)
    z, times = states(5, dim=4), SHAPES[shape](2000)
    assert error(dense(z, times), exact(z, times)) <= tolerance


def test_trained_single_precision_model_is_within_tolerance():
    """After training on a wave, as users have it: float32, 1e-5."""
    torch.set_default_dtype(torch.float32)
    flow = FLOWS["morph"](6, seed=0)
    torch.manual_seed(0)
    z, times = torch.randn(20, 6), torch.linspace(0, 1, 50)
    wave = torch.sin(12 * times + z[:, :1]).unsqueeze(-1)
    optimiser = torch.optim.Adam(flow.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        (flow(z, times)[..., :1] - wave).square().mean().backward()
        optimiser.step()
    long = torch.linspace(0, 1, 2000)
    with torch.inference_mode():
        exact = flow(z, long)
        flow.dense_output = 1e-5
        found = flow(z, long)
        ragged = flow(z, long.repeat(20, 1))
    assert not torch.equal(found, exact)
    assert error(found, exact) <= 1e-5 and error(ragged, exact) <= 1e-5


@pytest.mark.parametrize("seed", [*range(8), 81, 108, 341, 378])  # the last four bend most sharply
def test_wild_networks_are_within_tolerance(seed):
    """Coefficients of sharp bends fall slowly: small ones may add up to a large error."""
    generator = torch.Generator().manual_seed(seed)

    def whole(least, most):
        return int(torch.randint(least, most, (1,), generator=generator))

    dim, inn = whole(2, 13), {"blocks": whole(1, 6), "width": whole(8, 65)}
    amount, span, scale = torch.rand(3, generator=generator).tolist()
    flow = stirred(FLOWS["morph"](dim, inn=inn, seed=seed), amount=0.6 * amount, seed=seed)
    z = torch.randn(6, dim, generator=generator) * 10 ** (2 * scale - 1)
    times = torch.linspace(0, 0.3 + 6 * span, 3000).double()
    with torch.inference_mode():
        exact = flow(z, times)
        for tolerance in (1e-3, 1e-5):
            flow.dense_output = tolerance
            assert error(flow(z, times), exact) <= tolerance


def bends(sharpness, times):
    """A bend of each series' own sharpness (N, 1)."""
    return torch.tanh(sharpness * (times - 0.4)).unsqueeze(-1)


@pytest.mark.parametrize("own_times", [False, True])
def test_panels_double_until_a_sharp_bend_is_resolved(own_times):
    sharpness = torch.tensor([[1.0], [10.0], [100.0]]).double()
    times = torch.linspace(0, 1, 20_000).double()
    times = times.repeat(3, 1) if own_times else times
    curve = Counted(bends)
    found = dense_curve(curve, sharpness, times, tolerance=1e-6, panels=1)
    assert error(found, bends(sharpness, times)) <= 1e-6
    assert curve.n_times < 3 * 20_000 / 4


def test_a_series_does_not_see_its_batch_mates():
    sharpness, times = torch.tensor([[2.0], [300.0]]).double(), torch.linspace(0, 1, 5000).double()
    together = dense_curve(bends, sharpness, times, tolerance=1e-4, panels=1)
    alone = dense_curve(bends, sharpness[:1], times, tolerance=1e-4, panels=1)
    torch.testing.assert_close(together[:1], alone, atol=1e-14, rtol=1e-14)


def test_fast_waves_are_not_mistaken_for_slow_ones():
    """A thousand turns hidden between the nodes of a single panel would look constant."""
    _, dense = pair(1e-6, dim=2)
    with torch.no_grad():
        dense.base.frequencies.fill_(2 * math.pi * 100)
        dense.base.rate_parameter.zero_()
    times = torch.linspace(0, 1, 50_000).double()
    exact = MorphFlow(dense.base, dense.warp)
    z = states(2, dim=2)
    assert error(dense(z, times), exact(z, times)) <= 1e-6


def test_few_times_are_exact():
    exact, dense = pair(1e-2)
    z = states(5, dim=4)
    for times in (torch.linspace(0, 1, DEGREE).double(), torch.rand(5, 7).double()):
        torch.testing.assert_close(dense(z, times), exact(z, times), atol=0, rtol=0)


def test_little_work_is_exact(monkeypatch):
    """A small network at a thousand points is; at ten thousand, or a large network, is not."""
    monkeypatch.undo()
    times, calls, dense_curve = torch.linspace(0, 1, 1000), [], morph.dense_curve

    def recording(*args, **options):
        calls.append(1)
        return dense_curve(*args, **options)

    monkeypatch.setattr(morph, "dense_curve", recording)
    for width, n_series, expected in ((16, 1, True), (16, 20, False), (400, 2, False)):
        exact, dense = pair(1e-3, inn={"blocks": 2, "width": width})
        z = states(n_series, dim=4)
        calls.clear()
        path = dense(z, times)
        assert (not calls) == expected
        if expected:
            assert torch.equal(path, exact(z, times))


def test_a_tolerance_below_rounding_ends_in_exact_evaluation():
    exact, dense = pair(1e-30)
    z, times = states(5, dim=4), torch.linspace(0, 1, 500).double()
    torch.testing.assert_close(dense(z, times), exact(z, times), atol=0, rtol=0)


def test_only_where_a_bend_is_are_there_more_evaluations():
    curve, times = Counted(bends), torch.linspace(0, 1, 20_000).double()
    sharp = torch.tensor([[1000.0]]).double()
    found = dense_curve(curve, sharp, times, tolerance=1e-6, panels=8)
    assert error(found, bends(sharp, times)) <= 1e-6
    # Eight panels, and at most four of two halves each time that the bend's panel is cut.
    assert curve.n_times <= (8 + 6 * 8) * (DEGREE + 1)


@pytest.mark.parametrize("own_times", [False, True])
def test_times_in_any_order_find_their_panel(own_times):
    times = torch.rand(3 if own_times else 1, 4000, generator=torch.Generator().manual_seed(0))
    times = times.double() if own_times else times[0].double()
    sharpness = torch.tensor([[3.0], [30.0], [300.0]]).double()
    found = dense_curve(bends, sharpness, times, tolerance=1e-6, panels=4)
    assert error(found, bends(sharpness, times)) <= 1e-6


@pytest.mark.parametrize("own_times", [False, True])
def test_a_bend_where_nobody_asks(own_times):
    """All unresolved panels, and those beside them, may be without any times."""
    ends = torch.linspace(0, 0.2, 4000).double()
    times = torch.cat([ends, 0.8 + ends])
    times = times.repeat(2, 1) if own_times else times
    sharp = torch.tensor([[1e3], [1e4]]).double()

    def step(sharpness, t):
        return torch.tanh(sharpness * (t - 0.5)).unsqueeze(-1)

    found = dense_curve(step, sharp, times, tolerance=1e-6, panels=16)
    assert error(found, step(sharp, times)) <= 1e-6


def test_a_curve_that_leaves_the_numbers_comes_to_an_end():
    start, same = torch.ones(2, 1).double(), torch.full((500,), 0.7).double()
    for times in (same, torch.linspace(0, 1, 5000).double(), same.repeat(2, 1)):
        found = dense_curve(
            lambda x, t: (x / 0 * t).unsqueeze(-1), start, times, tolerance=1e-6, panels=1
        )
        assert not found.isfinite().any()


def test_one_time_many_times_over():
    exact, dense = pair(1e-6)
    z, times = states(5, dim=4), torch.full((500,), 0.7).double()
    torch.testing.assert_close(dense(z, times), exact(z, times), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", ["shared", "own"])
def test_gradients_pass_through(shape):
    torch.manual_seed(0)
    exact, dense = pair(1e-9)
    times = SHAPES[shape](600)
    gradients = []
    for flow in (exact, dense):
        start = states(5, dim=4).requires_grad_()
        flow(start, times).square().mean().backward()
        gradients.append([start.grad, *(p.grad for p in flow.parameters())])
    for direct, interpolated in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, interpolated, atol=1e-7, rtol=1e-6)


def test_leading_axes():
    exact, dense = pair(1e-8)
    z = states(2, 3, dim=4)
    for times in (torch.linspace(0, 1, 400).double(), torch.rand(2, 3, 400).double()):
        found = dense(z, times)
        assert found.shape == (2, 3, 400, 4) and error(found, exact(z, times)) <= 1e-8


def test_needs_a_linear_base():
    base = morph_neural(3)
    with pytest.raises(
        ValueError, match="dense_output needs a LinearFlow as base, got SolverFlow"
    ):
        MorphFlow(base.base, base.warp, dense_output=1e-5)
    with pytest.raises(ValueError, match="dense_output must be positive"):
        FLOWS["morph"](3, dense_output=0.0)
