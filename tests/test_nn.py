"""Parts of networks that torch does not have."""

import pytest
import torch

from latent_morph.nn import dropout


@pytest.mark.parametrize("p", [0.1, 0.2, 0.5, 0.75])
def test_dropout_keeps_mean_and_drops_fraction(p):
    torch.manual_seed(0)
    x = torch.ones(301, 333)
    dropped = dropout(x, p, training=True)
    assert abs((dropped == 0).double().mean().item() - p) < 0.01  # 1/256 of rounding, and chance
    assert abs(dropped.mean().item() - 1) < 0.01
    assert dropped.unique().numel() == 2
    rows = (dropped == 0).double()
    assert (
        abs(torch.corrcoef(torch.stack([rows[:, :-1].flatten(), rows[:, 1:].flatten()]))[0, 1])
        < 0.02
    )


def test_dropout_is_reproducible_and_off_in_evaluation():
    x = torch.randn(7, 3, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(x, 0.5, training=True)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.5, training=True))
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0, training=True) is x
    first.sum().backward()
    assert torch.equal(x.grad, (first != 0) * 2.0)
