"""FilterBank: features of series that need no training, and the base of its relatives."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_count, check_device
from latent_morph.estimators.base import SeriesEstimator
from latent_morph.estimators.parameters import (
    FILTERS,
    MODE_SCALE,
    MODE_SCALES,
    TIME_ORIGIN,
    Parameter,
    documented,
)
from latent_morph.estimators.programs import features_program
from latent_morph.filters import Bank, split_by_size
from latent_morph.io.export import Program
from latent_morph.series import Data, SeriesBatch, SeriesScaler


class FilterEstimator(SeriesEstimator):
    """Scales series and applies a module to them, in parts that fit in the memory."""

    _parameters: ClassVar[Mapping[str, Parameter]] = FILTERS

    # Parameters that methods here use, declared by the constructors of subclasses.
    max_memory: float

    def _prepare(self, batch: SeriesBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Returns scaled values, times and mask, on the device."""
        scaled = self.scaler_.transform(batch).to(self.device, torch.float32)
        return scaled.values, scaled.times, scaled.mask

    def _map_parts(
        self, function: Callable[..., Tensor], batch: SeriesBatch, n_numbers: Tensor
    ) -> Tensor:
        """Applies a function to all series, in parts, and stacks the results."""
        answer = torch.empty(0)
        for chosen, result in self._each_part(function, batch, n_numbers):
            if not len(answer):
                answer = result.new_empty(len(batch), *result.shape[1:])
            answer[chosen] = result
        return answer

    def _each_part(
        self, function: Callable[..., Tensor], batch: SeriesBatch, n_numbers: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields indices of series and the function's result for them.

        Series of like size are processed together, as many as the memory allows.

        Args:
            function: Applied to values, times, mask and encoded facts of some series; these are
                None if there are none.
            batch: N series.
            n_numbers: (N,) how many intermediate numbers each series needs.
        """
        for chosen in split_by_size(n_numbers, self._max_numbers()):
            part = batch[chosen].trim()
            static = self._encode_static(part)
            static = None if static is None else static.to(self.device, torch.float32)
            with torch.no_grad():
                result = function(*self._prepare(part), static).cpu()
            yield chosen, result

    def _max_numbers(self) -> float:
        """Returns how many intermediate numbers the memory allows."""
        return self.max_memory * 2**20 / 4


def join_static(features: Tensor, static: Tensor | None) -> Tensor:
    """Appends encoded facts (N, S) to features (N, F), or to each row of features (N, T, F)."""
    if static is None:
        return features
    if features.ndim == 3:
        static = static.unsqueeze(1).expand(-1, features.shape[1], -1)
    return torch.cat([features, static.to(features)], dim=-1)


def append_static(bank: nn.Module) -> Callable[..., Tensor]:
    """Returns a function of series and encoded facts: the features of a bank, then the facts."""

    def compute(values: Tensor, times: Tensor, mask: Tensor, static: Tensor | None) -> Tensor:
        return join_static(bank(values, times, mask), static)

    return compute


class BankEstimator(FilterEstimator):
    """Fits and applies a bank."""

    random_state: Any

    def _draw_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _fit_bank(
        self,
        batch: SeriesBatch,
        origin: str,
        mode_scale: str,
        seed: int,
        weight: np.ndarray | None = None,
    ) -> Bank:
        """Fits the scaler and the bank to training series."""
        factors = None if weight is None else torch.from_numpy(weight)
        self.scaler_ = SeriesScaler("robust", origin).fit(batch, weight=factors)
        scaled = self.scaler_.transform(batch).to(dtype=torch.float32)
        bank = Bank.fit(
            scaled.values,
            scaled.times,
            scaled.mask,
            torch.Generator().manual_seed(seed),
            anchored=origin == "absolute",
            ranked=mode_scale == "normal",
            max_numbers=self._max_numbers(),
        )
        self.mode_scale_ = mode_scale
        self.n_lags_ = len(bank.kernels.lags)
        return bank.to(self.device)

    def _new_bank(self) -> Bank:
        return Bank(
            self.n_channels_,
            self.n_lags_,
            anchored=self.scaler_.origin == "absolute",
            ranked=self.mode_scale_ == "normal",
        )

    def _compute_features(self, bank: Bank, batch: SeriesBatch) -> Tensor:
        """Returns the features (N, F): those of the bank, and the encoded facts."""
        return self._map_parts(append_static(bank), batch, self._count_numbers(bank, batch))

    def _count_numbers(self, bank: Bank, batch: SeriesBatch) -> Tensor:
        span = (batch.times[:, -1] - batch.times[:, 0]) / self.scaler_.time_scale_
        return bank.count_numbers(batch.lengths, span)

    def _extra_config(self) -> dict[str, Any]:
        return super()._extra_config() | {"n_lags": self.n_lags_, "mode_scale": self.mode_scale_}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        super()._restore_extra(config)
        self.n_lags_ = check_count("n_lags", config["n_lags"])
        self.mode_scale_ = check_choice("mode_scale", config["mode_scale"], MODE_SCALES)


class FeatureTransformer(TransformerMixin, FilterEstimator):
    """Methods of the transformers."""

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def transform(self, X: Data) -> np.ndarray:
        """Computes the features of series.

        Parameters
        ----------
        X : series
            The observations.

        Returns
        -------
        ndarray of shape (n_cases, n_features)
            In the order of `get_feature_names_out`.
        """
        check_is_fitted(self)
        return self._transform(self._validate_series(X, reset=False))

    def _transform(self, batch: SeriesBatch) -> np.ndarray:
        raise NotImplementedError

    def get_feature_names_out(self, input_features: Data = None) -> np.ndarray:
        """Returns the names of the features; `x0` is the first channel.

        Parameters
        ----------
        input_features : None
            Ignored; exists because scikit-learn passes it.
        """
        check_is_fitted(self)
        return np.array([*self.model_.names(), *self._static_names()], dtype=object)

    def _static_names(self) -> list[str]:
        """Returns the names of the features that facts are."""
        names = [] if self.static_encoder_ is None else self.static_encoder_.names()
        return [f"static {name}" for name in names]

    def _program(self) -> Program:
        return features_program(
            self.model_, self.scaler_, self.n_channels_, len(self.model_.names())
        )


@documented
class FilterBank(FeatureTransformer, BankEstimator):
    """Features of irregular series from a bank of filters in continuous time.

    Each channel is read as a piecewise linear function of time, through which three kinds of
    filters look: damped rotations, solved exactly over every gap, in both directions of time;
    kernels of nine taps at multiples of several time lags; and what the mask itself says, how
    often and how long ago was measured. Their outputs are pooled over time. Static facts are
    features too. Nothing is trained, and only scales are learned from the data. Series may have
    unequal lengths, missing values and arbitrary times.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    n_lags_ : int
        Number of time lags of the kernels.
    mode_scale_ : str
        What the modes read.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import RidgeClassifierCV
    >>> from sklearn.pipeline import make_pipeline
    >>> from latent_morph import FilterBank
    >>> rng = np.random.default_rng(0)
    >>> times = [np.sort(rng.uniform(0, 6, rng.integers(8, 15))) for _ in range(60)]
    >>> X = [(t, np.sin((1 + i % 2) * t)) for i, t in enumerate(times)]
    >>> y = ["fast" if i % 2 else "slow" for i in range(60)]
    >>> model = make_pipeline(FilterBank(random_state=0), RidgeClassifierCV()).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = FILTERS | {
        "time_origin": TIME_ORIGIN,
        "mode_scale": MODE_SCALE,
    }
    model_: Bank

    def __init__(
        self,
        *,
        time_origin: str = "case",
        mode_scale: str = "robust",
        max_memory: float = 64.0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.time_origin = time_origin
        self.mode_scale = mode_scale
        self.max_memory = max_memory
        self.device = device
        self.random_state = random_state

    def fit(self, X: Data, y: Data = None) -> Self:
        """Learns the scales of times, values and outputs from series.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : None
            Ignored.
        """
        self._validate_params()
        batch = self._validate_series(X, reset=True)
        check_device("device", self.device)
        self._remember_params()
        self.model_ = self._fit_bank(batch, self.time_origin, self.mode_scale, self._draw_seed())
        return self

    def _transform(self, batch: SeriesBatch) -> np.ndarray:
        return self._compute_features(self.model_, batch).numpy()

    def _new_model(self) -> nn.Module:
        return self._new_bank()
