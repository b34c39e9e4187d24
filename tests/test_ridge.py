"""RidgeHead against refits without each case, and its probabilities on cases it has not seen."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss

from latent_morph.models import RidgeHead
from latent_morph.models import ridge as ridge_module
from latent_morph.models.ridge import (
    ALPHAS,
    _block_factors,
    _calibrate,
    _choose_block_weights,
    _solve_dual,
    _solve_primal,
    _standardise,
)


def make_classes(n_cases=40, n_features=7, n_classes=3, noise=1.0, seed=0):
    """Classes with different means of the first features; other features are noise."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.arange(n_cases) % n_classes
    features = noise * torch.randn(n_cases, n_features, generator=generator)
    centres = 2 * torch.eye(n_classes, n_features)
    return features + centres[codes] + 3.0, codes


def targets_of(codes, n_classes=None):
    n_classes = int(codes.max()) + 1 if n_classes is None else n_classes
    return torch.nn.functional.one_hot(codes, n_classes).double() * 2 - 1


def weights_of(n_cases, weighted):
    if not weighted:
        return torch.ones(n_cases)
    weight = torch.rand(n_cases, generator=torch.Generator().manual_seed(5)) * 3 + 0.1
    return weight / weight.mean()


def refit_without_each(features, targets, weight, alpha):
    """Outputs for each case of a ridge regression that was fitted to the others."""
    X, Y, w = (x.double().numpy() for x in (features, targets, weight))
    left_out = np.empty_like(Y)
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        model = Ridge(alpha=alpha).fit(X[rest], Y[rest], sample_weight=w[rest])
        left_out[i] = model.predict(X[i : i + 1])[0]
    return left_out


SHAPES = {"more cases": (40, 7), "more features": (15, 60), "as many": (20, 20)}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("solver", ["dual", "primal"])
def test_ridge_outputs_left_out_equal_refits(solver, shape, weighted):
    features, codes = make_classes(*SHAPES[shape])
    weight, targets = weights_of(len(features), weighted), targets_of(codes)
    _standardise(features, weight)
    features *= _block_factors([features.shape[1]], [1.0])
    if solver == "dual":
        gram = (features.double() @ features.double().t()).double()
        alpha, error, _, left_out = _solve_dual(gram, targets, weight)
    else:
        alpha, error, _, left_out = _solve_primal(features, targets, weight)
    errors = {}
    for candidate in ALPHAS:
        expected = refit_without_each(features, targets, weight, candidate)
        squares = weight.double().numpy()[:, None] * (targets.numpy() - expected) ** 2
        errors[candidate] = squares.mean()
        if candidate == alpha:
            np.testing.assert_allclose(left_out, expected, atol=2e-4)
    assert errors[alpha] <= min(errors.values()) * (1 + 1e-4)
    assert error == pytest.approx(errors[alpha], rel=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_ridge_head_equals_ridge_regression(shape, weighted):
    """Up to calibration, which is one slope and offsets, in either solver."""
    features, codes = make_classes(*SHAPES[shape])
    weight = weights_of(len(features), weighted)
    original = features.clone()
    head, choice = RidgeHead.fit(features, codes, weight)
    scaled = original.clone()
    _standardise(scaled, weight)
    scaled *= _block_factors([scaled.shape[1]], [1.0])
    model = Ridge(alpha=choice.alpha)
    targets = targets_of(codes).numpy()
    outputs = model.fit(scaled.numpy(), targets, sample_weight=weight.numpy()).predict(scaled)
    left_out = torch.from_numpy(
        refit_without_each(scaled, targets_of(codes), weight, choice.alpha)
    )
    slope, offset = _calibrate(left_out, codes, weight)
    np.testing.assert_allclose(head(original), slope * outputs + offset.numpy(), atol=5e-3)
    correct = (left_out.argmax(1) == codes).double()
    assert choice.score == pytest.approx(float((correct * weight).sum() / weight.sum()), abs=1e-6)


def test_ridge_head_does_not_depend_on_scales_of_features():
    features, codes = make_classes()
    factors = torch.logspace(-3, 3, 7)
    head, _ = RidgeHead.fit(features.clone(), codes)
    other, _ = RidgeHead.fit(features * factors - 5 * factors, codes)
    actual = other(features * factors - 5 * factors)
    torch.testing.assert_close(actual, head(features), atol=2e-3, rtol=1e-3)


def test_ridge_head_weights_are_relative():
    features, codes = make_classes()
    weight = weights_of(40, True)
    first, _ = RidgeHead.fit(features.clone(), codes, weight)
    second, _ = RidgeHead.fit(features.clone(), codes, 1e6 * weight.double())
    torch.testing.assert_close(first(features), second(features), atol=1e-4, rtol=1e-4)


def test_ridge_head_weight_zero_is_almost_absence():
    """Up to the scales of features, which are not weighted; see `_standardise`."""
    features, codes = make_classes(60)
    weight = (torch.arange(60) < 45).double()
    far = features.clone()
    far[45:] = far[45:].flip(1)  # wrong, in the same range
    head, choice = RidgeHead.fit(far.clone(), codes, weight)
    clean, _ = RidgeHead.fit(features[:45].clone(), codes[:45])
    difference = head(features).softmax(1) - clean(features).softmax(1)
    assert difference.abs().max() < 0.1
    assert choice.score > 0.7  # of the cases with a weight
    full, _ = RidgeHead.fit(far.clone(), codes)
    worse = full(features).softmax(1) - clean(features).softmax(1)
    assert worse.abs().max() > 3 * difference.abs().max()


# Blocks


def test_ridge_head_chooses_the_block_that_predicts():
    signal, codes = make_classes(90, 10, noise=1.0)
    noise = torch.randn(90, 400, generator=torch.Generator().manual_seed(3))
    sizes, candidates = [400, 10], [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)]
    head, choice = RidgeHead.fit(
        torch.cat([noise, signal], 1), codes, sizes=sizes, candidates=candidates
    )
    assert choice.block_weights == (0.0, 1.0)
    assert (head.weight[:400] == 0).all() and (head.weight[400:] != 0).all()
    alone, _ = RidgeHead.fit(signal.clone(), codes)
    torch.testing.assert_close(head.weight[400:], alone.weight, atol=1e-3, rtol=1e-3)


