"""The laws of `Encoder`, for every encoder and for flows of every kind."""

import numpy as np
import pytest
import torch
from helpers import ALL_ENCODERS, DIM, TOLERANCE, build_encoder
from test_recurrence import reference

from latent_morph.encoders import ENCODERS, AttentionEncoder, GRUDecayEncoder
from latent_morph.encoders.attention import average_observed
from latent_morph.series import SeriesBatch, as_series, insert_rows

NAN = float("nan")
FLOW_NAMES = ("linear", "morph", "euler", "dopri5")

encoders = pytest.mark.parametrize("name", ALL_ENCODERS)
flows = pytest.mark.parametrize("flow", FLOW_NAMES)


def ragged_batch():
    """Three series of unequal length, a late start, partly missing rows, and an empty row."""
    return as_series(
        [
            ([0.0, 0.3, 0.4, 0.9], [[1.0, -1.0], [NAN, 0.5], [NAN, NAN], [0.0, 2.0]]),
            ([0.2, 0.7], [[0.3, NAN], [1.5, -0.4]]),
            ([0.0, 0.1, 0.5, 0.5, 0.8], np.linspace(-1, 1, 10).reshape(5, 2)),
        ],
        dtype=torch.float64,
    )


def replace_values(batch, values):
    return SeriesBatch(values, batch.times, batch.mask, batch.lengths)


def pad_batch(batch, extra):
    return batch._pad_to(batch.n_times + extra)


