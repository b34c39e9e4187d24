"""Compiling the coupling networks of a model, where a compiler is present."""

import copy
import logging

import torch
from torch import nn

from latent_morph.bijections.coupling import CouplingINN

logger = logging.getLogger("latent_morph")


def compile_bijections(model: nn.Module) -> bool:
    """Has torch compile the coupling networks of `model`: faster, and no different.

    Where that fails, for want of a compiler or of support for the device, the model stays as it
    is, and the log says so.

    Returns:
        Whether all of them were compiled.
    """
    networks = [part for part in model.modules() if isinstance(part, CouplingINN)]
    try:
        for network in networks:
            trial = copy.deepcopy(network)  # so that a failure leaves no trace
            trial.compile(dynamic=True)
            with torch.no_grad():  # torch compiles at the first call
                trial(next(trial.parameters()).new_zeros(3, trial.dim))
    except Exception as problem:  # a compiler can fail in any way, and none of them matters
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        logger.info("not compiled, going on without: %s", reason)
        return False
    for network in networks:
        network.compile(dynamic=True)
    return True
