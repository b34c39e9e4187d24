"""Losses equal the textbook formulas over observed values, and ignore all others."""

import pytest
import torch
from test_encoders import pad_batch, ragged_batch, replace_values
from test_models import build
from torch import distributions
from torch.nn import functional as F

from latent_morph.encoders import Encoding
from latent_morph.losses import (
    LatentODELoss,
    cross_entropy,
    kl_from_standard_normal,
    negative_log_likelihood,
)
from latent_morph.models.decoders import Emission


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def test_negative_log_likelihood_is_mean_over_observed_values():
    mean, values, std = random(2, 3, 2), random(2, 3, 2, seed=1), torch.tensor([0.5, 2.0]).double()
    mask = torch.tensor([[[1, 1], [0, 1], [0, 0]], [[1, 0], [0, 0], [0, 0]]]).bool()
    each = -distributions.Normal(mean, std).log_prob(values)
    expected = torch.stack([each[i][mask[i]].mean() for i in range(2)])
    torch.testing.assert_close(
        negative_log_likelihood(Emission(mean, std), values, mask), expected
    )


def test_negative_log_likelihood_without_observations_is_zero():
    std = torch.ones(2, requires_grad=True)
    emission = Emission(torch.zeros(1, 3, 2, requires_grad=True), std)
    mask = torch.zeros(1, 3, 2, dtype=torch.bool)
    loss = negative_log_likelihood(emission, torch.full((1, 3, 2), 1e30), mask)
    loss.sum().backward()
    assert loss.tolist() == [0.0]
    assert not emission.mean.grad.any() and not std.grad.any()


def test_kl_from_standard_normal_matches_torch():
    encoding = Encoding(random(4, 3), random(4, 3, seed=1).exp(), random(4, 1, 1))
    posterior = distributions.Normal(encoding.mean, encoding.std)
    expected = distributions.kl_divergence(posterior, distributions.Normal(0.0, 1.0)).sum(-1)
    torch.testing.assert_close(kl_from_standard_normal(encoding), expected)


def test_cross_entropy_of_series_and_points():
    logits, labels = random(2, 3, 4), torch.tensor([[0, 3, -1], [2, -1, -1]])
    factors = torch.tensor([1.0, 2.0, 3.0, 4.0]).double()
    per_case = cross_entropy(logits, labels, None)
    torch.testing.assert_close(per_case[0], F.cross_entropy(logits[0, :2], labels[0, :2]))
    torch.testing.assert_close(per_case[1], F.cross_entropy(logits[1, :1], labels[1, :1]))
    weighted = cross_entropy(logits[:, 0], labels[:, 0], factors)
    plain = F.cross_entropy(logits[:, 0], labels[:, 0], reduction="none")
    torch.testing.assert_close(weighted, plain * factors[labels[:, 0]])
    assert cross_entropy(logits, torch.full((2, 3), -1), None).tolist() == [0.0, 0.0]


def test_latent_ode_loss_is_weighted_sum_of_parts():
    model, batch, labels = build("series"), ragged_batch(), torch.tensor([0, 3, -1])
    output = model(batch)
    function = LatentODELoss(reconstruction_weight=0.5, kl_weight=2.0, classification_weight=3.0)
    loss = function.evaluate(output, batch, labels, kl_factor=0.25)
    nll = negative_log_likelihood(output.emission, batch.values, batch.mask)
    kl = kl_from_standard_normal(output.encoding)
    entropy = cross_entropy(output.logits, labels, None)
    n_values = torch.tensor([5, 3, 10])  # observed values per case of `ragged_batch`
    each = 0.5 * nll + 2.0 * 0.25 * kl / n_values + 3.0 * entropy
    torch.testing.assert_close(loss.total, each.mean())
    torch.testing.assert_close(loss.parts["nll"], nll.detach().mean())
    torch.testing.assert_close(loss.parts["kl"], kl.detach().mean())
    torch.testing.assert_close(loss.parts["cross_entropy"], entropy.detach().mean())
    factors = torch.tensor([2.0, 1.0, 0.0])
    weighted = function.evaluate(output, batch, labels, kl_factor=0.25, weight=factors)
    torch.testing.assert_close(weighted.total, (2 * each[0] + each[1]) / 3)
    torch.testing.assert_close(weighted.parts["nll"], ((2 * nll[0] + nll[1]) / 3).detach())


def test_latent_ode_loss_weight_in_batch_of_one():
    model, one = build("series"), ragged_batch()[[0]]
    output, labels = model(one), torch.tensor([1])
    single, double = (
        LatentODELoss().evaluate(output, one, labels, weight=torch.tensor([w])).total
        for w in (1.0, 2.0)
    )
    torch.testing.assert_close(double, 2 * single)


@pytest.mark.parametrize("head", ["series", "points"])
def test_latent_ode_loss_ignores_padding_and_unobserved_values(head):
    model, batch = build(head), ragged_batch()
    labels = torch.tensor([0, 3, 1])
    if head == "points":
        labels = torch.where(batch.present, labels.unsqueeze(1), -1)
    noisy = replace_values(batch, torch.where(batch.mask, batch.values, 1e30))
    wide = pad_batch(batch, 3)
    wide_labels = F.pad(labels, (0, 3), value=-1) if head == "points" else labels
    results = []
    for case, codes in ((batch, labels), (noisy, labels), (wide, wide_labels)):
        loss = LatentODELoss().evaluate(model(case), case, codes).total
        results.append((loss, torch.autograd.grad(loss, list(model.parameters()))))
    for loss, gradients in results[1:]:
        torch.testing.assert_close(loss, results[0][0], rtol=0, atol=1e-12)
        for one, other in zip(gradients, results[0][1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_latent_ode_loss_rejects_labels_without_head():
    model, batch = build(), ragged_batch()
    with pytest.raises(ValueError, match="labels must be None for a model without a head"):
        LatentODELoss().evaluate(model(batch), batch, torch.zeros(3, dtype=torch.int64))
