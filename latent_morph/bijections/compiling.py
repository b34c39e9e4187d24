"""Compilation of the coupling networks of a model, if a compiler is present."""

import copy
import logging

import torch
from torch import nn

from latent_morph.bijections.coupling import CouplingINN

logger = logging.getLogger("latent_morph")


def compile_bijections(model: nn.Module) -> bool:
    """Compiles the coupling networks of `model` with `torch.compile`.

    If that fails, without a compiler or support for the device, the model remains unchanged and
    the reason is logged.

    Returns:
        Whether all networks were compiled.
    """
    networks = [part for part in model.modules() if isinstance(part, CouplingINN)]
    try:
        for network in networks:
            trial = copy.deepcopy(network)  # so that a failure changes nothing
            trial.compile(dynamic=True)
            with torch.no_grad():  # torch compiles at the first call
                trial(next(trial.parameters()).new_zeros(3, trial.dim))
    except Exception as problem:  # compilers raise many types
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        logger.info("coupling networks are not compiled: %s", reason)
        return False
    for network in networks:
        network.compile(dynamic=True)
    return True
