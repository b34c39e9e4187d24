"""Dense output: fewer evaluations, error within tolerance, exact where it would not pay."""

import math

import pytest
import torch
from helpers import perturb, states

from latent_morph.flows import FLOWS, MorphFlow, morph
from latent_morph.flows.dense import DEGREE, dense_curve
from latent_morph.flows.registry import morph_neural

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(autouse=True)
def interpolate_small_networks(monkeypatch):
    monkeypatch.setattr(morph, "_MIN_WORK", 0)


def make_exact_and_dense(tolerance, *, dim=4, seed=0, **options):
    """The same perturbed flow twice: exact, and with dense output."""
    settings = {"inn": {"blocks": 3, "width": 16}, "seed": seed} | options
    exact = perturb(FLOWS["morph"](dim, **settings), amount=0.3)
    dense = FLOWS["morph"](dim, **settings, dense_output=tolerance).double()
    dense.load_state_dict(exact.state_dict())
    return exact, dense


def max_relative_error(actual, expected):
    """Largest error relative to the largest absolute value per series, over all series."""
    off = (actual - expected).abs().amax((-2, -1))
    return float((off / expected.abs().amax((-2, -1))).max().detach())


class CountingCurve:
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
def test_dense_output_error_within_tolerance(shape, tolerance):
    torch.manual_seed(0)
    exact, dense = make_exact_and_dense(tolerance)
    z, times = states(5, dim=4), SHAPES[shape](2000)
    assert max_relative_error(dense(z, times), exact(z, times)) <= tolerance


def test_dense_output_error_of_trained_float32_flow():
    """After training on a wave, as users have it: float32, 1e-5."""
    torch.set_default_dtype(torch.float32)
    flow = FLOWS["morph"](6, seed=0)
    torch.manual_seed(0)
    z, times = torch.randn(20, 6), torch.linspace(0, 1, 50)
    wave = torch.sin(12 * times + z[:, :1]).unsqueeze(-1)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (flow(z, times)[..., :1] - wave).square().mean().backward()
        optimizer.step()
    long = torch.linspace(0, 1, 2000)
    with torch.inference_mode():
        exact = flow(z, long)
        flow.dense_output = 1e-5
        actual = flow(z, long)
        ragged = flow(z, long.repeat(20, 1))
    assert not torch.equal(actual, exact)
    assert max_relative_error(actual, exact) <= 1e-5 and max_relative_error(ragged, exact) <= 1e-5