def assert_equal_encodings(a, b, tolerance=1e-12):
    for name, one, other in zip(a._fields, a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


def reduce_encoding(encoding, present):
    """One number that depends on every output of an encoder."""
    return (encoding.mean.sin() + encoding.std).sum() + encoding.states[present].cos().sum()


@encoders
@flows
def test_encoder_shapes_and_positive_std(name, flow):
    batch, encoder = ragged_batch(), build_encoder(name, flow)
    encoding = encoder(batch)
    assert encoding.mean.shape == encoding.std.shape == (3, DIM)
    assert encoding.states.shape == (3, 5, encoder.state_dim)
    assert (encoding.std > 0).all() and all(part.isfinite().all() for part in encoding)


@encoders
def test_encoder_ignores_unobserved_values(name):
    batch, encoder = ragged_batch(), build_encoder(name)
    noise = torch.full_like(batch.values, 1e30)
    encodings, gradients = [], []
    for values in (batch.values, torch.where(batch.mask, batch.values, noise)):
        values = values.clone().requires_grad_()
        encoding = encoder(replace_values(batch, values))
        encodings.append(encoding)
        inputs = [values, *encoder.parameters()]
        gradients.append(torch.autograd.grad(reduce_encoding(encoding, batch.present), inputs))
    assert_equal_encodings(*encodings, tolerance=0)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not gradients[1][0][~batch.mask].any()
    assert gradients[1][0][batch.mask].all()  # every observation has an influence


@encoders
@flows
def test_encoder_ignores_padding(name, flow):
    batch, encoder = ragged_batch(), build_encoder(name, flow)
    short, long = encoder(batch), encoder(pad_batch(batch, 3))
    assert_equal_encodings(short, long._replace(states=long.states[:, : batch.n_times]), 1e-10)
    for a, b in zip(
        *(
            torch.autograd.grad(
                reduce_encoding(e, b.present), encoder.parameters(), allow_unused=True
            )
            for e, b in ((short, batch), (long, pad_batch(batch, 3)))
        ),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@encoders
@flows
@pytest.mark.parametrize(
    "when", [0.45, 0.5, -0.4, 1.7], ids=["gap", "on a row", "before", "after"]
)
def test_encoder_query_row_changes_nothing_else(name, flow, when):
    batch, encoder = ragged_batch(), build_encoder(name, flow)
    plain = encoder(batch)
    queried, rows = insert_rows(batch, torch.full((3, 1), when, dtype=torch.float64))
    with_query = encoder(queried)
    tolerance = TOLERANCE[flow] if flow != "linear" else 1e-10
    torch.testing.assert_close(plain.mean, with_query.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(plain.std, with_query.std, rtol=0, atol=tolerance)
    for case, length in enumerate(batch.lengths):
        others = [k for k in range(int(length) + 1) if k != rows[case, 0]]
        torch.testing.assert_close(
            plain.states[case, :length], with_query.states[case, others], rtol=0, atol=tolerance
        )


@encoders
@flows
def test_encoder_is_independent_of_batch(name, flow):
    batch, encoder = ragged_batch(), build_encoder(name, flow)
    together, alone = encoder(batch), encoder(batch[[1]].trim())
    # Adaptive solvers choose one step for the whole batch: equal to tolerance only.
    tolerance = TOLERANCE[flow]
    torch.testing.assert_close(together.mean[[1]], alone.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(together.states[[1], :2], alone.states, rtol=0, atol=tolerance)


@encoders
@flows
def test_encoder_without_observations_is_finite_and_ignores_queries(name, flow):
    empty = as_series([([0.0, 0.6], [[NAN, NAN]] * 2)], dtype=torch.float64)
    encoder = build_encoder(name, flow)
    plain = encoder(empty)
    assert all(part.isfinite().all() for part in plain)
    queried, _ = insert_rows(empty, torch.tensor([[-1.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(plain.mean, encoder(queried).mean, rtol=0, atol=1e-10)


@encoders
def test_encoder_distinguishes_zero_from_missing(name):
    encoder = build_encoder(name)
    zero = as_series([([0.0, 0.5], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    missing = as_series([([0.0, 0.5], [[1.0, 1.0], [NAN, 1.0]])], dtype=torch.float64)
    assert (encoder(zero).mean - encoder(missing).mean).abs().max() > 1e-3


@encoders
def test_encoder_depends_on_time_gaps(name):
    encoder = build_encoder(name)
    near = as_series([([0.0, 0.1], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    far = as_series([([0.0, 0.9], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    assert (encoder(near).mean - encoder(far).mean).abs().max() > 1e-3


@encoders
def test_encoder_posterior_is_at_time_zero(name):
    """Shifting a series in time changes the posterior of z0, which lies further back."""
    encoder, batch = build_encoder(name), ragged_batch()
    later = SeriesBatch(batch.values, batch.times + 0.5, batch.mask, batch.lengths)
    assert (encoder(batch).mean - encoder(later).mean).abs().max() > 1e-3


@encoders
def test_encoder_rejects_other_channels(name):
    with pytest.raises(ValueError, match="batch must have 5 channels, got 2"):
        build_encoder(name, n_channels=5)(ragged_batch())


@encoders
def test_encoder_in_float32_is_close_to_float64(name):
    batch, encoder = ragged_batch(), build_encoder(name)
    double = encoder(batch)
    single = encoder.float()(batch.to(dtype=torch.float32))
    for part, expected in zip(single, double, strict=True):
        assert part.dtype == torch.float32
        torch.testing.assert_close(part.double(), expected, rtol=1e-4, atol=1e-5)


@encoders
def test_encoder_state_dict_determines_encoding(name):
    batch, encoder = ragged_batch(), build_encoder(name)
    state = {key: value.clone() for key, value in encoder.state_dict().items()}
    expected = encoder(batch)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(0.5)
    assert (encoder(batch).mean - expected.mean).abs().max() > 1e-6
    encoder.load_state_dict(state)
    assert_equal_encodings(encoder(batch), expected, tolerance=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_recipe_takes_three_sizes(name):
    encoding = ENCODERS[name](2, DIM, 8).double().eval()(ragged_batch())
    assert encoding.mean.shape == (3, DIM) and encoding.states.shape[:2] == (3, 5)


@pytest.mark.parametrize("name", ["morph", "morph-pooled"])
def test_morph_encoder_equals_step_by_step_reference(name, monkeypatch):
    """States and gradients, against a loop that autograd records step by step."""

    batch, results = ragged_batch(), []
    for replaced in (False, True):
        if replaced:
            monkeypatch.setattr("latent_morph.encoders.morph.linear_recurrence", reference)
        encoder = build_encoder(name)
        encoding = encoder(batch)
        reduce_encoding(encoding, batch.present).backward()
        results.append([*encoding, *(p.grad for p in encoder.parameters())])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("gap", [1e-6, 1e6])
def test_morph_encoder_long_series_and_extreme_gaps_stay_finite(gap):
    times = gap * np.arange(10_000)
    batch = as_series([(times, np.ones((10_000, 2)))], dtype=torch.float64)
    encoder = build_encoder("morph")
    encoding = encoder(batch)
    reduce_encoding(encoding, batch.present).backward()
    assert all(part.isfinite().all() for part in encoding)
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


# GRUDecayEncoder


def as_rows(batch):
    """Values, times and mask, time-major."""
    return (part.transpose(0, 1) for part in (batch.values, batch.times, batch.mask))


def test_gru_decay_fills_missing_values_by_decay_towards_the_mean():
    batch = as_series(
        [
            (
                [0.0, 0.5, 2.0, 2.5, 1e3],
                [[2.0, NAN], [NAN, NAN], [-1.0, 3.0], [NAN, NAN], [NAN, 1.0]],
            )
        ],
        dtype=torch.float64,
    )
    sweep = build_encoder("gru-decay").forward_sweep
    with torch.no_grad():
        sweep.value_decay.rates.copy_(torch.tensor([0.7, 3.0]))
        sweep.value_decay.offsets.copy_(torch.tensor([0.1, -0.5]))
    filled = sweep.fill_missing(*as_rows(batch)).squeeze(1)
    expected = [
        [2.0, 0.0],  # a channel that was never observed reads as the mean
        [2.0 * np.exp(-0.7 * 0.5 - 0.1), 0.0],
        [-1.0, 3.0],
        [-np.exp(-0.7 * 0.5 - 0.1), 3.0 * np.exp(-3.0 * 0.5 + 0.5)],
        [0.0, 1.0],  # and so does one that was observed long ago
    ]
    torch.testing.assert_close(filled, torch.tensor(expected, dtype=torch.float64))


def test_gru_decay_never_grows():
    """A negative rate, or a negative offset at a small age, keeps the last value."""
    batch = as_series([([0.0, 0.5], [[2.0, 3.0], [NAN, NAN]])], dtype=torch.float64)
    sweep = build_encoder("gru-decay").forward_sweep
    with torch.no_grad():
        sweep.value_decay.rates.copy_(torch.tensor([-4.0, 1.0]))
        sweep.value_decay.offsets.copy_(torch.tensor([0.0, -0.5]))
    filled = sweep.fill_missing(*as_rows(batch))
    torch.testing.assert_close(filled[1], batch.values[:, 0])


def test_gru_decay_state_at_query_is_last_state_decayed():
    encoder, batch = build_encoder("gru-decay-forward"), ragged_batch()
    query = torch.tensor([[0.6, 5.0]] * 3, dtype=torch.float64)
    queried, rows = insert_rows(batch, query)
    decay = encoder.forward_sweep.state_decay
    states = encoder(queried).states[0]
    # The row at 0.4 is without an observation: the last state is the one at 0.3.
    for row, since, age in ((rows[0, 0], 1, 0.3), (rows[0, 1], 4, 5.0 - 0.9)):
        factor = torch.exp(-(decay.rates * age + decay.offsets).clamp(min=0))
        torch.testing.assert_close(states[row], states[since] * factor)


def test_gru_decay_equals_plain_loop():
    encoder, batch = build_encoder("gru-decay"), ragged_batch()
    encoding = encoder(batch)
    for case, length in enumerate(batch.lengths.tolist()):
        times, ends, states = batch.times[case], [], []
        for sweep, order in (
            (encoder.forward_sweep, range(length)),
            (encoder.backward_sweep, range(length - 1, -1, -1)),
        ):
            state, last_row, last = torch.zeros(4, dtype=torch.float64), None, {}
            path = {}
            for k in order:
                age = 0.0 if last_row is None else (times[k] - times[last_row]).abs()
                rate = sweep.state_decay.rates * age + sweep.state_decay.offsets
                path[k] = state * torch.exp(-rate.clamp(min=0))
                inputs = []
                for channel in range(2):
                    if batch.mask[case, k, channel]:
                        last[channel] = k
                    j = last.get(channel)
                    if j is None:
                        inputs.append(torch.zeros((), dtype=torch.float64))
                    elif j == k:
                        inputs.append(batch.values[case, k, channel])
                    else:
                        decay = sweep.value_decay
                        gap = (times[k] - times[j]).abs()
                        rate = decay.rates[channel] * gap + decay.offsets[channel]
                        inputs.append(
                            batch.values[case, j, channel] * torch.exp(-rate.clamp(min=0))
                        )
                if batch.mask[case, k].any():
                    row = torch.cat([torch.stack(inputs), batch.mask[case, k].double()])
                    path[k] = state = sweep.cell(row, path[k])
                    last_row = k
            ends.append(state)
            states.append(torch.stack([path[k] for k in range(length)]))
        first = times[batch.mask[case].any(-1)][:1]
        mean, _ = encoder.posterior(torch.cat([*ends, first])).chunk(2)
        torch.testing.assert_close(encoding.mean[case], mean)
        torch.testing.assert_close(encoding.states[case, :length], torch.cat(states, dim=-1))


@pytest.mark.parametrize("gap", [1e-6, 1e6])
@pytest.mark.parametrize("name", ["gru-decay", "attention"])
def test_encoders_of_the_literature_stay_finite_at_extreme_gaps(name, gap):
    times = gap * np.arange(200)
    batch = as_series([(times, np.ones((200, 2)))], dtype=torch.float32)
    encoder = build_encoder(name).float()
    encoding = encoder(batch)
    reduce_encoding(encoding, batch.present).backward()
    assert all(part.isfinite().all() for part in encoding)
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


# AttentionEncoder


def test_attention_averages_are_a_softmax_per_channel_over_its_observed_rows():
    batch, encoder = ragged_batch(), build_encoder("attention")
    weights = encoder.attention(encoder.reference_times, batch.times)
    averages, shares = average_observed(weights, batch.values, batch.mask)
    scores = weights.log().unsqueeze(-1)  # (N, K, R, T, 1)
    mask = batch.mask[:, None, None]
    probabilities = scores.masked_fill(~mask, -torch.inf).softmax(-2)
    torch.testing.assert_close(averages, (probabilities * batch.values[:, None, None]).sum(-2))
    row_mask = mask.any(-1, keepdim=True)
    row_probabilities = scores.masked_fill(~row_mask, -torch.inf).softmax(-2)
    torch.testing.assert_close(shares, (row_probabilities * mask).sum(-2))


def test_attention_gives_zeros_for_a_channel_without_observations():
    batch = as_series([([0.0, 0.6], [[2.0, NAN], [5.0, NAN]])], dtype=torch.float64)
    weights = torch.rand(1, 2, 3, 2, dtype=torch.float64) + 0.1
    averages, shares = average_observed(weights, batch.values, batch.mask)
    assert not averages[..., 1].any() and not shares[..., 1].any()
    expected = (weights @ torch.tensor([2.0, 5.0], dtype=torch.float64)) / weights.sum(-1)
    torch.testing.assert_close(averages[..., 0], expected)
    torch.testing.assert_close(shares[..., 0], torch.ones_like(expected))


def test_attention_of_one_observation_is_its_value_however_little_its_weight():
    """Even if another channel is observed where the weight is the largest possible."""
    values = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])
    mask = torch.tensor([[[True, False], [False, True]]])
    weights = torch.tensor([-30.0, 30.0]).exp().expand(1, 1, 1, 2)
    averages, _ = average_observed(weights, values, mask)
    torch.testing.assert_close(averages.flatten(), torch.tensor([3.0, 4.0]))


def test_attention_starts_local_in_time():
    torch.manual_seed(0)
    encoder = AttentionEncoder(1, DIM)
    weights = encoder.attention(encoder.reference_times, encoder.reference_times[None])[0]
    assert (weights.argmax(-1) - torch.arange(32)).abs().max() <= 2


def test_attention_scores_are_bounded():
    encoder = build_encoder("attention").float()
    with torch.no_grad():
        encoder.attention.query.weight.mul_(1e4)
    weights = encoder.attention(encoder.reference_times, torch.linspace(-9, 9, 50)[None])
    assert weights.min() >= np.exp(-30.001) and weights.max() <= np.exp(30.001)
    batch = ragged_batch().to(dtype=torch.float32)
    assert all(part.isfinite().all() for part in encoder(batch))


def test_attention_states_are_linear_between_reference_times_and_constant_outside():
    encoder, batch = build_encoder("attention"), ragged_batch()[[2]]
    query = torch.tensor([[-3.0, 0.0, 0.25, 0.35, 0.5, 0.75, 1.0, 4.0]], dtype=torch.float64)
    queried, rows = insert_rows(batch, query)
    before, zero, first, inside, second, third, one, after = encoder(queried).states[0, rows[0]]
    torch.testing.assert_close(inside, 0.6 * first + 0.4 * second)
    torch.testing.assert_close(before, zero)
    torch.testing.assert_close(after, one)
    assert (first - second).abs().max() > 1e-3 and (third - one).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("encoder", "options", "match"),
    [
        (AttentionEncoder, {"n_reference": 1}, "n_reference must be at least 2, got 1"),
        (AttentionEncoder, {"heads": 0}, "heads must be at least 1, got 0"),
        (AttentionEncoder, {"embed_dim": 1}, "embed_dim must be at least 2, got 1"),
        (AttentionEncoder, {"heads": 3}, "embed_dim must be a multiple of heads = 3, got 32"),
        (AttentionEncoder, {"hidden_dim": 0}, "hidden_dim must be at least 1, got 0"),
        (GRUDecayEncoder, {"hidden_dim": 0}, "hidden_dim must be at least 1, got 0"),
    ],
)
def test_encoders_of_the_literature_reject_sizes(encoder, options, match):
    with pytest.raises(ValueError, match=match):
        encoder(2, DIM, **options)
