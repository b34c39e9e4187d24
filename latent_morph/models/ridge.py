"""RidgeHead: a linear classifier of features, regularised and calibrated on cases left out."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

# Relative to a Gram matrix whose diagonal is about 1.
ALPHAS = tuple(10.0 ** (k / 2) for k in range(-6, 9))
# Cases from which the weights of blocks are chosen.
SEARCH_CASES = 1000
# Cases that are processed at a time, if there are more of them than features.
PART_CASES = 4096
# Of a case, relative to the mean: its residual is divided by the root of its weight.
_LEAST_WEIGHT = 1e-8
_LEAST_SLOPE = 0.1
# Makes the offsets unique, of which a common part has no effect.
_OFFSET_PENALTY = 1e-6


class RidgeChoice(NamedTuple):
    """What leaving one out has chosen.

    Attributes:
        alpha: The strength of the regularisation.
        block_weights: The weight of each block of features.
        score: The fraction of cases that are classified correctly when left out.
        error: The mean squared error of cases left out.
    """

    alpha: float
    block_weights: tuple[float, ...]
    score: float
    error: float


class RidgeHead(nn.Module):
    """Maps features to the logarithms of class probabilities, up to a constant.

    Args:
        n_features: F.
        n_classes: K.
    """

    mean: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_features, dtype=torch.float32))
        self.register_buffer("weight", torch.zeros(n_features, n_classes, dtype=torch.float32))
        self.register_buffer("bias", torch.zeros(n_classes, dtype=torch.float32))

    def forward(self, features: Tensor) -> Tensor:
        """Maps (N, F) to logits (N, K)."""
        return (features - self.mean) @ self.weight + self.bias

    @classmethod
    def from_solution(
        cls,
        coefficients: Tensor,
        intercept: Tensor,
        outputs: Tensor,
        codes: Tensor,
        weight: Tensor,
    ) -> Self:
        """Builds a head from a solution, calibrated on outputs (R, K) of rows it has not seen."""
        slope, offset = _calibrate(outputs.double(), codes, weight)
        head = cls(*coefficients.shape)
        # In the order of a file, on which rounding depends.
        head.weight = (coefficients * slope).float().contiguous()
        head.bias = (intercept * slope + offset).float()
        return head

    @classmethod
    def fit(
        cls,
        features: Tensor,
        codes: Tensor,
        weight: Tensor | None = None,
        *,
        sizes: Sequence[int] | None = None,
        candidates: Sequence[tuple[float, ...]] = ((1.0,),),
    ) -> tuple[Self, RidgeChoice]:
        """Fits ridge regression on the classes, in closed form.

        Each block of features is standardised and weighted so that blocks of weight 1 contribute
        equally. The weights of the blocks and the strength of the regularisation have the least
        squared error on cases left out one at a time. On the same outputs, of cases left out,
        class probabilities are calibrated.

        Args:
            features: (N, F), which are standardised in place.
            codes: (N,) classes 0 .. K - 1, each occurring.
            weight: (N,) weights of the cases, at least one of them positive; 1 by default.
            sizes: Numbers of features of the blocks; one block by default.
            candidates: Weights of the blocks to choose from.
        """
        n_cases, n_features = features.shape
        sizes = [n_features] if sizes is None else list(sizes)
        weight = torch.ones(n_cases) if weight is None else weight
        weight = _normalise(weight)
        mean, scale = _standardise(features, weight)
        targets = torch.nn.functional.one_hot(codes).double() * 2 - 1
        block_weights = _choose_block_weights(features, targets, weight, sizes, candidates)
        factors = _block_factors(sizes, block_weights)
        solution = _solve(features.mul_(factors), targets, weight)
        slope, offset = _calibrate(solution.left_out, codes, weight)
        head = cls(n_features, targets.shape[1])
        head.mean = mean
        head.weight = (solution.coefficients * (factors * scale).unsqueeze(1) * slope).float()
        head.bias = (solution.intercept * slope + offset).float()
        is_correct = (solution.left_out.argmax(1) == codes).double()
        score = float((is_correct * weight).sum() / weight.sum())
        return head, RidgeChoice(solution.alpha, block_weights, score, solution.error)


class _Solution(NamedTuple):
    """Coefficients (F, K), intercept (K,), outputs left out (N, K), and the squared error."""

    coefficients: Tensor
    intercept: Tensor
    left_out: Tensor
    alpha: float
    error: float


def _normalise(weight: Tensor) -> Tensor:
    """Scales weights to a mean of about 1. A case left out needs a weight: no 0 remains."""
    return (weight / weight.mean()).clamp(min=_LEAST_WEIGHT).float()


def _standardise(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Standardises features in place; returns means and factors (F,), 0 for constant features.

    Means are weighted. Deviations are not: features that vary little where the weight is would be
    blown up elsewhere.
    """
    std = features.std(0, correction=0)
    mean = (weight / weight.sum()) @ features
    features -= mean
    varies = std > 1e-5 * mean.abs() + 1e-9
    factor = torch.where(varies, 1 / torch.where(varies, std, 1.0), 0.0)
    features *= factor
    return mean, factor


