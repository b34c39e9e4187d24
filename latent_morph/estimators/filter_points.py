"""FilterBankPointClassifier: one label per time point, from the filters' states at each row."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor, nn

from latent_morph.checks import check_device
from latent_morph.estimators.filters import append_static, join_static
from latent_morph.estimators.heads import HeadEstimator
from latent_morph.estimators.parameters import (
    COUNT_OR_ZERO,
    FILTER_CLASSIFIER,
    Parameter,
    documented,
)
from latent_morph.estimators.point_labels import PointLabelMixin
from latent_morph.estimators.programs import probabilities_program
from latent_morph.filters import PointBank, RandomLayer
from latent_morph.io.export import Program
from latent_morph.models import Moments, RidgeHead, choose_alpha
from latent_morph.series import Data, SeriesBatch, SeriesScaler, insert_rows

MAX_FOLDS = 5
# Training series on whose rows features are standardised, and probabilities are calibrated.
SAMPLE_CASES = 512
# Relative to the size of the times.
_SAME_TIME = 1e-12


class PointModel(nn.Module):
    """A bank for rows, a random layer, and a head that maps them to logits if there is one."""

    def __init__(self, bank: PointBank, layer: RandomLayer, head: RidgeHead | None) -> None:
        super().__init__()
        self.bank = bank
        self.layer = layer
        self.head = head

    def features(
        self, values: Tensor, times: Tensor, mask: Tensor, static: Tensor | None = None
    ) -> Tensor:
        """Maps series and encoded facts to features (N, T, F)."""
        return self.layer(join_static(self.bank(values, times, mask), static))

    def forward(
        self, values: Tensor, times: Tensor, mask: Tensor, static: Tensor | None = None
    ) -> Tensor:
        """Maps series and encoded facts to logits (N, T, K), or to features without a head."""
        features = self.features(values, times, mask, static)
        return features if self.head is None else self.head(features)


@documented
class FilterBankPointClassifier(PointLabelMixin, HeadEstimator):
    """Classifies every time point of irregular series, by a linear head on filters.

    At each row, filters that run forwards and backwards through time tell the recent past and the
    near future of each channel; static facts are the same in every row. Random units of a few of
    these features each make the head see more than sums. Nothing is trained by gradients. There is
    one label per time point: an array (n_cases, n_times), or a list of one array per series if
    lengths differ. With one label per series, it is taken for all of its time points, and
    predictions are one per series too.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels.
    alpha_ : float
        The strength of the ridge regression's regularisation. Absent with a `head`.
    head_ : Pipeline
        The fitted `head`. Absent without one.
    {attributes}
    one_label_per_series_ : bool
        Whether there was one label per series; predictions are then one per series too.

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import FilterBankPointClassifier
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, 20)) for _ in range(60)]
    >>> X = [(t, np.sin(t)) for t in times]
    >>> y = [np.where(np.cos(t) > 0, "rising", "falling") for t in times]
    >>> model = FilterBankPointClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = FILTER_CLASSIFIER | {
        "head": FILTER_CLASSIFIER["head"]._replace(
            meaning="Classifier of the rows. None is a ridge regression on the classes, whose "
            "regularisation and probabilities are calibrated on series, or groups, left out. Any "
            "classifier of scikit-learn that gives probabilities may take its place."
        ),
        "n_units": Parameter(
            [COUNT_OR_ZERO],
            "int",
            "Random units for the ridge regression; a `head` is given the filters alone.",
        ),
    }
    model_: PointModel

    def __init__(
        self,
        *,
        head: Any = None,  # noqa: ANN401
        n_units: int = 1000,
        class_weight: dict[Any, float] | str | None = None,
        max_memory: float = 64.0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.head = head
        self.n_units = n_units
        self.class_weight = class_weight
        self.max_memory = max_memory
        self.device = device
        self.random_state = random_state

    def fit(self, X: Data, y: Data, sample_weight: Data = None, groups: Data = None) -> Self:
        """Fits the head to the rows of series and their labels.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts, with sorted times, since labels are not
            sorted with them.
        y : array-like of shape (n_cases, n_times) or (n_cases,), or list of arrays (T_i,)
            Labels.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each series; 0 is equivalent to its absence. Only proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are left out together, when the regularisation is chosen and
            probabilities are calibrated: for predictions of groups that were never seen.
        """
        self._validate_params()
        self._check_target(y)
        check_device("device", self.device)
        batch, codes, weight, groups = self._validate_points(X, y, sample_weight, groups)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        generator = torch.Generator().manual_seed(seed)
        self._remember_params()
        row_weight, is_weighted = self._weigh_rows(batch, codes, weight)
        case_weight = None if weight is None else torch.from_numpy(weight)
        self._fit_static(batch, case_weight)
        self.scaler_ = SeriesScaler("robust").fit(batch, weight=case_weight)
        scaled = self.scaler_.transform(batch).to(dtype=torch.float32)
        bank = PointBank.fit(scaled.values, scaled.times, scaled.mask)
        sample = torch.randperm(len(batch), generator=generator)[:SAMPLE_CASES]
        with_facts = append_static(bank.to(self.device))
        rows = self._compute_rows(with_facts, batch[sample], bank.numbers_per_row())
        n_units = self.n_units if self.head is None else 0
        layer = RandomLayer.fit(rows, n_units, generator)
        model = PointModel(bank, layer, None).to(self.device)
        self._forget("alpha_", "head_")
        if self.head is None:
            folds = _make_folds(len(batch), groups, generator)
            weights = torch.zeros(codes.shape, dtype=torch.float32)
            weights[batch.present] = torch.from_numpy(row_weight / row_weight.mean()).float()
            model.head = self._fit_head(model, batch, codes, weights, folds, sample)
        else:
            flat = codes[batch.present].numpy()
            rows = self._compute_rows(model, batch, bank.numbers_per_row())
            self._fit_user_head(rows, flat, row_weight if is_weighted else None)
        self.model_ = model
        return self

    def _weigh_rows(
        self, batch: SeriesBatch, codes: Tensor, weight: np.ndarray | None
    ) -> tuple[np.ndarray, bool]:
        """Returns the weights (R,) of all rows, without the padding, and whether they differ."""
        cases = np.ones(len(batch)) if weight is None else weight
        row_weight = np.repeat(cases, batch.lengths.numpy())
        flat = codes[batch.present].numpy()
        factors = self._class_factors(flat, row_weight)
        if factors is not None:
            row_weight = row_weight * factors.numpy()[flat]
        return row_weight, weight is not None or factors is not None

    def _fit_head(
        self,
        model: PointModel,
        batch: SeriesBatch,
        codes: Tensor,
        weights: Tensor,
        folds: Tensor,
        sample: Tensor,
    ) -> RidgeHead:
        """Fits the ridge regression in a pass over the series, and calibrates it on a sample."""
        n_features = len(model.layer.mean) + len(model.layer.bias)
        n_classes, n_folds = len(self.classes_), int(folds.max()) + 1
        moments = [Moments(n_features, n_classes) for _ in range(n_folds)]
        signs = 2 * torch.eye(n_classes, dtype=torch.float32) - 1
        for chosen, features in self._each_part(
            model.features, batch, self._count_numbers(model, batch)
        ):
            part = codes[chosen][:, : features.shape[1]]
            for fold in folds[chosen].unique().tolist():
                is_row = (part >= 0) & (folds[chosen] == fold).unsqueeze(1)
                weight = weights[chosen][:, : features.shape[1]][is_row]
                moments[fold].add(features[is_row], signs[part[is_row]], weight)
        self.alpha_, solutions = choose_alpha(moments)
        outputs = torch.zeros(len(sample), batch.n_times, n_classes, dtype=torch.float32)
        some = batch[sample]
        for chosen, features in self._each_part(
            model.features, some, self._count_numbers(model, some)
        ):
            for fold, (coefficients, intercept) in enumerate(solutions):
                cases = chosen[folds[sample[chosen]] == fold] if n_folds > 1 else chosen
                left_out = features[torch.isin(chosen, cases)] @ coefficients.float()
                outputs[cases, : features.shape[1]] = left_out + intercept.float()
        is_row = codes[sample] >= 0
        return RidgeHead.from_solution(
            *moments[0].combine(moments[1:]).solve(self.alpha_),
            outputs=outputs[is_row],
            codes=codes[sample][is_row],
            weight=weights[sample][is_row],
        ).to(self.device)

    def _count_numbers(self, model: PointModel, batch: SeriesBatch) -> Tensor:
        per_row = model.bank.numbers_per_row() + 4 * len(model.layer.bias)
        return per_row * batch.lengths

    def _compute_rows(
        self, function: Callable[..., Tensor], batch: SeriesBatch, per_row: int
    ) -> Tensor:
        """Returns the features (R, F) of all rows, without the padding."""
        n_numbers = per_row * batch.lengths
        lengths = batch.lengths
        starts = lengths.cumsum(0) - lengths
        answer = torch.empty(0)
        for chosen, features in self._each_part(function, batch, n_numbers):
            if not len(answer):
                answer = features.new_empty(int(lengths.sum()), features.shape[-1])
            row = torch.arange(features.shape[1])
            present = row < lengths[chosen].unsqueeze(1)
            answer[(starts[chosen].unsqueeze(1) + row)[present]] = features[present]
        return answer

    def _compute_probabilities(self, batch: SeriesBatch) -> Tensor:
        if self.model_.head is None:
            rows = self._compute_rows(
                self.model_, batch, self.model_.bank.numbers_per_row()
            ).numpy()
            probabilities = torch.zeros(len(batch), batch.n_times, len(self.classes_)).double()
            probabilities[batch.present] = torch.from_numpy(
                self.head_.predict_proba(rows)
            ).double()
            return probabilities
        probabilities = torch.zeros(len(batch), batch.n_times, len(self.classes_)).double()
        n_numbers = self._count_numbers(self.model_, batch)
        for chosen, logits in self._each_part(self.model_, batch, n_numbers):
            probabilities[chosen, : logits.shape[1]] = logits.double().softmax(-1)
        return probabilities

    def _compute_query_probabilities(self, batch: SeriesBatch, times: ArrayLike) -> Tensor:
        query = self._query_times(times, batch)
        times = query * self.scaler_.time_scale_ + batch.times[:, :1]
        extended, rows = insert_rows(batch, times)
        inserted = self._compute_probabilities(extended).take_along_dim(rows.unsqueeze(-1), dim=1)
        # A query at the time of a row asks for that row, which knows its own observations.
        # Padding, which repeats the last time, is no row.
        after = torch.searchsorted(batch.times, times).minimum(batch.lengths.unsqueeze(1) - 1)
        nearest = torch.stack([(after - 1).clamp(min=0), after])  # (2, N, Q)
        distance = (batch.times.unsqueeze(0).take_along_dim(nearest, dim=2) - times).abs()
        closest = nearest.gather(0, distance.argmin(0, keepdim=True))[0]
        is_row = distance.amin(0) <= _SAME_TIME * times.abs().clamp(min=self.scaler_.time_scale_)
        at_rows = self._compute_probabilities(batch).take_along_dim(closest.unsqueeze(-1), dim=1)
        return torch.where(is_row.unsqueeze(-1), at_rows, inserted)

    def _new_model(self) -> nn.Module:
        bank = PointBank(self.n_channels_)
        n_features = len(bank.names()) + self._n_static()
        if self.head is not None:
            return PointModel(bank, RandomLayer(n_features, 0), None)
        layer = RandomLayer(n_features, self.n_units)
        return PointModel(bank, layer, RidgeHead(n_features + self.n_units, len(self.classes_)))

    def _program(self) -> Program:
        self._check_own_head("exported")
        answer = "averaged" if self.one_label_per_series_ else "points"
        return probabilities_program(self.model_, self.scaler_, self.classes_, answer=answer)

    def _extra_config(self) -> dict[str, Any]:
        self._check_own_head("saved")
        return super()._extra_config() | {"alpha": self.alpha_}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        self.alpha_ = config["alpha"]


def _make_folds(n_cases: int, groups: Data, generator: torch.Generator) -> Tensor:
    """Returns the fold (N,) of each series: its group, of at most so many, or a random one."""
    if groups is None:
        order = torch.randperm(n_cases, generator=generator)
        return order % min(MAX_FOLDS, n_cases)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    return torch.from_numpy(group) % MAX_FOLDS
