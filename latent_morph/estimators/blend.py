"""Blends of classifiers of series and of time points, weighted on cases left out."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor

from latent_morph.estimators.base import SeriesInputs
from latent_morph.estimators.classifier import LatentODEClassifier
from latent_morph.estimators.filter_classifier import FilterBankClassifier
from latent_morph.estimators.filter_points import FilterBankPointClassifier
from latent_morph.estimators.labels import LabelCodes
from latent_morph.estimators.parameters import (
    ATTRIBUTES,
    TRAINING,
    Parameter,
    documented,
)
from latent_morph.estimators.point_labels import PointLabels
from latent_morph.estimators.series_labels import SeriesLabelMixin
from latent_morph.estimators.statistics import SeriesStatistics
from latent_morph.series import Data, SeriesBatch

# Probabilities are blended by their logarithms, which are cut there.
LEAST_PROBABILITY = 1e-4
# A member without which the log loss, summed over all series, is higher by less gets no weight.
LEAST_GAIN = 1.0
# From so many series on, a latent ODE stops after so many epochs without improvement.
MANY, PATIENCE = 1000, 5


_PARAMETERS: dict[str, Parameter] = {
    "estimators": Parameter(
        ["array-like", None],
        "list of (str, classifier) or None",
        "Names and classifiers of series, which give probabilities. None is a filter bank, "
        "boosted trees on `SeriesStatistics`, and a latent ODE, which takes most of the time.",
    ),
    "cv": Parameter(
        [Interval(Integral, 2, None, closed="left")], "int", "Number of folds, at least 2."
    ),
    "random_state": TRAINING["random_state"]._replace(
        meaning="Seed of the folds, and of members whose own seed is None."
    ),
}
_INPUT_ATTRIBUTES = ("static_encoder_", "n_channels_", "n_features_in_", "fitted_on_table_")


class _Blend(LabelCodes, SeriesInputs):
    """Fits members and their weights; subclasses know what a label belongs to."""

    _last_fitted: ClassVar[str] = "estimators_"
    _parameters: ClassVar[Mapping[str, Parameter]] = _PARAMETERS
    _attributes: ClassVar[Mapping[str, tuple[str, str]]] = {
        "estimators_": ("dict", "The fitted members that have a weight, by name."),
        "weights_": ("dict", "The weight of each member, 0 for those left out."),
        "offsets_": (
            "ndarray of shape (n_classes,)",
            "What is added to the weighted logarithms.",
        ),
        "losses_": (
            "dict",
            'The log loss of each member, and of the "blend", on series left out.',
        ),
    } | {name: ATTRIBUTES[name] for name in _INPUT_ATTRIBUTES}

    # Parameters that methods here use, declared by the constructors of subclasses.
    estimators: Sequence[tuple[str, Any]] | None
    cv: int
    random_state: Any

    def default_members(self, n_labels: int) -> dict[str, Any]:
        """Returns the members that `estimators=None` stands for with `n_labels` labels."""
        raise NotImplementedError

    def _fit_blend(
        self, batch: SeriesBatch, codes: Data, strata: np.ndarray | None, groups: Data
    ) -> Self:
        """Fits weights and members.

        Args:
            batch: N series.
            codes: N codes, or arrays of the codes of the time points of each series.
            strata: (N,) labels that folds should share alike; None for folds at random.
            groups: (N,) groups that stay together, or None.
        """
        if len(self.classes_) < 2:
            raise ValueError("y must have at least 2 classes, got 1 class")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        flat = np.concatenate([np.atleast_1d(each) for each in codes])
        members = _seed_members(self._make_members(len(flat)), seed)
        groups = None if groups is None else np.asarray(groups)
        folds = _make_folds(len(batch), strata, groups, self.cv, seed)
        case = np.repeat(np.arange(len(batch)), [np.size(each) for each in codes])
        logs = np.zeros((len(members), len(flat), len(self.classes_)))
        for left_out, member in zip(logs, members.values(), strict=True):
            for train, test in folds:
                fitted = _fit_member(member, batch, codes, groups, train)
                rows = np.isin(case, test)
                left_out[rows] = _log_probabilities(fitted, batch[test].trim(), len(self.classes_))
        weights, self.offsets_, losses = fit_weights(logs, flat)
        self.weights_ = dict(zip(members, weights.tolist(), strict=True))
        self.losses_ = dict(zip([*members, "blend"], losses, strict=True))
        every = np.arange(len(batch))
        self.estimators_ = {
            name: _fit_member(member, batch, codes, groups, every)
            for name, member in members.items()
            if self.weights_[name] > 0
        }
        return self

    def _make_members(self, n_labels: int) -> dict[str, Any]:
        if self.estimators is None:
            return self.default_members(n_labels)
        members = dict(self.estimators)
        if not members or len(members) < len(self.estimators):
            raise ValueError(
                "estimators must be pairs of different names and classifiers, got "
                f"{self.estimators!r}"
            )
        return members

    def _blend(self, batch: SeriesBatch) -> np.ndarray:
        """Returns probabilities (R, K) of all series, or of all their time points."""
        n_classes = len(self.classes_)
        return self._combine(lambda member: _log_probabilities(member, batch, n_classes))

    def _combine(self, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
        """Returns probabilities (..., K), given the logarithms of those of a member.

        Where no member has a weight they are (K,), the same for all.
        """
        logits = self.offsets_
        for name, member in self.estimators_.items():
            logits = logits + self.weights_[name] * compute(member)
        return softmax(logits, axis=-1)


@documented
class BlendClassifier(SeriesLabelMixin, _Blend):
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
    {attributes}

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
        return self._fit_blend(batch, codes, self.classes_[codes], groups)

    def _compute_probabilities(self, batch: SeriesBatch) -> np.ndarray:
        return np.broadcast_to(self._blend(batch), (len(batch), len(self.classes_))).copy()

    def default_members(self, n_labels: int) -> dict[str, Any]:
        """Returns the members that `estimators=None` stands for with `n_labels` series, by name.

        With many series, training of the latent ODE stops when it no longer improves.
        """
        trees = HistGradientBoostingClassifier(
            learning_rate=0.03, max_iter=300, max_leaf_nodes=8, l2_regularization=1.0
        )
        return {
            "filter bank": FilterBankClassifier(),
            "trees": make_pipeline(SeriesStatistics(fill="nan"), trees),
            "latent ODE": LatentODEClassifier(patience=PATIENCE if n_labels >= MANY else None),
        }


@documented
class BlendPointClassifier(PointLabels, _Blend):
    """Blends classifiers of the time points of irregular series, when only the score counts.

    As `BlendClassifier`, with a label for every time point: an array (n_cases, n_times), or a list
    of one array per series if lengths differ. Whole series are left out, or whole groups.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    {attributes}
    one_label_per_series_ : bool
        Whether there was one label per series; predictions are then one per series too.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import BlendPointClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, 20)) for _ in range(60)]
    >>> X = [(t, np.sin(t)) for t in times]
    >>> y = [np.where(np.cos(t) > 0, "rising", "falling") for t in times]
    >>> model = BlendPointClassifier(cv=3, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = _PARAMETERS | {
        "estimators": _PARAMETERS["estimators"]._replace(
            meaning="Names and classifiers of time points, which give probabilities. None is "
            "`FilterBankPointClassifier` with its own head and with a random forest."
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
        """Fits members and weights to series and the labels of their time points.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts, with sorted times, since labels are not
            sorted with them.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            Labels.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are in one fold. Members that take `groups` are given them too.
        """
        self._validate_params()
        self._check_target(y)
        batch, codes, _, groups = self._validate_points(X, y, None, groups)
        of_cases = [row[:length].numpy() for row, length in zip(codes, batch.lengths, strict=True)]
        return self._fit_blend(batch, of_cases, None, groups)

    def _compute_probabilities(self, batch: SeriesBatch) -> Tensor:
        probabilities = torch.zeros(
            len(batch), batch.n_times, len(self.classes_), dtype=torch.float64
        )
        probabilities[batch.present] = torch.from_numpy(self._blend(batch))
        return probabilities

    def _compute_query_probabilities(self, batch: SeriesBatch, times: ArrayLike) -> Tensor:
        n_classes = len(self.classes_)
        probabilities = self._combine(
            lambda member: _spread_classes(member, member.predict_proba(batch, times), n_classes)
        )
        shape = len(batch), np.shape(times)[-1], n_classes
        return torch.from_numpy(np.broadcast_to(probabilities, shape).copy())

    def default_members(self, n_labels: int) -> dict[str, Any]:
        """Returns the members that `estimators=None` stands for with `n_labels` rows, by name."""
        # Trees learn from a third of the rows each where these are many, and alike in a series.
        share = 0.3 if n_labels > 1000 else None
        forest = RandomForestClassifier(min_samples_leaf=2, max_samples=share)
        return {
            "filter bank": FilterBankPointClassifier(),
            "forest": FilterBankPointClassifier(head=forest),
        }


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
    n_cases: int, strata: np.ndarray | None, groups: np.ndarray | None, n_folds: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    cases = np.zeros(n_cases)
    if groups is not None:
        n_groups = len(np.unique(groups))
        if n_groups < 2:
            raise ValueError(f"groups must have at least 2 different values, got {n_groups}")
        n_folds = min(n_folds, n_groups)
        return list(GroupKFold(n_folds).split(cases, groups=groups))
    if strata is None:
        n_folds = min(n_folds, n_cases)
        return list(KFold(n_folds, shuffle=True, random_state=seed).split(cases))
    labels, counts = np.unique(strata, return_counts=True)
    n_folds = min(n_folds, int(counts.min()))
    if n_folds < 2:
        rare = labels[counts.argmin()]
        raise ValueError(f"y must have at least 2 series of each class, got 1 of class {rare}")
    folds = StratifiedKFold(n_folds, shuffle=True, random_state=seed)
    return list(folds.split(cases, strata))


def _fit_member(
    member: Any,  # noqa: ANN401
    batch: SeriesBatch,
    codes: Data,
    groups: np.ndarray | None,
    cases: np.ndarray,
) -> Any:  # noqa: ANN401
    """Fits a copy of a member to some of the cases."""
    options = {}
    if groups is not None and has_fit_parameter(member, "groups"):
        options["groups"] = groups[cases]
    return clone(member).fit(batch[cases].trim(), [codes[i] for i in cases], **options)


def _log_probabilities(member: Any, batch: SeriesBatch, n_classes: int) -> np.ndarray:  # noqa: ANN401
    """Returns (R, K) of all series, or of all their time points."""
    probabilities = member.predict_proba(batch)
    if isinstance(probabilities, list) or probabilities.ndim == 3:  # of time points
        probabilities = np.concatenate(list(probabilities))
    return _spread_classes(member, probabilities, n_classes)


def _spread_classes(member: Any, probabilities: np.ndarray, n_classes: int) -> np.ndarray:  # noqa: ANN401
    """Returns logarithms (..., K) of probabilities of a member that may not know all classes."""
    known = np.zeros((*probabilities.shape[:-1], n_classes))
    known[..., member.classes_] = probabilities
    return np.log(known.clip(LEAST_PROBABILITY, 1))


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
