"""The laws of `Flow`, for every flow there is, and what every flow answers to bad input."""

import pickle

import pytest
import torch
from helpers import ALL_FLOWS, CLOSED_FORMS, DIM, TOLERANCE, build_flow, states

from latent_morph.flows import FLOWS

pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.parametrize("name", ALL_FLOWS)]


def close(left, right, tolerance):
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


def test_start(name):
    flow, z = build_flow(name), states(4)
    path = flow(z, torch.tensor([2.5]), t0=2.5)
    close(path[:, 0], z, 1e-12)


def test_compose(name):
    flow, z = build_flow(name), states(4)
    s, t = torch.tensor([0.4]), torch.tensor([0.3, 0.7])
    close(flow(flow(z, s)[:, 0], t), flow(z, s + t), TOLERANCE[name])


def test_order_permuting_and_repeating_times(name):
    flow, z = build_flow(name), states(4)
    times = torch.tensor([0.1, 0.5, 0.7, 1.0])
    order = torch.tensor([2, 0, 0, 3, 1])
    close(flow(z, times[order]), flow(z, times)[:, order], 1e-12)


def test_tangent(name):
    flow, z, h = build_flow(name), states(4), 0.02
    before, here, after = flow(z, torch.tensor([0.5 - h, 0.5, 0.5 + h])).unbind(-2)
    close((after - before) / (2 * h), flow.field(here), max(5e-2, 5 * TOLERANCE[name]))


def test_times_before_the_start(name):
    flow, z = build_flow(name), states(4)
    there_and_back = flow(flow(z, torch.tensor([0.5]))[:, 0], torch.tensor([-0.5, 0.2]))
    close(there_and_back[:, 0], z, TOLERANCE[name])
    close(there_and_back[:, 1], flow(z, torch.tensor([0.7]))[:, 0], TOLERANCE[name])


def test_times_of_each_series(name):
    flow, z = build_flow(name), states(2, 3)
    times = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) * 1.5 - 0.5
    together = flow(z, times)
    alone = torch.stack(
        [torch.stack([flow(z[i, j], times[i, j]) for j in range(3)]) for i in range(2)]
    )
    assert together.shape == (2, 3, 5, DIM)
    # Adaptive solvers take one error norm over the batch: batch-mates matter, within tolerance.
    close(together, alone, 1e-12 if name in CLOSED_FORMS else TOLERANCE[name])


def test_one_time_a_series_needs_no_union(name):
    flow, z = build_flow(name), states(6)
    times = torch.linspace(-0.5, 1.0, 6)
    each = torch.stack([flow(z[i], times[i : i + 1])[0] for i in range(6)])
    close(flow(z, times.unsqueeze(-1))[:, 0], each, TOLERANCE[name])


def test_stepping_through_known_gaps(name):
    flow, z = build_flow(name), states(3)
    gaps = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    step = flow.stepper(gaps)
    for k in (2, 0):
        close(step(k, z), flow(z, gaps[k].unsqueeze(-1)).squeeze(-2), 1e-12)


def test_start_time_of_each_series(name):
    flow, z = build_flow(name), states(3)
    starts = torch.tensor([0.0, 0.5, -1.0])
    shifted = flow(z, torch.tensor([0.5, 1.0]), t0=starts)
    close(shifted, flow(z, torch.tensor([0.5, 1.0]) - starts.unsqueeze(-1)), TOLERANCE[name])


def test_samples_share_the_times_of_their_series(name):
    flow, z = build_flow(name), states(2, 3)
    times = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    both = flow(z, times)
    assert both.shape == (2, 3, 4, DIM)
    close(both[1], flow(z[1], times), TOLERANCE[name])


