"""MONITORS: scores of class probabilities on validation series, which choose the best epoch."""

from collections.abc import Callable

import numpy as np
from sklearn.metrics import average_precision_score, recall_score, roc_auc_score

# Functions of probabilities (R, K), codes (R,) and weights (R,); higher is better.
Monitor = Callable[[np.ndarray, np.ndarray, np.ndarray], float]


def _negative_log_loss(probabilities: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> float:
    least = np.finfo(probabilities.dtype).tiny
    chosen = probabilities[np.arange(len(codes)), codes].clip(min=least)
    return float(np.average(np.log(chosen), weights=weight))


def _accuracy(probabilities: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> float:
    return float(np.average(probabilities.argmax(1) == codes, weights=weight))


def _balanced_accuracy(probabilities: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> float:
    # The mean recall of the classes that the validation series have.
    known, predicted = np.unique(codes), probabilities.argmax(1)
    return float(
        recall_score(codes, predicted, labels=known, average="macro", sample_weight=weight)
    )


def _one_against_rest(score: Callable[..., float]) -> Monitor:
    """Averages a score of one class against the others; of two classes only the second counts."""

    def evaluate(probabilities: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> float:
        n_classes = probabilities.shape[1]
        scores = [
            score(codes == k, probabilities[:, k], sample_weight=weight)
            for k in range(0 if n_classes > 2 else 1, n_classes)
            if 0 < weight[codes == k].sum() < weight.sum()
        ]
        if not scores:
            raise ValueError(
                "monitor must be 'log_loss' or 'accuracy' for validation series of a single class"
            )
        return float(np.mean(scores))

    return evaluate


MONITORS: dict[str, Monitor] = {
    "log_loss": _negative_log_loss,
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "roc_auc": _one_against_rest(roc_auc_score),
    "average_precision": _one_against_rest(average_precision_score),
}