def test_ridge_block_weights_have_the_least_error_left_out(monkeypatch):
    features, codes = make_classes(60, 30, noise=2.0)
    weight, targets = weights_of(60, True), targets_of(codes)
    _standardise(features, weight)
    candidates = [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0), (1.0, 0.0)]
    errors = []
    for candidate in candidates:
        scaled = (features * _block_factors([5, 25], candidate)).double()
        errors.append(_solve_dual(scaled @ scaled.t(), targets, weight)[1])
    chosen = _choose_block_weights(features, targets, weight, [5, 25], candidates)
    assert chosen == candidates[int(np.argmin(errors))]
    # From a part of the cases, of all classes in their proportions.
    monkeypatch.setattr(ridge_module, "SEARCH_CASES", 20)
    seen = []
    solve = ridge_module._solve_dual

    def record(gram, targets, weight):
        seen.append((len(gram), targets.gt(0).sum(0).tolist()))
        return solve(gram, targets, weight)

    monkeypatch.setattr(ridge_module, "_solve_dual", record)
    _choose_block_weights(features, targets, weight, [5, 25], candidates)
    assert {n_cases for n_cases, _ in seen} == {20} and len(seen) == 4
    assert all(min(counts) >= 6 for _, counts in seen)


# Calibration


@pytest.mark.parametrize("shape", [(60, 5), (60, 80)])
def test_ridge_calibration_improves_log_loss_on_other_cases(shape):
    features, codes = make_classes(*shape, noise=1.0)
    held_out, truth = make_classes(600, shape[1], noise=1.0, seed=1)
    head, choice = RidgeHead.fit(features, codes)
    logits = head(held_out).double()
    # Without calibration: the slope and offsets that the outputs of ridge regression have.
    weight = torch.ones(len(codes))
    again, _ = make_classes(*shape, noise=1.0)
    _standardise(again, weight)
    again *= _block_factors([shape[1]], [1.0])
    left_out = refit_without_each(again, targets_of(codes), weight, choice.alpha)
    slope, offset = _calibrate(torch.from_numpy(left_out), codes, weight)
    plain = (logits - offset) / slope
    calibrated = log_loss(truth, logits.softmax(1))
    assert calibrated < 0.95 * log_loss(truth, plain.softmax(1))
    best = min(log_loss(truth, (factor * logits).softmax(1)) for factor in (0.25, 0.5, 2.0, 4.0))
    assert calibrated < best


