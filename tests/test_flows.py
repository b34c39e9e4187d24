"""The laws of `Flow` and its errors on invalid input, for every registered flow."""

import pickle

import pytest
import torch
from helpers import ALL_FLOWS, CLOSED_FORMS, DIM, TOLERANCE, build_flow, states

from latent_morph.flows import FLOWS

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.parametrize("name", ALL_FLOWS)]


def assert_near(left, right, tolerance):
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def test_flow_starts_at_z0(name):
    flow, z = build_flow(name), states(4)
    path = flow(z, torch.tensor([2.5]), t0=2.5)
    assert_near(path[:, 0], z, 1e-12)


def test_flow_composes(name):
    flow, z = build_flow(name), states(4)
    s, t = torch.tensor([0.4]), torch.tensor([0.3, 0.7])
    assert_near(flow(flow(z, s)[:, 0], t), flow(z, s + t), TOLERANCE[name])


def test_flow_permuted_and_repeated_times(name):
    flow, z = build_flow(name), states(4)
    times = torch.tensor([0.1, 0.5, 0.7, 1.0])
    order = torch.tensor([2, 0, 0, 3, 1])
    assert_near(flow(z, times[order]), flow(z, times)[:, order], 1e-12)


def test_flow_tangent_is_field(name):
    flow, z, h = build_flow(name), states(4), 0.02
    before, here, after = flow(z, torch.tensor([0.5 - h, 0.5, 0.5 + h])).unbind(-2)
    assert_near((after - before) / (2 * h), flow.field(here), max(5e-2, 5 * TOLERANCE[name]))


def test_flow_times_before_start(name):
    flow, z = build_flow(name), states(4)
    returned = flow(flow(z, torch.tensor([0.5]))[:, 0], torch.tensor([-0.5, 0.2]))
    assert_near(returned[:, 0], z, TOLERANCE[name])
    assert_near(returned[:, 1], flow(z, torch.tensor([0.7]))[:, 0], TOLERANCE[name])


def test_flow_times_per_series(name):
    flow, z = build_flow(name), states(2, 3)
    times = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) * 1.5 - 0.5
    together = flow(z, times)
    alone = torch.stack(
        [torch.stack([flow(z[i, j], times[i, j]) for j in range(3)]) for i in range(2)]
    )
    assert together.shape == (2, 3, 5, DIM)
    # Adaptive solvers take one error norm over the batch: independence holds to tolerance.
    assert_near(together, alone, 1e-12 if name in CLOSED_FORMS else TOLERANCE[name])


def test_flow_one_time_per_series(name):
    flow, z = build_flow(name), states(6)
    times = torch.linspace(-0.5, 1.0, 6)
    each = torch.stack([flow(z[i], times[i : i + 1])[0] for i in range(6)])
    assert_near(flow(z, times.unsqueeze(-1))[:, 0], each, TOLERANCE[name])


def test_flow_stepper_equals_forward(name):
    flow, z = build_flow(name), states(3)
    gaps = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    step = flow.stepper(gaps)
    for k in (2, 0):
        assert_near(step(k, z), flow(z, gaps[k].unsqueeze(-1)).squeeze(-2), 1e-12)


def test_flow_t0_per_series(name):
    flow, z = build_flow(name), states(3)
    starts = torch.tensor([0.0, 0.5, -1.0])
    shifted = flow(z, torch.tensor([0.5, 1.0]), t0=starts)
    assert_near(shifted, flow(z, torch.tensor([0.5, 1.0]) - starts.unsqueeze(-1)), TOLERANCE[name])


def test_flow_samples_share_times_of_series(name):
    flow, z = build_flow(name), states(2, 3)
    times = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    paths = flow(z, times)
    assert paths.shape == (2, 3, 4, DIM)
    assert_near(paths[1], flow(z[1], times), TOLERANCE[name])


@pytest.mark.parametrize("own_times", [True, False])
def test_flow_query_mask_zeroes_masked_rows_only(name, own_times):
    flow, z = build_flow(name), states(2, 3)
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(*((3, 4) if own_times else (4,)), generator=generator)
    mask = torch.rand(2, 3, 4, generator=generator) < 0.5
    assert mask.any() and not mask.all()
    masked, full = flow(z, times, query_mask=mask), flow(z, times)
    assert_near(masked[mask], full[mask], 1e-12 if name in CLOSED_FORMS else TOLERANCE[name])
    assert (masked[~mask] == 0).all()
    assert (flow(z, times, query_mask=torch.zeros(4, dtype=torch.bool)) == 0).all()
    assert_near(flow(z, times, query_mask=torch.ones(4, dtype=torch.bool)), full, 0.0)
    single = flow(
        z[0, 0], times[..., :4].reshape(-1)[:4], query_mask=torch.arange(4) < 2
    )  # no batch axes
    assert single.shape == (4, z.shape[-1]) and (single[2:] == 0).all() and (single[:2] != 0).any()


