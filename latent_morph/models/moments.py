"""Moments: sums over many rows, and the ridge regressions that follow from them."""

from collections.abc import Sequence

import torch
from torch import Tensor

# Relative to the variance of a standardised feature.
ALPHAS = tuple(10.0 ** (k / 2) for k in range(-8, 2))


class Moments:
    """Sums over rows of features and targets, of which a ridge regression needs no more.

    Args:
        n_features: F.
        n_classes: K.
    """

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.weight = 0.0
        self.squares = 0.0
        self.x = torch.zeros(n_features, dtype=torch.float64)
        self.y = torch.zeros(n_classes, dtype=torch.float64)
        self.xx = torch.zeros(n_features, n_features, dtype=torch.float64)
        self.xy = torch.zeros(n_features, n_classes, dtype=torch.float64)

    def add(self, features: Tensor, targets: Tensor, weight: Tensor) -> None:
        """Adds rows: features (R, F), targets (R, K) and weights (R,), all of single precision."""
        weighted = weight.unsqueeze(1) * features
        self.weight += float(weight.sum())
        self.squares += float((weight @ targets.square()).sum())
        self.x += weighted.sum(0).double()
        self.y += (weight @ targets).double()
        self.xx += (features.t() @ weighted).double()
        self.xy += (weighted.t() @ targets).double()

    def combine(self, others: Sequence["Moments"], sign: float = 1.0) -> "Moments":
        """Returns these sums plus, or minus, those of others."""
        total = Moments(len(self.x), len(self.y))
        for name in vars(self):
            value = getattr(self, name)
            for other in others:
                value = value + sign * getattr(other, name)
            setattr(total, name, value)
        return total

    def solve(self, alpha: float) -> tuple[Tensor, Tensor]:
        """Returns coefficients (F, K) and intercept (K,); `alpha` is relative to the weight."""
        x, y = self.x / self.weight, self.y / self.weight
        covariance = self.xx / self.weight - torch.outer(x, x)
        covariance.diagonal().add_(alpha)
        factor = torch.linalg.cholesky(covariance)
        coefficients = torch.cholesky_solve(self.xy / self.weight - torch.outer(x, y), factor)
        return coefficients, y - x @ coefficients

    def error(self, coefficients: Tensor, intercept: Tensor) -> float:
        """Returns the sum of squared errors of a solution on these rows."""
        fit = (coefficients * (self.xx @ coefficients - 2 * self.xy)).sum()
        offset = intercept @ (2 * self.x @ coefficients - 2 * self.y + self.weight * intercept)
        return self.squares + float(fit + offset)


def choose_alpha(folds: Sequence[Moments]) -> tuple[float, list[tuple[Tensor, Tensor]]]:
    """Chooses the regularisation that predicts each fold best from the others.

    Where the others of a fold have no weight, it is predicted from all folds.

    Returns:
        The regularisation, and for each fold the solution without it.
    """
    whole = folds[0].combine(folds[1:])
    rests = [
        whole if fold.weight == whole.weight else whole.combine([fold], -1.0) for fold in folds
    ]
    best = None
    for alpha in ALPHAS:
        solutions = [rest.solve(alpha) for rest in rests]
        error = sum(fold.error(*solution) for fold, solution in zip(folds, solutions, strict=True))
        if best is None or error < best[0]:
            best = error, alpha, solutions
    assert best is not None
    return best[1:]
