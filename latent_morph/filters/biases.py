"""Biases: thresholds of a filter's output, drawn among its outputs for training series."""

import numpy as np
import torch
from torch import Tensor

_SHIFT = 1e-3


def draw_biases(outputs: Tensor, n_biases: int, generator: torch.Generator) -> Tensor:
    """Draws quantiles of outputs at random levels, one in each of B equal ranges.

    Constant pieces of a series give outputs that are equal up to rounding. A shift by a small part
    of the spread keeps biases away from them, so that rounding does not decide what is above.

    Args:
        outputs: (R, F) of R rows and F filters.
        n_biases: B.
        generator: Source of randomness.

    Returns:
        (B, F); 0 if there are no rows.
    """
    if not len(outputs):
        return outputs.new_zeros(n_biases, outputs.shape[1])
    draws = torch.rand(n_biases, outputs.shape[1], generator=generator, dtype=outputs.dtype)
    levels = (torch.arange(n_biases, device=draws.device).unsqueeze(1) + draws) / n_biases
    index = (levels * (len(outputs) - 1)).long()
    spread = outputs.std(0, correction=0)
    # NumPy sorts columns about 20 times as fast as torch.
    ordered = torch.from_numpy(np.sort(outputs.numpy(), axis=0))
    return ordered.gather(0, index) + _SHIFT * (1 + levels) * spread


def spread_rows(mask: Tensor, n_rows: int) -> Tensor:
    """Keeps at most so many True elements of each row (N, T), evenly spread among them."""
    rank = mask.long().cumsum(1) - 1
    count = mask.sum(1, keepdim=True).clamp(min=1)
    kept = count.clamp(max=n_rows)
    # An element is kept where its share of the number kept reaches another whole number.
    return mask & ((rank + 1) * kept // count > rank * kept // count)
