"""Optimizers by name, with weight decay of matrices only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from latent_morph.checks import check_choice

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
}
_FUSED = ("adamw", "adam")


def make_optimizer(
    model: nn.Module, name: str, *, learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Returns an optimizer with two groups of parameters, with and without weight decay.

    Args:
        model: The model; parameters that do not require gradients are left out.
        name: A name from `OPTIMIZERS`.
        learning_rate: Learning rate of both groups.
        weight_decay: Weight decay of matrices. Vectors, such as biases, norms and eigenvalues, and
            the parameters that a module lists in its attribute `no_weight_decay`, do not decay.
    """
    check_choice("optimizer", name, OPTIMIZERS)
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for module in model.modules():
        exempt = getattr(module, "no_weight_decay", ())
        for own_name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                decays = parameter.ndim > 1 and own_name not in exempt
                (decayed if decays else others).append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decayed, weight_decay), (others, 0.0))
        if parameters
    ]
    options: dict[str, Any] = {}
    if name in _FUSED:
        devices = {parameter.device.type for parameter in [*decayed, *others]}
        options["fused"] = devices <= {"cpu", "cuda"}
    return OPTIMIZERS[name](groups, lr=learning_rate, **options)