@pytest.mark.parametrize("own_times", [True, False])
def test_rows_that_are_not_wanted_are_zero_and_change_nothing(name, own_times):
    flow, z = build_flow(name), states(2, 3)
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(*((3, 4) if own_times else (4,)), generator=generator)
    wanted = torch.rand(2, 3, 4, generator=generator) < 0.5
    assert wanted.any() and not wanted.all()
    found, everything = flow(z, times, query_mask=wanted), flow(z, times)
    close(found[wanted], everything[wanted], 1e-12 if name in CLOSED_FORMS else TOLERANCE[name])
    assert (found[~wanted] == 0).all()
    assert (flow(z, times, query_mask=torch.zeros(4, dtype=torch.bool)) == 0).all()
    close(flow(z, times, query_mask=torch.ones(4, dtype=torch.bool)), everything, 0.0)
    one = flow(
        z[0, 0], times[..., :4].reshape(-1)[:4], query_mask=torch.arange(4) < 2
    )  # no batch axes
    assert one.shape == (4, z.shape[-1]) and (one[2:] == 0).all() and (one[:2] != 0).any()


def test_a_mask_of_another_kind_or_shape_is_refused(name):
    flow, z, times = build_flow(name), states(3), torch.rand(4)
    with pytest.raises(TypeError, match="query_mask must be a boolean tensor, got torch.float64"):
        flow(z, times, query_mask=torch.ones(4))
    words = r"query_mask must .* broadcast to \(3, 4\), .* got shape \(2, 4\)"
    with pytest.raises(ValueError, match=words):
        flow(z, times, query_mask=torch.ones(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_no_times(name, batch):
    assert build_flow(name)(states(*batch), torch.zeros(0)).shape == (*batch, 0, DIM)


def test_no_series(name):
    assert build_flow(name)(states(0), torch.zeros(5)).shape == (0, 5, DIM)


def test_epoch_seconds_keep_their_precision_in_float32(name):
    flow, z = build_flow(name).float(), states(2).float()
    now = 1.7e9
    late = flow(z, torch.tensor([now + 0.25, now + 0.5], dtype=torch.float64), t0=now)
    close(late, flow(z, torch.tensor([0.25, 0.5])), 1e-4)


def test_gradients_reach_every_parameter(name):
    flow, z = build_flow(name), states(4).requires_grad_()
    flow(z, torch.tensor([0.3, 1.0])).square().sum().backward()
    silent = [
        key
        for key, p in flow.named_parameters()
        if p.numel() and (p.grad is None or not p.grad.any())
    ]
    assert not silent
    assert z.grad is not None and z.grad.any()


def test_gradcheck(name):
    if name == "scipy_solver":
        # Its gradients come from integrating the adjoint: test_solver holds them to tolerance.
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


def test_pickle(name):
    flow, z, times = build_flow(name), states(4), torch.tensor([0.3, 1.0])
    close(pickle.loads(pickle.dumps(flow))(z, times), flow(z, times), 0.0)


def test_a_seed_fixes_the_start_and_touches_no_generator(name):
    options = {} if name == "linear" else {"seed": 7}
    state = torch.random.get_rng_state()
    first, second = FLOWS[name](DIM, **options), FLOWS[name](DIM, **options)
    assert torch.equal(state, torch.random.get_rng_state())
    for left, right in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_sizes(name, dim):
    flow = build_flow(name, dim=dim)
    assert flow(states(4, dim=dim), torch.tensor([0.1, 0.2])).isfinite().all()


GOOD, TIMES = states(4), torch.tensor([0.0, 1.0])
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("z0", "times", "t0", "error", "words"),
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
def test_bad_queries(name, z0, times, t0, error, words):
    with pytest.raises(error, match=words):
        build_flow(name)(z0, times, t0=t0)


def test_bad_fields(name):
    with pytest.raises(ValueError, match="z must have a last axis of size 3, got shape"):
        build_flow(name).field(states(4, dim=2))


@pytest.mark.parametrize(
    ("dim", "error", "words"),
    [
        (0, ValueError, "latent_dim must be at least 1, got 0"),
        (2.0, TypeError, "latent_dim must be a whole number, got 2.0"),
        (True, TypeError, "latent_dim must be a whole number"),
    ],
)
def test_bad_sizes(name, dim, error, words):
    with pytest.raises(error, match=words):
        FLOWS[name](dim)
