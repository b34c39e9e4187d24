"""Compiling changes only speed; without a compiler it changes nothing."""

import copy
import logging
import pickle
import shutil

import numpy as np
import pytest
import torch

from latent_morph import LatentODEClassifier
from latent_morph.bijections.compiling import compile_bijections
from latent_morph.flows import FLOWS


def make_flow():
    return FLOWS["morph"](3, inn={"blocks": 1, "width": 4}, seed=0)


@pytest.mark.filterwarnings("default")  # the compiler's own warnings
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compile_bijections_keeps_outputs_and_gradients():
    plain, fast = make_flow(), make_flow()
    assert compile_bijections(fast)
    for n in (3, 50):  # shapes may change
        z, times = torch.randn(n, 3), torch.linspace(0, 1, 7)
        torch.testing.assert_close(fast(z, times), plain(z, times), atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(fast(z, times), plain(z, times), atol=1e-5, rtol=1e-5)
    for each in (plain, fast):
        each(z, times).square().sum().backward()
    for one, other in zip(plain.parameters(), fast.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-3)
    for again in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        torch.testing.assert_close(again(z, times), plain(z, times), atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("goal", [None, [0.1, 0.2, 0.3]])
def test_torch_compile_of_morph_flow_keeps_gradients(goal):
    plain = FLOWS["morph"](3, inn={"blocks": 1, "width": 4}, goal=goal, seed=0)
    fast = torch.compile(plain, backend="aot_eager")  # which needs no C++ compiler
    z, times = torch.randn(4, 3, requires_grad=True), torch.linspace(0, 1, 5)
    gradients = [
        torch.autograd.grad(flow(z, times).square().sum(), [z, *plain.parameters()])
        for flow in (plain, fast)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("goal", [None, [0.1, 0.2, 0.3]])
def test_morph_flow_calls_compiled_bijection(monkeypatch, goal):
    """A compiled module that is called through another method is not compiled at all."""
    model = FLOWS["morph"](3, inn={"blocks": 1, "width": 4}, goal=goal, seed=0)
    network, calls = model.warp if goal is None else model.warp.bijection, []

    def compiler(graph, example_inputs):
        calls.append(graph)
        return graph.forward

    z, times = torch.randn(5, 3), torch.linspace(0, 1, 7)
    with torch.no_grad():
        plain = model(z, times)
        network.compile(backend=compiler)
        torch.testing.assert_close(model(z, times), plain)
    assert calls


def test_classifier_compile_without_compiler(monkeypatch, caplog):
    def no_compiler(*args, **kwargs):
        raise RuntimeError("no C++ compiler found\nand much more")

    X, y = np.random.default_rng(0).normal(size=(12, 5)), np.arange(12) % 2
    settings = {"max_epochs": 1, "hidden_dim": 4, "latent_dim": 2, "random_state": 0}
    plain = LatentODEClassifier(**settings).fit(X, y).predict_proba(X)
    monkeypatch.setattr(torch, "compile", no_compiler)
    with caplog.at_level(logging.INFO, "latent_morph"):
        model = LatentODEClassifier(**settings, compile=True).fit(X, y)
    assert "coupling networks are not compiled: no C++ compiler found" in caplog.text
    np.testing.assert_array_equal(model.predict_proba(X), plain)
