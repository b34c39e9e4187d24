"""The laws of `Encoder`, for every encoder and for flows of every kind."""

import numpy as np
import pytest
import torch
from helpers import ALL_ENCODERS, DIM, TOLERANCE, build_encoder
from test_recurrence import reference

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
