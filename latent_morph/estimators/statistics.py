"""SeriesStatistics: a transformer of series to statistics of each channel."""

from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from latent_morph.checks import check_device
from latent_morph.estimators.filters import FeatureTransformer
from latent_morph.estimators.parameters import FILTERS, Parameter, documented
from latent_morph.estimators.programs import features_program
from latent_morph.filters import Statistics, measure_times
from latent_morph.io.export import Program
from latent_morph.series import Data, SeriesBatch

# Intermediate numbers per row and channel.
_NUMBERS_PER_CELL = 40


@documented
class SeriesStatistics(FeatureTransformer):
    """Statistics of each channel of irregular series, in the units of the data.

    Per channel: the number of observations, their mean, standard deviation, least and greatest,
    first and last value, the slope of a line fitted to them, the time since the last one, and
    means in which the weight of a value decays with its age, over a half, an eighth and a
    thirty-second of the longest training series. Static facts follow: numbers as they are, and a
    column of zeros and ones for each category. A good start for boosted trees.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import SeriesStatistics
    >>> X = [([0.0, 1.0, 4.0], [3.0, 1.0, 2.0]), ([0.0, 2.0], [5.0, np.nan])]
    >>> table = SeriesStatistics().set_output(transform="pandas").fit_transform(X)
    >>> table[["x0 count", "x0 mean", "x0 last", "x0 age"]]
       x0 count  x0 mean  x0 last  x0 age
    0       3.0      2.0      2.0     0.0
    1       1.0      5.0      5.0     0.0
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = {
        "fill": Parameter(
            [StrOptions({"mean", "nan"})],
            '{"mean", "nan"}',
            "What stands for the statistics of a channel that a series does not have, and for "
            "missing static numbers: their mean over the training series, or NaN. The number of "
            "observations of such a channel is 0.",
        ),
        "max_memory": FILTERS["max_memory"],
        "device": FILTERS["device"],
    }
    _is_scaled: ClassVar[bool] = False
    model_: Statistics

    def __init__(
        self, *, fill: str = "mean", max_memory: float = 64.0, device: str = "cpu"
    ) -> None:
        self.fill = fill
        self.max_memory = max_memory
        self.device = device

    def fit(self, X: Data, y: Data = None) -> Self:
        """Learns time scales and means from series.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : None
            Ignored.
        """
        self._validate_params()
        check_device("device", self.device)
        batch = self._validate_series(X, reset=True)
        self._remember_params()
        statistics = Statistics(self.n_channels_).to(self.device)
        _, span = measure_times(batch.times, batch.mask.any(-1))
        statistics.fit(float(span.max()) or 1.0)
        if self.fill == "mean":
            statistics.fill = self._compute(statistics, batch).nanmean(0).nan_to_num()
        else:
            statistics.fill = torch.full_like(statistics.fill, torch.nan)
        self.model_ = statistics
        return self

    def _prepare(self, batch: SeriesBatch) -> tuple[Tensor, Tensor, Tensor]:
        moved = batch.to(self.device)
        return moved.values, moved.times, moved.mask

    def _compute(self, statistics: Statistics, batch: SeriesBatch) -> Tensor:
        n_numbers = 2 * _NUMBERS_PER_CELL * batch.n_channels * batch.lengths
        return self._map_parts(
            lambda values, times, mask, _: statistics.compute(values, times, mask),
            batch,
            n_numbers,
        )

    def _transform(self, batch: SeriesBatch) -> np.ndarray:
        features = self._compute(self.model_, batch)
        fill = self.model_.fill.cpu()
        features = torch.where(features.isnan(), fill, features)
        if self.static_encoder_ is not None:
            is_filled = self._fitted_params["fill"] == "mean"
            facts = self.static_encoder_.tabulate(batch.static, fill=is_filled)
            features = torch.cat([features, facts], dim=1)
        return features.numpy()

    def _static_names(self) -> list[str]:
        if self.static_encoder_ is None:
            return []
        return [f"static {name}" for name in self.static_encoder_.names(tabulated=True)]

    def _new_model(self) -> nn.Module:
        return Statistics(self.n_channels_)

    def _program(self) -> Program:
        n_features = len(self.model_.names())
        return features_program(self.model_, None, self.n_channels_, n_features, torch.float64)
