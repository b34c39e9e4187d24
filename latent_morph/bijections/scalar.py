"""ScalarWarp: a bijection in one dimension, for which coupling blocks do not exist."""

from typing import final

import torch
from torch import Tensor, nn

from latent_morph.bijections.base import Bijection
from latent_morph.checks import check_count


@final
class ScalarWarp(Bijection):
    """A composition of sinh-arcsinh maps x -> sinh(e^c asinh(e^a x + b) + d) of the real line.

    Each is smooth and increasing, with an inverse in closed form, and starts as the identity.
    """

    def __init__(self, *, blocks: int = 4) -> None:
        super().__init__(1)
        n = check_count("blocks", blocks)
        self.log_slope, self.shift, self.log_power, self.skew = (
            nn.Parameter(torch.zeros(n)) for _ in range(4)
        )

    def _forward(self, x: Tensor) -> Tensor:
        for a, b, c, d in zip(self.log_slope, self.shift, self.log_power, self.skew, strict=True):
            x = torch.sinh(c.exp() * torch.asinh(a.exp() * x + b) + d)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for a, b, c, d in zip(
            *(p.flip(0) for p in (self.log_slope, self.shift, self.log_power, self.skew)),
            strict=True,
        ):
            y = (torch.sinh((torch.asinh(y) - d) * (-c).exp()) - b) * (-a).exp()
        return y