@pytest.mark.parametrize("seed", [*range(8), 81, 108, 341, 378])  # the last four bend most sharply
def test_dense_output_error_of_random_networks(seed):
    """Coefficients of sharp bends fall slowly: small ones may add up to a large error."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high):
        return int(torch.randint(low, high, (1,), generator=generator))

    dim, inn = draw(2, 13), {"blocks": draw(1, 6), "width": draw(8, 65)}
    amount, span, scale = torch.rand(3, generator=generator).tolist()
    flow = perturb(FLOWS["morph"](dim, inn=inn, seed=seed), amount=0.6 * amount, seed=seed)
    z = torch.randn(6, dim, generator=generator) * 10 ** (2 * scale - 1)
    times = torch.linspace(0, 0.3 + 6 * span, 3000).double()
    with torch.inference_mode():
        exact = flow(z, times)
        for tolerance in (1e-3, 1e-5):
            flow.dense_output = tolerance
            assert max_relative_error(flow(z, times), exact) <= tolerance


def bend(sharpness, times):
    """A curve with a bend per series, of sharpness (N, 1)."""
    return torch.tanh(sharpness * (times - 0.4)).unsqueeze(-1)


@pytest.mark.parametrize("own_times", [False, True])
def test_dense_curve_refines_panels_until_sharp_bend_is_resolved(own_times):
    sharpness = torch.tensor([[1.0], [10.0], [100.0]]).double()
    times = torch.linspace(0, 1, 20_000).double()
    times = times.repeat(3, 1) if own_times else times
    curve = CountingCurve(bend)
    actual = dense_curve(curve, sharpness, times, tolerance=1e-6, panels=1)
    assert max_relative_error(actual, bend(sharpness, times)) <= 1e-6
    assert curve.n_times < 3 * 20_000 / 4


def test_dense_curve_is_independent_of_batch():
    sharpness, times = torch.tensor([[2.0], [300.0]]).double(), torch.linspace(0, 1, 5000).double()
    together = dense_curve(bend, sharpness, times, tolerance=1e-4, panels=1)
    alone = dense_curve(bend, sharpness[:1], times, tolerance=1e-4, panels=1)
    torch.testing.assert_close(together[:1], alone, atol=1e-14, rtol=1e-14)


def test_dense_output_resolves_fast_oscillation():
    """A thousand turns hidden between the nodes of a single panel would look constant."""
    _, dense = make_exact_and_dense(1e-6, dim=2)
    with torch.no_grad():
        dense.base.frequencies.fill_(2 * math.pi * 100)
        dense.base.rate_parameter.zero_()
    times = torch.linspace(0, 1, 50_000).double()
    exact = MorphFlow(dense.base, dense.warp)
    z = states(2, dim=2)
    assert max_relative_error(dense(z, times), exact(z, times)) <= 1e-6


def test_dense_output_few_times_are_exact():
    exact, dense = make_exact_and_dense(1e-2)
    z = states(5, dim=4)
    for times in (torch.linspace(0, 1, DEGREE).double(), torch.rand(5, 7).double()):
        torch.testing.assert_close(dense(z, times), exact(z, times), atol=0, rtol=0)


def test_dense_output_little_work_is_exact(monkeypatch):
    """A small network at 1,000 points is exact; at 20,000 points, or a large network, is not."""
    monkeypatch.undo()
    times, calls, dense_curve = torch.linspace(0, 1, 1000), [], morph.dense_curve

    def recording(*args, **options):
        calls.append(1)
        return dense_curve(*args, **options)

    monkeypatch.setattr(morph, "dense_curve", recording)
    for width, n_series, is_exact in ((16, 1, True), (16, 20, False), (400, 2, False)):
        exact, dense = make_exact_and_dense(1e-3, inn={"blocks": 2, "width": width})
        z = states(n_series, dim=4)
        calls.clear()
        path = dense(z, times)
        assert (not calls) == is_exact
        if is_exact:
            assert torch.equal(path, exact(z, times))


def test_dense_output_tolerance_below_rounding_is_exact():
    exact, dense = make_exact_and_dense(1e-30)
    z, times = states(5, dim=4), torch.linspace(0, 1, 500).double()
    torch.testing.assert_close(dense(z, times), exact(z, times), atol=0, rtol=0)


def test_dense_curve_refines_only_near_bend():
    curve, times = CountingCurve(bend), torch.linspace(0, 1, 20_000).double()
    sharp = torch.tensor([[1000.0]]).double()
    actual = dense_curve(curve, sharp, times, tolerance=1e-6, panels=8)
    assert max_relative_error(actual, bend(sharp, times)) <= 1e-6
    # Eight panels, and at most four panels of two halves per refinement at the bend.
    assert curve.n_times <= (8 + 6 * 8) * (DEGREE + 1)


@pytest.mark.parametrize("own_times", [False, True])
def test_dense_curve_times_in_any_order(own_times):
    times = torch.rand(3 if own_times else 1, 4000, generator=torch.Generator().manual_seed(0))
    times = times.double() if own_times else times[0].double()
    sharpness = torch.tensor([[3.0], [30.0], [300.0]]).double()
    actual = dense_curve(bend, sharpness, times, tolerance=1e-6, panels=4)
    assert max_relative_error(actual, bend(sharpness, times)) <= 1e-6


@pytest.mark.parametrize("own_times", [False, True])
def test_dense_curve_bend_between_query_times(own_times):
    """All unresolved panels, and their neighbours, may have no query times."""
    ends = torch.linspace(0, 0.2, 4000).double()
    times = torch.cat([ends, 0.8 + ends])
    times = times.repeat(2, 1) if own_times else times
    sharp = torch.tensor([[1e3], [1e4]]).double()

    def step(sharpness, t):
        return torch.tanh(sharpness * (t - 0.5)).unsqueeze(-1)

    actual = dense_curve(step, sharp, times, tolerance=1e-6, panels=16)
    assert max_relative_error(actual, step(sharp, times)) <= 1e-6


def test_dense_curve_terminates_on_non_finite_curve():
    start, same = torch.ones(2, 1).double(), torch.full((500,), 0.7).double()
    for times in (same, torch.linspace(0, 1, 5000).double(), same.repeat(2, 1)):
        actual = dense_curve(
            lambda x, t: (x / 0 * t).unsqueeze(-1), start, times, tolerance=1e-6, panels=1
        )
        assert not actual.isfinite().any()


def test_dense_output_repeated_time():
    exact, dense = make_exact_and_dense(1e-6)
    z, times = states(5, dim=4), torch.full((500,), 0.7).double()
    torch.testing.assert_close(dense(z, times), exact(z, times), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", ["shared", "own"])
def test_dense_output_gradients_match_exact(shape):
    torch.manual_seed(0)
    exact, dense = make_exact_and_dense(1e-9)
    times = SHAPES[shape](600)
    gradients = []
    for flow in (exact, dense):
        start = states(5, dim=4).requires_grad_()
        flow(start, times).square().mean().backward()
        gradients.append([start.grad, *(p.grad for p in flow.parameters())])
    for direct, interpolated in zip(*gradients, strict=True):
        torch.testing.assert_close(direct, interpolated, atol=1e-7, rtol=1e-6)


def test_dense_output_leading_axes():
    exact, dense = make_exact_and_dense(1e-8)
    z = states(2, 3, dim=4)
    for times in (torch.linspace(0, 1, 400).double(), torch.rand(2, 3, 400).double()):
        actual = dense(z, times)
        assert (
            actual.shape == (2, 3, 400, 4) and max_relative_error(actual, exact(z, times)) <= 1e-8
        )


def test_dense_output_needs_linear_base():
    base = morph_neural(3)
    with pytest.raises(
        ValueError, match="base must be a LinearFlow for dense_output, got SolverFlow"
    ):
        MorphFlow(base.base, base.warp, dense_output=1e-5)
    with pytest.raises(ValueError, match="dense_output must be positive"):
        FLOWS["morph"](3, dense_output=0.0)
