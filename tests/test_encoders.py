"""Every encoder keeps its laws, whatever carries its state between observations."""

import numpy as np
import pytest
import torch
from helpers import ALL_ENCODERS, DIM, TOLERANCE, build_encoder
from test_recurrence import reference

from latent_morph.series import SeriesBatch, as_series, insert_rows

NAN = float("nan")
KINDS = ("linear", "morph", "euler", "dopri5")

encoders = pytest.mark.parametrize("name", ALL_ENCODERS)
flows = pytest.mark.parametrize("flow", KINDS)


def ragged():
    """Three series of unequal length, a late start, partly missing rows, and an empty row."""
    return as_series(
        [
            ([0.0, 0.3, 0.4, 0.9], [[1.0, -1.0], [NAN, 0.5], [NAN, NAN], [0.0, 2.0]]),
            ([0.2, 0.7], [[0.3, NAN], [1.5, -0.4]]),
            ([0.0, 0.1, 0.5, 0.5, 0.8], np.linspace(-1, 1, 10).reshape(5, 2)),
        ],
        dtype=torch.float64,
    )


def with_values(batch, values):
    return SeriesBatch(values, batch.times, batch.mask, batch.lengths)


def padded(batch, extra):
    return batch._pad_to(batch.n_times + extra)


def assert_same(a, b, tolerance=1e-12):
    for name, one, other in zip(a._fields, a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance, msg=lambda m, n=name: n + m)


def total(encoding, present):
    """One number that depends on everything an encoder says."""
    return (encoding.mean.sin() + encoding.std).sum() + encoding.states[present].cos().sum()


@encoders
@flows
def test_shapes_and_positive_spread(name, flow):
    batch, encoder = ragged(), build_encoder(name, flow)
    encoding = encoder(batch)
    assert encoding.mean.shape == encoding.std.shape == (3, DIM)
    assert encoding.states.shape == (3, 5, encoder.state_dim)
    assert (encoding.std > 0).all() and all(part.isfinite().all() for part in encoding)


@encoders
def test_what_is_not_observed_changes_neither_answers_nor_gradients(name):
    batch, encoder = ragged(), build_encoder(name)
    noise = torch.full_like(batch.values, 1e30)
    answers, gradients = [], []
    for values in (batch.values, torch.where(batch.mask, batch.values, noise)):
        values = values.clone().requires_grad_()
        encoding = encoder(with_values(batch, values))
        answers.append(encoding)
        wanted = [values, *encoder.parameters()]
        gradients.append(torch.autograd.grad(total(encoding, batch.present), wanted))
    assert_same(*answers, tolerance=0)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert not gradients[1][0][~batch.mask].any()
    assert gradients[1][0][batch.mask].all()  # and every observation counts


@encoders
@flows
def test_padding_changes_nothing(name, flow):
    batch, encoder = ragged(), build_encoder(name, flow)
    short, long = encoder(batch), encoder(padded(batch, 3))
    assert_same(short, long._replace(states=long.states[:, : batch.n_times]), 1e-10)
    for a, b in zip(
        *(
            torch.autograd.grad(total(e, b.present), encoder.parameters(), allow_unused=True)
            for e, b in ((short, batch), (long, padded(batch, 3)))
        ),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@encoders
@flows
@pytest.mark.parametrize(
    "when", [0.45, 0.5, -0.4, 1.7], ids=["gap", "on a row", "before", "after"]
)
def test_a_queried_row_changes_no_other_row_nor_the_posterior(name, flow, when):
    batch, encoder = ragged(), build_encoder(name, flow)
    plain = encoder(batch)
    asked, rows = insert_rows(batch, torch.full((3, 1), when, dtype=torch.float64))
    answer = encoder(asked)
    tolerance = TOLERANCE[flow] if flow != "linear" else 1e-10
    torch.testing.assert_close(plain.mean, answer.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(plain.std, answer.std, rtol=0, atol=tolerance)
    for case, length in enumerate(batch.lengths):
        others = [k for k in range(int(length) + 1) if k != rows[case, 0]]
        torch.testing.assert_close(
            plain.states[case, :length], answer.states[case, others], rtol=0, atol=tolerance
        )


@encoders
@flows
def test_batch_mates_do_not_matter(name, flow):
    batch, encoder = ragged(), build_encoder(name, flow)
    together, alone = encoder(batch), encoder(batch[[1]].trim())
    # Adaptive solvers take one step for the whole batch: equal to their tolerance only.
    tolerance = TOLERANCE[flow]
    torch.testing.assert_close(together.mean[[1]], alone.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(together.states[[1], :2], alone.states, rtol=0, atol=tolerance)


@encoders
@flows
def test_nothing_observed_is_a_finite_answer_that_no_query_moves(name, flow):
    empty = as_series([([0.0, 0.6], [[NAN, NAN]] * 2)], dtype=torch.float64)
    encoder = build_encoder(name, flow)
    plain = encoder(empty)
    assert all(part.isfinite().all() for part in plain)
    asked, _ = insert_rows(empty, torch.tensor([[-1.0, 2.0]], dtype=torch.float64))
    torch.testing.assert_close(plain.mean, encoder(asked).mean, rtol=0, atol=1e-10)


@encoders
def test_zero_is_a_value_and_no_gap(name):
    encoder = build_encoder(name)
    zero = as_series([([0.0, 0.5], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    missing = as_series([([0.0, 0.5], [[1.0, 1.0], [NAN, 1.0]])], dtype=torch.float64)
    assert (encoder(zero).mean - encoder(missing).mean).abs().max() > 1e-3


@encoders
def test_the_time_between_observations_matters(name):
    encoder = build_encoder(name)
    near = as_series([([0.0, 0.1], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    far = as_series([([0.0, 0.9], [[1.0, 1.0], [0.0, 1.0]])], dtype=torch.float64)
    assert (encoder(near).mean - encoder(far).mean).abs().max() > 1e-3


@encoders
def test_the_posterior_belongs_to_time_zero(name):
    """Shifting a series in time moves the belief about z0, as the way to time 0 grows."""
    encoder, batch = build_encoder(name), ragged()
    later = SeriesBatch(batch.values, batch.times + 0.5, batch.mask, batch.lengths)
    assert (encoder(batch).mean - encoder(later).mean).abs().max() > 1e-3


@encoders
def test_refuses_other_channels(name):
    with pytest.raises(ValueError, match="batch must have 5 channels, got 2"):
        build_encoder(name, n_channels=5)(ragged())


@pytest.mark.parametrize("name", ["morph", "morph-pooled"])
def test_closed_form_equals_stepping_through_the_rows(name, monkeypatch):
    """States and gradients, against a loop that autograd records step by step."""

    batch, results = ragged(), []
    for replaced in (False, True):
        if replaced:
            monkeypatch.setattr("latent_morph.encoders.morph.linear_recurrence", reference)
        encoder = build_encoder(name)
        encoding = encoder(batch)
        total(encoding, batch.present).backward()
        results.append([*encoding, *(p.grad for p in encoder.parameters())])
    for ours, wanted in zip(*results, strict=True):
        torch.testing.assert_close(ours, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("gap", [1e-6, 1e6])
def test_closed_form_stays_finite_over_long_series_and_gaps(gap):
    times = gap * np.arange(10_000)
    batch = as_series([(times, np.ones((10_000, 2)))], dtype=torch.float64)
    encoder = build_encoder("morph")
    encoding = encoder(batch)
    total(encoding, batch.present).backward()
    assert all(part.isfinite().all() for part in encoding)
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
