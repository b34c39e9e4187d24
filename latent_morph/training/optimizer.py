"""Optimisers by name, with weight decay only where it makes sense."""

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
    """An optimiser of the model's parameters in two groups, with and without weight decay.

    Args:
        model: Parameters that do not require gradients stay as they are.
        name: From `OPTIMIZERS`.
        learning_rate: Of both groups.
        weight_decay: Of matrices. Eigenvalues, frequencies, norms and biases do not decay: zero
            is no natural value for them. These are vectors, or a module lists them in its
            attribute `no_weight_decay`.
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
