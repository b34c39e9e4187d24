"""FilterBankClassifier: one label per series, from a filter bank and a linear head."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.metaestimators import available_if
from torch import Tensor, nn

from latent_morph.checks import check_device
from latent_morph.estimators.filters import BankEstimator, join_static
from latent_morph.estimators.heads import HeadEstimator
from latent_morph.estimators.labels import LabelMixin
from latent_morph.estimators.parameters import (
    FILTER_CLASSIFIER,
    MODE_SCALE,
    MODE_SCALES,
    TIME_ORIGIN,
    Parameter,
    documented,
)
from latent_morph.estimators.programs import probabilities_program
from latent_morph.estimators.series_labels import SeriesLabelMixin
from latent_morph.filters import BLOCKS, Bank
from latent_morph.io.export import Program
from latent_morph.models import RidgeChoice, RidgeHead, choose_search_cases
from latent_morph.series import Data, SeriesBatch

# Training series on which banks are compared.
CHOICE_CASES = 500
# Weights of the blocks, of which leaving one out chooses. Kernels have shares, positions and
# changes as blocks.
_POOL_WEIGHTS = ((1.0, 0.0, 0.0), (0.4, 0.3, 0.3), (0.3, 0.0, 0.7))
BLOCK_WEIGHTS = tuple(
    (modes, *(kernels * share for share in shares), observations, statistics)
    for observations, statistics in ((0.0, 0.0), (0.1, 1.0))
    for modes, kernels in ((1.0, 1.0), (1.0, 0.25), (0.25, 1.0), (1.0, 0.0), (0.0, 1.0))
    for shares in (_POOL_WEIGHTS if kernels else _POOL_WEIGHTS[:1])
)
# Of the block of encoded facts, in all of these: a few facts would drown in a larger block.
STATIC_WEIGHT = 1.0


class FilterModel(nn.Module):
    """A bank, and a head that maps its features to logits if there is one."""

    def __init__(self, bank: Bank, head: RidgeHead | None) -> None:
        super().__init__()
        self.bank = bank
        self.head = head

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor, static: Tensor | None = None
    ) -> Tensor:
        """Maps series and encoded facts to logits (N, K), or to features without a head."""
        features = join_static(self.bank(values, times, mask), static)
        return features if self.head is None else self.head(features)


def _fit_ridge(
    features: Tensor, codes: np.ndarray, weight: np.ndarray | None, bank: Bank
) -> tuple[RidgeHead, RidgeChoice]:
    sizes, candidates = bank.sizes(), BLOCK_WEIGHTS
    n_static = features.shape[1] - sum(sizes)
    if n_static:
        sizes = [*sizes, n_static]
        candidates = tuple((*weights, STATIC_WEIGHT) for weights in BLOCK_WEIGHTS)
    return RidgeHead.fit(
        features,
        torch.from_numpy(codes),
        None if weight is None else torch.from_numpy(weight),
        sizes=sizes,
        candidates=candidates,
    )


def _gives_probabilities(classifier: Any) -> bool:  # noqa: ANN401
    return classifier.head is None or hasattr(classifier.head, "predict_proba")


@documented
class FilterBankClassifier(SeriesLabelMixin, LabelMixin, BankEstimator, HeadEstimator):
    """Classifies irregular series, one label each, by a linear head on a filter bank.

    The features are those of `FilterBank`, static facts among them. Nothing is trained by
    gradients: a fit takes seconds for thousands of series, and needs no tuning.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    alpha_ : float
        The strength of the ridge regression's regularisation. Absent with a `head`.
    block_weights_ : dict
        The weight in it of each block of features. Absent with a `head`.
    loo_score_ : float
        Its accuracy on series left out one at a time. Absent with a `head`.
    head_ : Pipeline
        The fitted `head`. Absent without one.
    mode_scale_ : str
        What the modes read.
    n_lags_ : int
        Number of time lags of the kernels.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import FilterBankClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, rng.integers(8, 15))) for _ in range(60)]
    >>> X = [(t, np.sin((1 + i % 2) * t)) for i, t in enumerate(times)]
    >>> y = ["fast" if i % 2 else "slow" for i in range(60)]
    >>> model = FilterBankClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = FILTER_CLASSIFIER | {
        "time_origin": Parameter(
            [StrOptions({"auto", "case", "absolute"})],
            '{"auto", "case", "absolute"}',
            TIME_ORIGIN.meaning + " By default the one with the smaller error of the ridge "
            "regression on training series left out, which `scaler_.origin` tells.",
        ),
        "mode_scale": Parameter(
            [StrOptions({"auto", *MODE_SCALES})],
            '{"auto", "robust", "normal"}',
            MODE_SCALE.meaning + " Chosen like `time_origin` by default.",
        ),
    }
    model_: FilterModel

    def __init__(
        self,
        *,
        head: Any = None,  # noqa: ANN401
        time_origin: str = "auto",
        mode_scale: str = "auto",
        class_weight: dict[Any, float] | str | None = None,
        max_memory: float = 64.0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.head = head
        self.time_origin = time_origin
        self.mode_scale = mode_scale
        self.class_weight = class_weight
        self.max_memory = max_memory
        self.device = device
        self.random_state = random_state

    def fit(self, X: Data, y: Data, sample_weight: Data = None) -> Self:
        """Fits the head to the features of series and their labels.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : array-like of shape (n_cases,)
            One label per series.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each series; 0 is equivalent to its absence. Only proportions matter.
        """
        self._validate_params()
        batch, codes, weight, _ = self._validate_labelled(X, y, sample_weight)
        factors = self._class_factors(codes, weight)
        label_weight = weight
        if factors is not None:
            label_weight = (1.0 if weight is None else weight) * factors.numpy()[codes]
        check_device("device", self.device)
        self._remember_params()
        self._fit_static(batch, None if weight is None else torch.from_numpy(weight))
        seed = self._draw_seed()
        candidates = self._list_candidates(batch)
        origin, mode_scale = candidates[0]
        if len(candidates) > 1:
            origin, mode_scale = self._choose_bank(
                candidates, batch, codes, seed, weight, label_weight
            )
        bank = self._fit_bank(batch, origin, mode_scale, seed, weight)
        features = self._compute_features(bank, batch)
        self._forget("alpha_", "block_weights_", "loo_score_", "head_")
        if self.head is None:
            head, choice = _fit_ridge(features, codes, label_weight, bank)
            self.alpha_ = choice.alpha
            blocks = (*BLOCKS, "static")[: len(choice.block_weights)]
            self.block_weights_ = dict(zip(blocks, choice.block_weights, strict=True))
            self.loo_score_ = choice.score
            self.model_ = FilterModel(bank, head.to(self.device))
            return self
        self._fit_user_head(features, codes, label_weight)
        self.model_ = FilterModel(bank, None)
        return self

    def _list_candidates(self, batch: SeriesBatch) -> list[tuple[str, str]]:
        """Returns origins of time and scales of the modes to choose from."""
        origins, scales = [self.time_origin], [self.mode_scale]
        if self.time_origin == "auto":
            observed = batch.mask.any(-1)
            starts = torch.where(observed, batch.times, torch.inf).amin(1)
            ends = torch.where(observed, batch.times, -torch.inf).amax(1)
            # Both origins are the same for series that start and end together.
            is_same = bool((starts == starts[0]).all() and (ends == ends[0]).all())
            origins = ["case"] if is_same else ["case", "absolute"]
        if self.mode_scale == "auto":
            scales = list(MODE_SCALES)
        return [(origin, scale) for origin in origins for scale in scales]

    def _choose_bank(
        self,
        candidates: Sequence[tuple[str, str]],
        batch: SeriesBatch,
        codes: np.ndarray,
        seed: int,
        weight: np.ndarray | None,
        label_weight: np.ndarray | None,
    ) -> tuple[str, str]:
        """Chooses the bank that is best for the ridge regression on cases left out."""
        some = choose_search_cases(torch.from_numpy(codes), CHOICE_CASES).numpy()
        part, part_codes = batch[some], codes[some]
        part_weight = None if weight is None else weight[some]
        weights = None if label_weight is None else label_weight[some]
        errors = {}
        for candidate in candidates:
            bank = self._fit_bank(part, *candidate, seed, part_weight)
            features = self._compute_features(bank, part)
            errors[candidate] = _fit_ridge(features, part_codes, weights, bank)[1].error
        return min(errors, key=lambda candidate: errors[candidate])

    predict_proba = available_if(_gives_probabilities)(SeriesLabelMixin.predict_proba)

    def _compute_probabilities(self, batch: SeriesBatch) -> np.ndarray:
        if self.model_.head is None:
            features = self._compute_features(self.model_.bank, batch)
            return self.head_.predict_proba(features.numpy())
        return self._compute_logits(batch).softmax(-1).numpy()

    def _predict_codes(self, batch: SeriesBatch) -> np.ndarray:
        if self.model_.head is None:
            return self.head_.predict(self._compute_features(self.model_.bank, batch).numpy())
        return self._compute_logits(batch).argmax(-1).numpy()

    def _compute_logits(self, batch: SeriesBatch) -> Tensor:
        """Returns (N, K), float64."""
        n_numbers = self._count_numbers(self.model_.bank, batch)
        return self._map_parts(self.model_, batch, n_numbers).double()

    def _new_model(self) -> nn.Module:
        bank = self._new_bank()
        if self.head is not None:
            return FilterModel(bank, None)
        n_features = sum(bank.sizes()) + self._n_static()
        return FilterModel(bank, RidgeHead(n_features, len(self.classes_)))

    def _program(self) -> Program:
        self._check_own_head("exported")
        return probabilities_program(self.model_, self.scaler_, self.classes_)

    def _extra_config(self) -> dict[str, Any]:
        self._check_own_head("saved")
        return super()._extra_config() | {
            "alpha": self.alpha_,
            "block_weights": self.block_weights_,
            "loo_score": self.loo_score_,
        }

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        self.alpha_ = config["alpha"]
        self.block_weights_ = config["block_weights"]
        self.loo_score_ = config["loo_score"]