def test_flow_rejects_invalid_query_mask(name):
    flow, z, times = build_flow(name), states(3), torch.rand(4)
    with pytest.raises(TypeError, match="query_mask must be a boolean tensor, got torch.float64"):
        flow(z, times, query_mask=torch.ones(4))
    message = r"query_mask must .* broadcast to \(3, 4\), .* got shape \(2, 4\)"
    with pytest.raises(ValueError, match=message):
        flow(z, times, query_mask=torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_flow_without_times(name, batch):
    assert build_flow(name)(states(*batch), torch.zeros(0)).shape == (*batch, 0, DIM)


def test_flow_without_series(name):
    assert build_flow(name)(states(0), torch.zeros(5)).shape == (0, 5, DIM)


def test_flow_epoch_seconds_in_float32(name):
    flow, z = build_flow(name).float(), states(2).float()
    now = 1.7e9
    late = flow(z, torch.tensor([now + 0.25, now + 0.5], dtype=torch.float64), t0=now)
    assert_near(late, flow(z, torch.tensor([0.25, 0.5])), 1e-4)


def test_flow_gradients_reach_every_parameter(name):
    flow, z = build_flow(name), states(4).requires_grad_()
    flow(z, torch.tensor([0.3, 1.0])).square().sum().backward()
    without_gradient = [
        key
        for key, p in flow.named_parameters()
        if p.numel() and (p.grad is None or not p.grad.any())
    ]
    assert not without_gradient
    assert z.grad is not None and z.grad.any()


def test_flow_gradcheck(name):
    if name == "scipy_solver":
        # Its gradients come from integrating the adjoint: test_solver.py compares them.
        return
    flow = build_flow(name, dim=2)
    parameters = dict(flow.named_parameters())
    times = torch.tensor([0.05, 0.1])

    def run(z, *values):
        return torch.func.functional_call(
            flow, dict(zip(parameters, values, strict=True)), (z, times)
        )

    assert torch.autograd.gradcheck(
        run, (states(1, dim=2).requires_grad_(), *parameters.values()), atol=1e-4, rtol=1e-3
    )


def test_flow_pickle_round_trip(name):
    flow, z, times = build_flow(name), states(4), torch.tensor([0.3, 1.0])
    assert_near(pickle.loads(pickle.dumps(flow))(z, times), flow(z, times), 0.0)


def test_flow_seed_fixes_parameters_and_keeps_rng_state(name):
    options = {} if name == "linear" else {"seed": 7}
    state = torch.random.get_rng_state()
    first, second = FLOWS[name](DIM, **options), FLOWS[name](DIM, **options)
    assert torch.equal(state, torch.random.get_rng_state())
    for left, right in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_flow_latent_dims(name, dim):
    flow = build_flow(name, dim=dim)
    assert flow(states(4, dim=dim), torch.tensor([0.1, 0.2])).isfinite().all()


GOOD, TIMES = states(4), torch.tensor([0.0, 1.0])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("z0", "times", "t0", "error", "message"),
    [
        (states(4, dim=2), TIMES, 0.0, ValueError, r"z0 must have a last axis of size 3, got .*2"),
        (torch.tensor(1.0), TIMES, 0.0, ValueError, "z0 must have a last axis of size 3"),
        (GOOD * NAN, TIMES, 0.0, ValueError, "z0 must be finite, got 12 NaN or infinite of 12"),
        (GOOD.to(torch.complex128), TIMES, 0.0, TypeError, "z0 must be real .*complex128"),
        (GOOD.long(), TIMES, 0.0, TypeError, "z0 must be real floating point, got .*int64"),
        (GOOD.numpy(), TIMES, 0.0, TypeError, "z0 must be a torch.Tensor, got ndarray"),
        (GOOD, torch.tensor([0.0, INF]), 0.0, ValueError, "times must be finite, got 1 NaN or"),
        (GOOD, TIMES.to(torch.complex64), 0.0, TypeError, "times must be real .*complex64"),
        (GOOD, TIMES.bool(), 0.0, TypeError, "times must be real numbers, got dtype torch.bool"),
        (GOOD, [0.0, 1.0], 0.0, TypeError, "times must be a torch.Tensor, got list"),
        (GOOD, torch.tensor(1.0), 0.0, ValueError, "times must have a time axis.*scalar"),
        (
            GOOD,
            torch.zeros(3, 2),
            0.0,
            ValueError,
            r"times must have .* broadcast to \(4,\), .* got shape \(3, 2\)",
        ),
        (GOOD[0], torch.zeros(4, 2), 0.0, ValueError, r"times must .* got shape \(4, 2\)"),
        (GOOD, TIMES, torch.zeros(3), ValueError, r"t0 must .* got shape \(3,\)"),
        (GOOD, TIMES, NAN, ValueError, "t0 must be finite"),
    ],
)
def test_flow_rejects_invalid_queries(name, z0, times, t0, error, message):
    with pytest.raises(error, match=message):
        build_flow(name)(z0, times, t0=t0)


def test_flow_field_rejects_other_latent_dim(name):
    with pytest.raises(ValueError, match="z must have a last axis of size 3, got shape"):
        build_flow(name).field(states(4, dim=2))


@pytest.mark.parametrize(
    ("dim", "error", "message"),
    [
        (0, ValueError, "latent_dim must be at least 1, got 0"),
        (2.0, TypeError, "latent_dim must be a whole number, got 2.0"),
        (True, TypeError, "latent_dim must be a whole number"),
    ],
)
def test_flow_rejects_invalid_latent_dim(name, dim, error, message):
    with pytest.raises(error, match=message):
        FLOWS[name](dim)