def _block_factors(sizes: Sequence[int], block_weights: Sequence[float]) -> Tensor:
    factors = [
        torch.full((size,), (weight / max(1, size)) ** 0.5, dtype=torch.float32)
        for size, weight in zip(sizes, block_weights, strict=True)
    ]
    return torch.cat(factors)


def choose_search_cases(codes: Tensor, limit: int) -> Tensor:
    """Returns at most so many cases, evenly spaced in the order of their classes (N,)."""
    order = codes.argsort(stable=True)
    return order[torch.linspace(0, len(order) - 1, min(len(order), limit)).round().long()]


def _choose_block_weights(
    features: Tensor,
    targets: Tensor,
    weight: Tensor,
    sizes: Sequence[int],
    candidates: Sequence[tuple[float, ...]],
) -> tuple[float, ...]:
    if len(candidates) == 1:
        return candidates[0]
    rows = choose_search_cases(targets.argmax(1), SEARCH_CASES)
    some, targets, weight = features[rows], targets[rows], weight[rows]
    grams = [
        (block @ block.t()).double() / max(1, block.shape[1])
        for block in some.split(list(sizes), 1)
    ]
    errors = []
    for candidate in candidates:
        gram = sum(w * gram for w, gram in zip(candidate, grams, strict=True))
        errors.append(_solve_dual(gram, targets, weight)[1])
    return candidates[int(np.argmin(errors))]


def _solve(features: Tensor, targets: Tensor, weight: Tensor) -> _Solution:
    """Solves for the regularisation of the least error on cases left out."""
    intercept = (weight.double() @ targets) / weight.double().sum()
    if len(features) <= features.shape[1]:
        gram = (features @ features.t()).double()
        alpha, error, dual, left_out = _solve_dual(gram, targets, weight)
        dual = (dual * weight.double().sqrt().unsqueeze(1)).float()
        coefficients = (features.t() @ dual).double()
    else:
        alpha, error, coefficients, left_out = _solve_primal(features, targets, weight)
    # Features have mean 0, by weight.
    return _Solution(coefficients, intercept, left_out, alpha, error)


def _solve_dual(
    gram: Tensor, targets: Tensor, weight: Tensor
) -> tuple[float, float, Tensor, Tensor]:
    """Solves with a Gram matrix (N, N).

    Returns:
        The regularisation, the error, dual coefficients (N, K) and outputs left out (N, K).
    """
    root = weight.double().sqrt().unsqueeze(1)
    share = weight.double() / weight.double().sum()
    centred = root * (targets - share @ targets)
    values, vectors = torch.linalg.eigh(root * gram * root.t())
    values = values.clamp(min=0)
    projected, squares = vectors.t() @ centred, vectors.square()
    best = None
    for alpha in ALPHAS:
        inverse = 1 / (values + alpha)
        dual = vectors @ (inverse.unsqueeze(1) * projected)
        # The residual of a case left out is its residual over 1 minus its leverage, of which the
        # intercept has a share.
        remaining = (alpha * (squares @ inverse) - share).clamp(min=1e-9).unsqueeze(1)
        residual = alpha * dual / remaining
        error = float(residual.square().mean())
        if best is None or error < best[1]:
            best = alpha, error, dual, targets - residual / root
    assert best is not None
    return best