def test_ridge_calibration_minimises_the_smoothed_log_loss():
    generator = torch.Generator().manual_seed(0)
    codes = torch.arange(50) % 3
    outputs = torch.randn(50, 3, generator=generator).double() + targets_of(codes)
    weight = weights_of(50, True)
    slope, offset = _calibrate(outputs, codes, weight)
    share = weight.double() / weight.double().sum()
    one_hot = torch.nn.functional.one_hot(codes).double()
    target = (one_hot + 3 / 50 * (share @ one_hot)) / (1 + 3 / 50)

    def loss(slope, offset):
        return -(share.unsqueeze(1) * target * (slope * outputs + offset).log_softmax(1)).sum()

    least = loss(slope, offset)
    for change in (0.95, 1.05):
        assert loss(change * slope, offset) > least
    for k in range(3):
        for change in (-0.05, 0.05):
            assert loss(slope, offset + change * torch.eye(3)[k]) > least


def test_ridge_calibration_of_separated_classes_is_finite():
    codes = torch.arange(200) % 2
    slope, offset = _calibrate(10 * targets_of(codes), codes, torch.ones(200))
    assert np.isfinite(slope) and offset.isfinite().all()
    proba = (slope * 10 * targets_of(codes) + offset).softmax(1)
    assert 0.98 < proba.amax(1).min() and proba.amax() < 1 - 1e-4


def test_ridge_calibration_keeps_the_order_of_misleading_outputs():
    codes = torch.arange(50) % 2
    slope, _ = _calibrate(-targets_of(codes), codes, torch.ones(50))
    assert slope > 0.05


# Degenerate inputs


def test_ridge_head_ignores_constant_features():
    features, codes = make_classes()
    head, _ = RidgeHead.fit(features.clone(), codes)
    constants = torch.tensor([0.0, 1e6, -0.1]).expand(40, 3)
    wide, _ = RidgeHead.fit(torch.cat([features, constants], 1), codes)
    assert (wide.weight[7:] == 0).all()
    elsewhere = torch.cat([features, torch.full((40, 3), 1e9)], 1)
    assert wide(elsewhere).isfinite().all()
    assert (wide(elsewhere).argmax(1) == head(features).argmax(1)).double().mean() > 0.95


def test_ridge_head_of_constant_features_only_gives_the_shares():
    codes = torch.tensor([0] * 30 + [1] * 10)
    head, choice = RidgeHead.fit(torch.ones(40, 5), codes)
    proba = head(torch.ones(2, 5)).softmax(1)
    np.testing.assert_allclose(proba, [[0.75, 0.25]] * 2, atol=0.01)
    assert choice.score == 0.75


def test_ridge_head_of_one_class():
    features, _ = make_classes()
    head, choice = RidgeHead.fit(features.clone(), torch.zeros(40, dtype=torch.int64))
    assert head(features).shape == (40, 1) and head(features).isfinite().all()
    assert (head(features).softmax(1) == 1).all() and choice.score == 1.0


@pytest.mark.parametrize("n_cases", [1, 2, 3])
def test_ridge_head_of_very_few_cases_is_finite(n_cases):
    features, codes = make_classes(n_cases, 50, n_classes=min(2, n_cases))
    head, _ = RidgeHead.fit(features.clone(), codes)
    assert head(features).isfinite().all()
