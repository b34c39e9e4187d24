"""Vector fields with exact solutions, to hold solvers against."""

from collections.abc import Callable

import torch
from torch import Tensor

MATRIX = torch.tensor([[-0.3, 2.0, 0.0], [-2.0, -0.3, 0.5], [0.0, 0.0, -1.0]], dtype=torch.float64)


def linear_field(z: Tensor) -> Tensor:
    return z @ MATRIX.mT


def linear_exact(z0: Tensor, times: Tensor) -> Tensor:
    return torch.einsum(
        "tij,...j->...ti", torch.linalg.matrix_exp(MATRIX * times[:, None, None]), z0
    )


def logistic_field(z: Tensor) -> Tensor:
    return z * (1 - z)


def logistic_exact(z0: Tensor, times: Tensor) -> Tensor:
    decay = torch.exp(-times)[:, None]
    return 1 / (1 + (1 / z0.unsqueeze(-2) - 1) * decay)


PROBLEMS: dict[str, tuple[Callable, Callable]] = {
    "linear": (linear_field, linear_exact),
    "logistic": (logistic_field, logistic_exact),
}
