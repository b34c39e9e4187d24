"""make_optimizer: which parameters decay, which do not, and which stay unchanged."""

import pytest
import torch
from torch import nn

from latent_morph import LatentODEClassifier
from latent_morph.flows import FLOWS
from latent_morph.training import OPTIMIZERS, make_optimizer

EVERY = pytest.mark.parametrize("name", OPTIMIZERS)


def build(model, name="adamw", **options):
    return make_optimizer(model, name, **{"learning_rate": 0.1, "weight_decay": 0.5} | options)


def names_by_decay(model):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = build(model).param_groups
    return {g["weight_decay"]: {names[id(p)] for p in g["params"]} for g in groups}


def test_optimizer_decays_matrices_but_neither_eigenvalues_nor_biases():
    flow = FLOWS["morph-stable"](4, inn={"blocks": 1, "width": 3}, seed=0)
    decays = names_by_decay(flow)
    assert {"base.rate_parameter", "base.frequencies"} <= decays[0.0]
    assert all(name.endswith("bias") for name in decays[0.0] if name.startswith("warp"))
    assert {"base.lower", "base.upper"} <= decays[0.5]
    assert all(name.endswith("weight") for name in decays[0.5] if name.startswith("warp"))


def test_optimizer_spares_rates_frequencies_and_norms_of_the_encoder():
    X = torch.randn(12, 5).numpy()
    model = LatentODEClassifier(max_epochs=1, random_state=0).fit(X, [0, 1] * 6).model_
    spared = names_by_decay(model)[0.0]
    layer = "encoder.layers.0."
    for name in ("log_rates", "frequencies", "norm.weight", "norm.bias", "drive.bias"):
        assert layer + name in spared
    assert layer + "drive.weight" not in spared
    assert "decoder.log_std" in spared


@EVERY
def test_optimizer_leaves_frozen_parameters_alone(name):
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    before = model.bias.clone()
    optimizer = build(model, name)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.equal(model.bias, before)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


@EVERY
def test_optimizer_without_gradients_changes_nothing(name):
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    build(model, name).step()
    assert torch.equal(model.weight, before)


def test_optimizer_rejects_unknown_names():
    with pytest.raises(
        ValueError, match="optimizer must be one of adamw, adam, adamax, got 'sgd'"
    ):
        build(nn.Linear(1, 1), "sgd")
