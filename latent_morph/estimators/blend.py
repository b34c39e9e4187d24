"""BlendClassifier: a blend of classifiers of series, weighted on cases left out."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import GroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state

from latent_morph.estimators.filter_classifier import FilterBankClassifier
from latent_morph.estimators.parameters import COUNT, TRAINING, Parameter, documented
from latent_morph.estimators.series_labels import SeriesLabelMixin
from latent_morph.estimators.statistics import SeriesStatistics
from latent_morph.series import Data, SeriesBatch

# Probabilities are blended by their logarithms, which are cut there.
LEAST_PROBABILITY = 1e-4
# A member without which the log loss, summed over all series, is higher by less gets no weight.
LEAST_GAIN = 1.0


@documented
class BlendClassifier(SeriesLabelMixin):
    """Blends classifiers of irregular series, one label each, when only the score counts.

    Every member predicts series that it was not fitted to, fold by fold. On these predictions the
    logarithms of probabilities get weights, and classes get offsets, with the least log loss: so
    members that add nothing get no weight, and probabilities are calibrated. Then the members
    that have a weight are fitted to all series.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    estimators_ : dict
        The fitted members that have a weight, by name.
    weights_ : dict
        The weight of each member, 0 for those left out.
    offsets_ : ndarray of shape (n_classes,)
        What is added to the weighted logarithms.
    losses_ : dict
        The log loss of each member, and of the "blend", on series left out.
    n_channels_ : int
        Number of channels.
    n_features_in_ : int
        Number of columns of a 2-D X, otherwise of channels.
    fitted_on_table_ : bool
        Whether X was 2-D; a 2-D X in predictions must then have as many columns.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import BlendClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, rng.integers(8, 15))) for _ in range(60)]
    >>> X = [(t, np.sin((1 + i % 2) * t)) for i, t in enumerate(times)]
    >>> y = ["fast" if i % 2 else "slow" for i in range(60)]
    >>> model = BlendClassifier(cv=3, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _last_fitted: ClassVar[str] = "estimators_"
    _parameters: ClassVar[Mapping[str, Parameter]] = {
        "estimators": Parameter(
            ["array-like", None],
            "list of (str, classifier) or None",
            "Names and classifiers of series, which give probabilities. None is a filter bank and "
            "boosted trees on `SeriesStatistics`.",
        ),
        "cv": Parameter([COUNT], "int", "Number of folds, at least 2."),
        "random_state": TRAINING["random_state"]._replace(
            meaning="Seed of the folds, and of members whose own seed is None."
        ),
    }

    def __init__(
        self,
        *,
        estimators: Sequence[tuple[str, Any]] | None = None,
        cv: int = 5,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimators = estimators
        self.cv = cv
        self.random_state = random_state

    def fit(self, X: Data, y: Data, groups: Data = None) -> Self:
        """Fits members and weights to series and their labels.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : array-like of shape (n_cases,)
            One label per series.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are in one fold.
        """
        self._validate_params()
        batch, codes, _, groups = self._validate_labelled(X, y, groups=groups)
        if len(self.classes_) < 2:
            raise ValueError("y must have at least 2 classes, got 1 class")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        members = _seed_members(self._make_members(), seed)
        folds = _make_folds(codes, groups, self.cv, seed)
        logs = np.stack(
            [_predict_left_out(member, batch, codes, folds) for member in members.values()]
        )
        weights, self.offsets_, losses = fit_weights(logs, codes)
        self.weights_ = dict(zip(members, weights.tolist(), strict=True))
        self.losses_ = dict(zip([*members, "blend"], losses, strict=True))
        self.estimators_ = {
            name: clone(member).fit(batch, codes)
            for name, member in members.items()
            if self.weights_[name] > 0
        }
        return self

    def _compute_probabilities(self, batch: SeriesBatch) -> np.ndarray:
        logits = np.tile(self.offsets_, (len(batch), 1))
        for name, member in self.estimators_.items():
            logits += self.weights_[name] * _log_probabilities(member, batch, len(self.classes_))
        return np.exp(log_softmax(logits, axis=1))

    def _make_members(self) -> dict[str, Any]:
        if self.estimators is None:
            trees = HistGradientBoostingClassifier(
                learning_rate=0.03, max_iter=300, max_leaf_nodes=8, l2_regularization=1.0
            )
            return {
                "filter bank": FilterBankClassifier(),
                "trees": make_pipeline(SeriesStatistics(fill="nan"), trees),
            }
        members = dict(self.estimators)
        if not members or len(members) < len(self.estimators):
            raise ValueError(
                "estimators must be pairs of different names and classifiers, got "
                f"{self.estimators!r}"
            )
        return members


def _seed_members(members: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Copies members and gives a seed to those without one."""
    seeded = {}
    for name, member in members.items():
        copy = clone(member)
        unset = {
            key: seed
            for key, value in copy.get_params().items()
            if (key == "random_state" or key.endswith("__random_state")) and value is None
        }
        seeded[name] = copy.set_params(**unset)
    return seeded


def _make_folds(
    codes: np.ndarray, groups: Data, n_folds: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    cases = np.zeros(len(codes))
    if groups is not None:
        n_folds = min(n_folds, len(np.unique(np.asarray(groups))))
        return list(GroupKFold(n_folds).split(cases, codes, groups))
    n_folds = min(n_folds, int(np.bincount(codes).min()))
    if n_folds < 2:
        rare = np.bincount(codes).argmin()
        raise ValueError(f"y must have at least 2 series of each class, got 1 of class {rare}")
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    return list(folds.split(cases, codes))


def _predict_left_out(
    member: Any,  # noqa: ANN401
    batch: SeriesBatch,
    codes: np.ndarray,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Returns logarithms of probabilities (N, K) of series by fits without them."""
    n_classes = codes.max() + 1
    logs = np.zeros((len(codes), n_classes))
    for train, test in folds:
        fitted = clone(member).fit(batch[train].trim(), codes[train])
        logs[test] = _log_probabilities(fitted, batch[test].trim(), n_classes)
    return logs


def _log_probabilities(member: Any, batch: SeriesBatch, n_classes: int) -> np.ndarray:  # noqa: ANN401
    """Returns (N, K) of a member that may not know all classes."""
    probabilities = np.zeros((len(batch), n_classes))
    probabilities[:, member.classes_] = member.predict_proba(batch)
    return np.log(probabilities.clip(LEAST_PROBABILITY, 1))


def fit_weights(logs: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Finds the weights of members, and offsets of classes, of the least log loss.

    A penalty, as strong as one case, holds the weights near equal ones and the offsets near 0.

    Args:
        logs: (M, N, K) logarithms of probabilities of M members.
        codes: (N,).

    Returns:
        (M,) weights, (K,) offsets, and the log loss of each member and of the blend.
    """
    n_members, n_cases, n_classes = logs.shape
    one_hot = np.eye(n_classes)[codes]

    def solve(active: np.ndarray) -> tuple[np.ndarray, float]:
        equal = active / active.sum()

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            weights, offsets = theta[:n_members], theta[n_members:]
            log_p = log_softmax(np.tensordot(weights, logs, 1) + offsets, axis=1)
            excess = (np.exp(log_p) - one_hot) / n_cases
            gradient = np.concatenate(
                [(excess * logs).sum((1, 2)) + 2 * (weights - equal) / n_cases, excess.sum(0)]
            )
            gradient[n_members:] += 2 * offsets / n_cases
            penalty = (np.square(weights - equal).sum() + np.square(offsets).sum()) / n_cases
            return float(-(one_hot * log_p).sum() / n_cases + penalty), gradient

        bounds = [(0, None) if is_active else (0, 0) for is_active in active]
        start = np.concatenate([equal, np.zeros(n_classes)])
        result = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[*bounds, *[(None, None)] * n_classes]
        )
        weights, offsets = result.x[:n_members], result.x[n_members:]
        log_p = log_softmax(np.tensordot(weights, logs, 1) + offsets, axis=1)
        return result.x, float(-(one_hot * log_p).sum() / n_cases)

    active = np.ones(n_members)
    theta, blended = solve(active)
    while active.sum() > 1:
        # The member that is missed least.
        trials = {}
        for member in np.flatnonzero(active):
            others = active.copy()
            others[member] = 0
            trials[member] = solve(others)
        least = min(trials, key=lambda member: trials[member][1])
        if trials[least][1] > blended + LEAST_GAIN / n_cases:
            break
        active[least] = 0
        theta, blended = trials[least]
    losses = [float(-(one_hot * log_softmax(each, axis=1)).sum() / n_cases) for each in logs]
    return theta[:n_members], theta[n_members:], [*losses, blended]
