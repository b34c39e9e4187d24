"""LinearFlow against the matrix exponential."""

import pytest
import torch
from helpers import states, stirred

from latent_morph.flows import LinearFlow, modes

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("eigenvectors", ["learned", "identity"])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_is_the_matrix_exponential(dim, spectrum, eigenvectors, stable):
    flow = stirred(
        LinearFlow(dim, spectrum=spectrum, eigenvectors=eigenvectors, stable=stable), amount=0.5
    )
    z, times = states(4, dim=dim), torch.tensor([-0.5, 0.0, 0.3, 2.0], dtype=torch.float64)
    a = flow.matrix()
    exact = torch.einsum("tij,nj->nti", torch.linalg.matrix_exp(a * times[:, None, None]), z)
    torch.testing.assert_close(flow(z, times), exact, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(flow.field(z), z @ a.mT, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_eigenvalues_are_those_of_the_matrix(spectrum):
    flow = stirred(LinearFlow(5, spectrum=spectrum))
    found = torch.linalg.eigvals(flow.matrix())
    pairs = torch.complex(flow.rates[: flow.n_pairs], flow.frequencies)
    singles = flow.rates[flow.n_pairs :].to(found.dtype)
    expected = torch.cat([pairs, pairs.conj(), singles])
    assert (found.imag.abs().max() > 1) == (spectrum == "complex")
    gaps = (found[:, None] - expected).abs()
    assert gaps.min(0).values.max() < 1e-8 and gaps.min(1).values.max() < 1e-8


@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_stable_stays_stable_whatever_the_parameters(spectrum):
    for seed in range(20):
        flow = stirred(LinearFlow(4, spectrum=spectrum, stable=True), amount=3.0, seed=seed)
        assert (flow.rates < 0).all()
        assert torch.linalg.eigvals(flow.matrix()).real.max() < 0


TIMES = torch.tensor([[0.3, -0.2, 1.1, 0.0], [0.5, 0.5, -1.0, 2.0], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize("form", ["shared", "own", "pairs"])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_gradients_by_hand_are_those_of_autograd(monkeypatch, dim, spectrum, form):
    flow = stirred(LinearFlow(dim, spectrum=spectrum), amount=0.5)
    times = TIMES.double()
    series = torch.tensor([2, 0, 2, 1]) if form == "pairs" else None
    elapsed = times if form == "own" else times[0]
    start = states(3, dim=dim).mT
    weights = [w.detach() for w in (flow.rates, flow.frequencies, flow.lower, flow.upper)]
    inputs = [value.clone().requires_grad_() for value in (start, *weights)]

    def follow(start, *weights):
        return modes.trajectory(*weights, elapsed=elapsed, series=series)(start)

    assert type(follow(*inputs).grad_fn).__name__ == "_RecordedBackward"
    torch.autograd.gradcheck(follow, inputs, check_forward_ad=True)
    torch.autograd.gradgradcheck(follow, inputs)
    towards = torch.randn_like(follow(*inputs))
    by_hand = torch.autograd.grad(follow(*inputs), inputs, towards)
    monkeypatch.setattr("latent_morph.by_hand.wants_plain", lambda: True)
    plain = torch.autograd.grad(follow(*inputs), inputs, towards)
    for one, other in zip(by_hand, plain, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-10)


def test_starts_made_where_nothing_is_recorded():
    flow = stirred(LinearFlow(4))
    with torch.inference_mode():
        z = states(3, dim=4) + 0
    path = flow(z, TIMES.double())
    path.sum().backward()
    torch.testing.assert_close(path, flow(z.clone(), TIMES.double()))
    assert all(weight.grad.isfinite().all() for weight in flow.parameters())


def test_modes_round_trip():
    flow, z = stirred(LinearFlow(5)), states(2, 3, dim=5)
    torch.testing.assert_close(flow.from_modes(flow.to_modes(z)), z)


def test_long_times_of_a_stable_flow_are_the_equilibrium_not_nan():
    flow = LinearFlow(4, stable=True)
    far = flow(torch.ones(4), torch.tensor([1e3, 1e6, 1e9]))
    assert far.isfinite().all() and far[-1].abs().max() < 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spectrum": "complx"}, "spectrum must be one of complex, real; got 'complx' .did you"),
        ({"eigenvectors": None}, "eigenvectors must be one of learned, identity; got None"),
        ({"horizon": 0.0}, "horizon must be positive and finite, got 0.0"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        LinearFlow(3, **options)
