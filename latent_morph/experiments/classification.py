"""Predicted classes of any classifier: their metrics and figures."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    recall_score,
    roc_auc_score,
)

from latent_morph.experiments.problem import Problem

N_BINS = 15  # of probabilities, in the calibration error
DRAWN_CHANNELS = 12


class Classifications(NamedTuple):
    """Predictions of a classifier for the test series."""

    classes: np.ndarray  # (K,)
    probabilities: np.ndarray  # (N, K), or (N, T, K) with one label per time point

    @property
    def labels(self) -> np.ndarray:
        """(N,) or (N, T), the most probable."""
        return self.classes[self.probabilities.argmax(-1)]


def compute_metrics(predictions: Classifications, problem: Problem) -> dict[str, float]:
    """Scores labels and probabilities; some only of two classes."""
    truth, labels = np.ravel(problem.test_y), predictions.labels.ravel()
    classes = predictions.classes
    probabilities = predictions.probabilities.reshape(-1, len(classes))
    scores = {
        "accuracy": float(accuracy_score(truth, labels)),
        # The mean recall of the classes in the test set; others may be predicted.
        "balanced_accuracy": float(
            recall_score(truth, labels, labels=np.unique(truth), average="macro")
        ),
        "macro_f1": float(f1_score(truth, labels, average="macro")),
        "log_loss": compute_log_loss(truth, classes, probabilities),
        "calibration_error": compute_calibration_error(
            labels == truth, probabilities.max(-1).astype(float)
        ),
    }
    if len(classes) == 2 and np.array_equal(np.unique(truth), classes):
        is_positive, positive = truth == classes[1], probabilities[:, 1]
        scores |= {
            "roc_auc": float(roc_auc_score(is_positive, positive)),
            "average_precision": float(average_precision_score(is_positive, positive)),
            "brier": float(brier_score_loss(is_positive, positive)),
            "event_1": event_1_score(is_positive, positive),
        }
    return scores


def compute_log_loss(truth: np.ndarray, classes: np.ndarray, probabilities: np.ndarray) -> float:
    """Computes the mean of minus the logarithm of the probability of the true class.

    A class that was not in the training set has the smallest probability, as if it were 0.
    """
    is_true = truth[:, None] == classes
    smallest = np.finfo(probabilities.dtype).eps
    of_truth = np.where(is_true, probabilities, 0).sum(-1).clip(smallest, 1)
    return float(-np.log(of_truth).mean())


def compute_calibration_error(is_correct: np.ndarray, confidence: np.ndarray) -> float:
    """Computes the expected calibration error, with bins of equal width.

    It is the mean distance between the accuracy of a bin and its mean confidence. C. Guo et al.:
    On calibration of modern neural networks. ICML 2017.
    """
    edges = np.linspace(0, 1, N_BINS + 1)[1:-1]
    bins = np.digitize(confidence, edges, right=True)
    excess = np.bincount(bins, weights=confidence - is_correct, minlength=N_BINS)
    return float(np.abs(excess).sum() / len(confidence))


def event_1_score(truth: np.ndarray, probability: np.ndarray) -> float:
    """Computes Event 1 of the PhysioNet challenge 2012, the smaller of recall and precision.

    The threshold uses no label. Recall and precision are equal where as many cases are flagged as
    are positive, and by the probabilities their sum is the expected number of positives: the
    threshold is the n-th largest probability, with that sum, rounded, as n. It depends on the
    predictions of all cases of the test set together. Cases of equal probability are flagged
    together, so that their order does not matter.

    The probabilities have to be calibrated. With `class_weight="balanced"` those of the rarer
    class are too large: too many cases are flagged, and the score is lower than the ranking
    allows for.

    Args:
        truth: (N,) bool, whether a case is positive; at least one is.
        probability: (N,) predicted probabilities of being positive.
    """
    n_positive = np.count_nonzero(truth)
    if n_positive == 0:
        raise ValueError(f"truth must have a positive case, got none of {len(truth)}")
    n_expected = round(float(probability.sum(dtype=float)))
    if n_expected == 0:
        return 0.0
    is_flagged = probability >= np.sort(probability)[-n_expected]
    # Recall and precision have the same numerator.
    n_hits = np.count_nonzero(is_flagged & truth)
    return n_hits / max(n_positive, np.count_nonzero(is_flagged))


def draw_confusion(predictions: Classifications, problem: Problem) -> Any:  # noqa: ANN401
    """Draws the confusion matrix of the test set."""
    from latent_morph import plots

    names = np.array(problem.class_names)
    truth, labels = names[problem.test_y], names[predictions.labels]
    return plots.plot_confusion(truth.ravel(), labels.ravel(), problem.class_names)


def draw_example(predictions: Classifications, problem: Problem) -> Any:  # noqa: ANN401
    """Draws a series with its true and predicted labels, in the channels most often observed.

    It is the series in which the label changes most often, or else the first.
    """
    from latent_morph import plots

    names = np.array(problem.class_names)
    shape = problem.test_X.shape[:2]
    truth, labels = (
        np.broadcast_to(codes.T, shape[::-1]).T for codes in (problem.test_y, predictions.labels)
    )
    case = int((truth[:, 1:] != truth[:, :-1]).sum(1).argmax())
    times, values = problem.test_X[case].to_ragged()[0]
    channels = choose_channels(values)
    return plots.plot_labelled_series(
        times,
        values[:, channels],
        names[truth[case, : len(times)]],
        names[labels[case, : len(times)]],
        problem.class_names,
        [problem.channel_names[channel] for channel in channels],
    )


def choose_channels(values: np.ndarray, n_channels: int = DRAWN_CHANNELS) -> list[int]:
    """Chooses the channels of a series (T, C) that are observed most often, in their order."""
    counts = np.isfinite(values).sum(0)
    return sorted(np.argsort(-counts, kind="stable")[:n_channels].tolist())
