"""LinearFlow against the matrix exponential."""

import pytest
import torch
from helpers import perturb, states

from latent_morph.flows import LinearFlow

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("eigenvectors", ["learned", "identity"])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_linear_flow_equals_matrix_exponential(dim, spectrum, eigenvectors, stable):
    flow = perturb(
        LinearFlow(dim, spectrum=spectrum, eigenvectors=eigenvectors, stable=stable), amount=0.5
    )
    z, times = states(4, dim=dim), torch.tensor([-0.5, 0.0, 0.3, 2.0], dtype=torch.float64)
    a = flow.matrix()
    exact = torch.einsum("tij,nj->nti", torch.linalg.matrix_exp(a * times[:, None, None]), z)
    torch.testing.assert_close(flow(z, times), exact, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(flow.field(z), z @ a.mT, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_linear_flow_eigenvalues_match_matrix(spectrum):
    flow = perturb(LinearFlow(5, spectrum=spectrum))
    eigenvalues = torch.linalg.eigvals(flow.matrix())
    pairs = torch.complex(flow.rates[: flow.n_pairs], flow.frequencies)
    singles = flow.rates[flow.n_pairs :].to(eigenvalues.dtype)
    expected = torch.cat([pairs, pairs.conj(), singles])
    assert (eigenvalues.imag.abs().max() > 1) == (spectrum == "complex")
    gaps = (eigenvalues[:, None] - expected).abs()
    assert gaps.min(0).values.max() < 1e-8 and gaps.min(1).values.max() < 1e-8


@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_linear_flow_stable_for_any_parameters(spectrum):
    for seed in range(20):
        flow = perturb(LinearFlow(4, spectrum=spectrum, stable=True), amount=3.0, seed=seed)
        assert (flow.rates < 0).all()
        # Eigenvalues of a rounded matrix are off by as much as Bauer and Fike allow.
        matrix, vectors = flow.matrix(), flow.basis().matrix
        rounding = 2.3e-16 * torch.linalg.norm(matrix) * torch.linalg.cond(vectors)
        assert torch.linalg.eigvals(matrix).real.max() < rounding


TIMES = torch.tensor([[0.3, -0.2, 1.1, 0.0], [0.5, 0.5, -1.0, 2.0], [0.1, 0.2, 0.3, 0.4]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spectrum", ["complex", "real"])
def test_linear_flow_gradcheck(spectrum, shared, masked):
    flow, z = perturb(LinearFlow(3, spectrum=spectrum)), states(2).requires_grad_()
    times = (TIMES[0] if shared else TIMES[:2]).double()
    mask = torch.rand(2, 4, generator=torch.Generator().manual_seed(0)) < 0.5

    names = [name for name, _ in flow.named_parameters()]
    options = {"query_mask": mask if masked else None}

    def run(z, *weights):
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(flow, named, (z, times), options)

    inputs = (z, *flow.parameters())
    assert torch.autograd.gradcheck(run, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_linear_flow_freeze_keeps_trajectory():
    flow, z = perturb(LinearFlow(5)), states(2, 3, dim=5)
    before = flow(z, TIMES[0].double())
    flow.freeze()
    torch.testing.assert_close(flow(z, TIMES[0].double()), before)


def test_linear_flow_modes_round_trip():
    flow, z = perturb(LinearFlow(5)), states(2, 3, dim=5)
    torch.testing.assert_close(flow.basis().from_modes(flow.basis().to_modes(z)), z)


def test_linear_flow_stable_at_long_times_reaches_equilibrium():
    flow = LinearFlow(4, stable=True)
    far = flow(torch.ones(4), torch.tensor([1e3, 1e6, 1e9]))
    assert far.isfinite().all() and far[-1].abs().max() < 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spectrum": "complx"}, "spectrum must be one of complex, real, got 'complx' .did you"),
        ({"eigenvectors": None}, "eigenvectors must be one of learned, identity, got None"),
        ({"horizon": 0.0}, "horizon must be positive and finite, got 0.0"),
    ],
)
def test_linear_flow_rejects_invalid_options(options, message):
    with pytest.raises(ValueError, match=message):
        LinearFlow(3, **options)