def _solve_primal(
    features: Tensor, targets: Tensor, weight: Tensor
) -> tuple[float, float, Tensor, Tensor]:
    """Solves with the covariance (F, F); returns what `_solve_dual` does, but coefficients."""
    root = weight.double().sqrt().unsqueeze(1)
    share = weight.double() / weight.double().sum()
    centred = root * (targets - share @ targets)
    covariance = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    crossed = torch.zeros(features.shape[1], targets.shape[1], dtype=torch.float64)
    # In parts, so that no second copy of the features is needed.
    parts = [slice(start, start + PART_CASES) for start in range(0, len(features), PART_CASES)]
    for part in parts:
        weighted = root[part].float() * features[part]
        covariance += (weighted.t() @ weighted).double()
        crossed += (weighted.t() @ centred[part].float()).double()
    values, vectors = torch.linalg.eigh(covariance)
    values, projected = values.clamp(min=0), vectors.t() @ crossed
    inverses = [1 / (values + alpha) for alpha in ALPHAS]
    solutions = [inverse.unsqueeze(1) * projected for inverse in inverses]
    residuals = torch.zeros(len(ALPHAS), *targets.shape, dtype=torch.float64)
    for part in parts:
        weighted = root[part].float() * features[part]
        rotated = (weighted @ vectors.float()).double()
        leverages = rotated.square() @ torch.stack(inverses, dim=1) + share[part].unsqueeze(1)
        for k, solution in enumerate(solutions):
            remaining = (1 - leverages[:, k]).clamp(min=1e-9).unsqueeze(1)
            residuals[k, part] = (centred[part] - rotated @ solution) / remaining
    errors = residuals.square().mean((1, 2))
    best = int(errors.argmin())
    left_out = targets - residuals[best] / root
    return ALPHAS[best], float(errors[best]), vectors @ solutions[best], left_out


def _calibrate(outputs: Tensor, codes: Tensor, weight: Tensor) -> tuple[float, Tensor]:
    """Returns the slope and the offsets (K,) that give outputs (N, K) the least log loss.

    Targets are smoothed towards the shares of the classes, as if there were one more case for each
    class, so that outputs which separate the classes have a finite slope.
    """
    n_cases, n_classes = outputs.shape
    z = outputs.numpy()
    share = (weight.double() / weight.double().sum()).numpy()
    one_hot = np.eye(n_classes)[codes.numpy()]
    smoothing = n_classes / n_cases
    target = (one_hot + smoothing * (share @ one_hot)) / (1 + smoothing)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        slope = np.exp(theta[0])
        logits = slope * z + theta[1:]
        logits -= logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        excess = share[:, None] * (np.exp(log_p) - target)
        gradient = np.concatenate([[slope * (excess * z).sum()], excess.sum(0)])
        gradient[1:] += 2 * _OFFSET_PENALTY * theta[1:]
        penalty = _OFFSET_PENALTY * (theta[1:] ** 2).sum()
        return float(-(share[:, None] * target * log_p).sum() + penalty), gradient

    # Without any signal the outputs of cases left out tend to the other classes, and a slope of 0
    # would forget the order of the cases.
    bounds = [(np.log(_LEAST_SLOPE), None), *[(None, None)] * n_classes]
    start = np.zeros(1 + n_classes)
    theta = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(np.exp(theta[0])), torch.from_numpy(theta[1:])
