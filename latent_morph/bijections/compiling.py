"""Compiling the invertible networks of a model, where a compiler is present."""

import logging

import torch
from torch import nn

from latent_morph.bijections import CouplingINN

logger = logging.getLogger("latent_morph")


def compile_warps(model: nn.Module) -> bool:
    """Has torch compile the coupling networks of `model`: faster, and no different.

    Where that fails, for want of a compiler or of support for the device, the model stays as it
    is, and the log says so.

    Returns:
        Whether all of them were compiled.
    """
    warps = [part for part in model.modules() if isinstance(part, CouplingINN)]
    try:
        for warp in warps:
            warp.compile(dynamic=True)
            reference = next(warp.parameters())
            with torch.no_grad():  # torch compiles at the first call
                warp(reference.new_zeros(3, warp.dim))
    except Exception as problem:  # a compiler can fail in any way, and none of them matters
        for warp in warps:
            warp._compiled_call_impl = None
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else repr(problem)
        logger.info("not compiled, going on without: %s", reason)
        return False
    return True
