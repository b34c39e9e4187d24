"""Wiring: how the blocks of a coupling network are connected, which nothing learns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Wiring:
    """What of a chain of B blocks does not learn.

    Attributes:
        gathers: (dim,) before each block and after the last one: on the way there, and back.
        halves: How many rows each has.
        clamp: A block scales a coordinate by at most exp(clamp).
        activation: Name of the subnets' activation.
    """

    gathers: tuple[list[Tensor], list[Tensor]]
    halves: tuple[int, int]
    clamp: float
    activation: str

    @cached_property
    def gathers_with_ones(self) -> tuple[list[Tensor], list[Tensor]]:
        """The same for points with a row of ones between the halves.

        The first gather takes points with the ones below, and the last gives points without.
        """
        there, back = (self._with_ones(orders) for orders in self.gathers)
        return there, back

    @cached_property
    def gathers_in_numpy(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """`gathers` as arrays."""
        there, back = ([order.numpy() for order in orders] for orders in self.gathers)
        return there, back

    def _with_ones(self, orders: Sequence[Tensor]) -> list[Tensor]:
        half, dim = self.halves[0], sum(self.halves)
        first, *others = orders
        rows = torch.arange(dim, device=first.device)
        rows[half:] += 1
        *others, last = (rows[order] for order in others)
        below, between = first.new_tensor([[dim], [half]])
        return [
            torch.cat([first[:half], below, first[half:]]),
            *(torch.cat([order[:half], between, order[half:]]) for order in others),
            last,
        ]
