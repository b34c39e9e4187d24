"""Descent: as the optimisers do with many tensors, only in one."""

import copy
import pickle

import pytest
import torch

from latent_morph.descent import OPTIMIZERS, Descent

pytestmark = pytest.mark.usefixtures("float64")


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def loss(model: torch.nn.Module) -> torch.Tensor:
    x = torch.linspace(-1, 1, 12).view(4, 3).to(model[0].weight)
    return 100 * model(x).square().mean()


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_moves_as_the_optimiser_itself(optimizer, clip):
    one, other = network(), network()
    descent = Descent(
        one, optimizer=optimizer, learning_rate=0.01, weight_decay=0.1, gradient_clip=clip
    )
    optimiser = OPTIMIZERS[optimizer](other.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        loss(other).backward()
        longest = float("inf") if clip is None else clip
        expected = torch.nn.utils.clip_grad_norm_(other.parameters(), longest)
        optimiser.step()
        length = descent.gradient(loss(one))
        torch.testing.assert_close(length, expected)
        descent.move()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_one_entry_that_is_no_number_makes_all_of_a_clipped_gradient_so():
    """As torch's own clipping has it; training stops there."""
    model = network()
    descent = Descent(model, gradient_clip=0.5)
    first = next(model.parameters())
    length = descent.gradient((first.flatten()[0] * float("nan")) + loss(model))
    assert length.isnan()
    assert all(weight.grad.isnan().all() for weight in model.parameters())


def test_a_rate_of_its_own_for_a_step():
    model = network()
    before = [weight.clone() for weight in model.parameters()]
    descent = Descent(model, learning_rate=1.0)
    descent.gradient(loss(model))
    descent.move(0.0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    descent.move(0.1)
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_weights_keep_their_identity_and_get_their_memory_back():
    model = network()
    weights = list(model.parameters())
    descent = Descent(model)
    descent.gradient(loss(model))
    descent.move()
    state = copy.deepcopy(model.state_dict())
    descent.release()
    assert all(a is b for a, b in zip(model.parameters(), weights, strict=True))
    assert all(weight.grad is None for weight in weights)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    for weight in weights:
        assert weight.untyped_storage().nbytes() == weight.numel() * weight.itemsize


def rebound_gradients(model):
    model.zero_grad()


def rebound_values(model):
    model.float().double()


@pytest.mark.parametrize("meddle", [rebound_gradients, rebound_values])
def test_weights_that_somebody_gave_other_memory_are_taken_back(meddle):
    one, other = network(), network()
    for model, change in ((one, meddle), (other, lambda model: None)):
        descent = Descent(model, learning_rate=0.05)
        for _ in range(4):
            descent.gradient(loss(model))
            descent.move()
            change(model)
        kept = descent.weights()
        descent.gradient(loss(model))
        descent.move()
        change(model)
        descent.set_weights(kept)
        descent.release()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)  # single precision in between


def test_weights_may_be_frozen_and_thawed_meanwhile():
    model = network()
    descent = Descent(model, learning_rate=0.1, weight_decay=0.1)

    def moved() -> list[bool]:
        before = [weight.detach().clone() for weight in model.parameters()]
        descent.gradient(loss(model))
        descent.move()
        return [not torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True)]

    assert moved() == [True] * 4
    model[0].requires_grad_(False)
    assert moved() == moved() == [False, False, True, True]
    model[0].requires_grad_(True)
    assert moved() == [True] * 4


def test_a_loss_from_before_the_last_move_is_refused():
    model = network()
    descent = Descent(model, learning_rate=0.1)
    first, second = loss(model), loss(model)
    descent.gradient(first)
    descent.move()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        descent.gradient(second)


def test_weights_that_do_not_learn_or_are_of_another_kind():
    model = network()
    model[0].bias.requires_grad_(False)
    fixed = model[0].bias.clone()
    model.register_parameter("scale", torch.nn.Parameter(torch.ones(2, dtype=torch.float32)))
    descent = Descent(model, learning_rate=0.1, gradient_clip=1.0)
    length = descent.gradient(loss(model) + 3 * model.scale.sum())
    assert length > 3 * 2**0.5
    torch.testing.assert_close(model.scale.grad.double(), torch.full((2,), 3.0) / length)
    descent.move()
    assert torch.equal(model[0].bias, fixed)
    torch.testing.assert_close(model.scale, torch.full((2,), 0.9, dtype=torch.float32))


def test_the_state_survives():
    one, other = network(), network()
    first = Descent(one, learning_rate=0.05)
    for _ in range(3):
        first.gradient(loss(one))
        first.move()
    second = Descent(other, learning_rate=0.05)
    other.load_state_dict(one.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for model, descent in ((one, first), (other, second)):
        descent.gradient(loss(model))
        descent.move()
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_an_optimiser_that_is_not_there():
    with pytest.raises(ValueError, match="optimizer must be one of adamw, adam, adamax"):
        Descent(network(), optimizer="sgd")


def test_can_be_pickled_between_steps():
    model = network()
    descent = pickle.loads(pickle.dumps(Descent(model)))
    assert descent.state_dict() == Descent(model).state_dict()
