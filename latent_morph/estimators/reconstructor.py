"""LatentODEReconstructor: series in, series at any times out; no labels."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from latent_morph.checks import check_count
from latent_morph.encoders import EncoderRecipe
from latent_morph.estimators.decoding import DecodingMixin
from latent_morph.estimators.inputs import is_table, select_weighted_cases
from latent_morph.estimators.parameters import COUNT, LATENT, Parameter, documented
from latent_morph.estimators.programs import reconstructor_program
from latent_morph.flows import FlowRecipe
from latent_morph.io.export import write_program
from latent_morph.models import LatentODE
from latent_morph.series import Data, Examples, SeriesBatch, as_series, subsample
from latent_morph.training import AnyCallback


@documented
class LatentODEReconstructor(TransformerMixin, DecodingMixin):
    """Learns the dynamics behind irregular series: fills in, forecasts, compresses, generates.

    `predict` and `reconstruct` decode a series at any times, `transform` gives its latent start,
    `sample` draws new series.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from latent_morph import LatentODEReconstructor
    >>> rng = np.random.default_rng(0)
    >>> X = [(t, np.exp(-t)) for t in np.sort(rng.uniform(0, 3, (40, 12)))]
    >>> model = LatentODEReconstructor(max_epochs=30, random_state=0).fit(X)
    >>> mean, std = model.reconstruct(X[:2], times=[0.5, 2.9], return_std=True)
    >>> mean.shape, model.transform(X).shape
    ((2, 2, 1), (40, 16))
    """

    _parameters: ClassVar[Mapping[str, Parameter]] = LATENT | {
        "keep": Parameter(
            [Interval(Real, 0, 1, closed="right"), None],
            "float or None",
            "In training, show the encoder a fresh random fraction of each series' rows every "
            "time, and compare the reconstruction with all of them: learning to fill in. None "
            "shows everything.",
        ),
        "target_points": Parameter(
            [COUNT, None],
            "int or None",
            "In training, where `keep` or `y` make the target more than the inputs, compare the "
            "reconstruction with about so many random rows of each series at a time: long series "
            "then cost no more than short ones. None takes all.",
        ),
    }
    _encoder_defaults: ClassVar[dict[str, dict[str, Any]]] = {"morph": {"dropout": 0.0}}

    def __init__(
        self,
        *,
        ode: str | FlowRecipe = "morph",
        ode_options: dict[str, Any] | None = None,
        encoder: str | EncoderRecipe = "morph",
        encoder_options: dict[str, Any] | None = None,
        latent_dim: int = 16,
        hidden_dim: int = 64,
        decoder_width: int = 64,
        decoder_depth: int = 1,
        noise_std: float | str = "learned",
        reconstruction_weight: float = 1.0,
        kl_weight: float = 0.1,
        kl_warmup: float = 0.2,
        sample_z0: bool = True,
        keep: float | None = None,
        target_points: int | None = 100,
        time_origin: str = "case",
        optimizer: str = "adamw",
        learning_rate: float = 4e-3,
        weight_decay: float = 1e-4,
        schedule: str = "one-cycle",
        gradient_clip: float | None = 1.0,
        batch_size: int = 64,
        max_epochs: int = 100,
        budget: float | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        compile: bool = False,
        device: str = "cpu",
        dtype: str = "float32",
        random_state: int | np.random.RandomState | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[AnyCallback] | None = None,
    ) -> None:
        self.ode = ode
        self.ode_options = ode_options
        self.encoder = encoder
        self.encoder_options = encoder_options
        self.latent_dim = latent_dim
        self.hidden_dim = hidden_dim
        self.decoder_width = decoder_width
        self.decoder_depth = decoder_depth
        self.noise_std = noise_std
        self.reconstruction_weight = reconstruction_weight
        self.kl_weight = kl_weight
        self.kl_warmup = kl_warmup
        self.sample_z0 = sample_z0
        self.keep = keep
        self.target_points = target_points
        self.time_origin = time_origin
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.gradient_clip = gradient_clip
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.budget = budget
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.checkpoint = checkpoint
        self.resume = resume
        self.compile = compile
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    def fit(
        self, X: Data, y: Data = None, sample_weight: Data = None, groups: Data = None
    ) -> Self:
        """Learns from series.

        Parameters
        ----------
        X : series
            What the encoder sees; anything `latent_morph.as_series` takes.
        y : SeriesBatch or list of (times, values), default=None
            What is to be reconstructed, if that is more than X: the same series at further times.
            Anything else is ignored, as scikit-learn's transformers do.
        sample_weight : array-like of shape (n_cases,), default=None
            How much each series counts, in scales, loss and validation: 2 is as good as a copy
            more, 0 as good as its absence. Only their proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are validated on together or learned from together.
        """
        self._validate_params()
        batch = self._validate_series(X, reset=True)
        target = as_target(y)
        if target is not None:
            check_targets(target, batch)
        chosen, weight, groups = select_weighted_cases(batch, sample_weight, groups)
        return self._fit(
            batch[chosen],
            target=None if target is None else target[chosen],
            groups=groups,
            weight=weight,
        )

    def predict(self, X: Data, times: Data = None) -> np.ndarray:
        """The series decoded from the posterior's mean at its own or any other times.

        See `reconstruct`, which can also give an uncertainty.

        Parameters
        ----------
        X : series
            What was observed.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            When to decode; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, Q, n_channels)
            In the units of the data; a 2-D X gets a 2-D answer.
        """
        answer = self.reconstruct(X, times, n_samples=0)
        return answer[..., 0] if is_table(X) else answer

    def transform(self, X: Data) -> np.ndarray:
        """The latent start of each series: the posterior's mean.

        Parameters
        ----------
        X : series
            What was observed.

        Returns
        -------
        ndarray of shape (n_cases, latent_dim)
        """
        return self._posterior_means(X)

    def score(self, X: Data, y: Data = None) -> float:
        """Minus the mean squared error of the reconstruction, so that higher is better.

        Parameters
        ----------
        X : series
            What the encoder sees.
        y : SeriesBatch or list of (times, values), default=None
            What is to be reconstructed, as in `fit`; X itself by default.
        """
        check_is_fitted(self)
        batch = self._validate_series(X, reset=False)
        truth = as_target(y)
        truth = batch if truth is None else truth
        check_targets(truth, batch)
        guess = torch.from_numpy(self.reconstruct(batch, truth.times.numpy(), n_samples=0))
        return -float((guess - truth.values)[truth.mask].square().mean())

    def export(self, path: str | Path, format: str = "onnx", *, n_samples: int = 32) -> Path:
        """Writes the fitted model as a program that runs without this package.

        Its answers are those of `reconstruct(X, times, n_samples=n_samples, return_std=True)`.

        Parameters
        ----------
        path, format
            As in `LatentODEClassifier.export`.
        n_samples : int, default=32
            Draws behind the mean and the standard deviation, computed together: memory grows
            with their number. 0 decodes the posterior's mean.
        """
        check_is_fitted(self)
        noise = self._posterior_noise(check_count("n_samples", n_samples, least=0)).cpu()
        return write_program(path, reconstructor_program(self.model_, self.scaler_, noise), format)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [self.dtype]
        return tags

    def get_feature_names_out(self, input_features: Data = None) -> np.ndarray:
        """Names of what `transform` gives: z0, z1, ...

        Parameters
        ----------
        input_features : ignored, default=None
            For pipelines.
        """
        check_is_fitted(self)
        return np.array([f"z{i}" for i in range(self.latent_dim)], dtype=object)

    def _validation_score(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> float:
        """Minus the mean squared error, in the units of the data."""
        random = np.random.RandomState(0)
        total = count = 0.0
        size = max(self.batch_size, 256)
        for start in range(0, len(examples), size):
            part = examples[slice(start, start + size)].trim()
            target = part.inputs if part.target is None else part.target
            inputs = part.inputs
            if self.keep is not None:
                inputs = subsample(inputs, self.keep, random)
            error = model(inputs, target.times).emission.mean - target.values
            error = self.scaler_.inverse_scale(error)
            squares = error[target.mask].square()
            factor = torch.ones_like(squares)
            if part.weight is not None:
                factor = part.weight.view(-1, 1, 1).expand_as(error)[target.mask]
            total += float((factor * squares).sum())
            count += float(factor.double().sum())
        return -total / max(count, 1.0)


def as_target(y: Data) -> SeriesBatch | None:
    """`y` as series if it is any; labels and the like, which transformers ignore, give None."""
    if isinstance(y, (list, tuple)):
        labels = not len(y) or np.isscalar(y[0])
    else:
        labels = not isinstance(y, SeriesBatch) and np.asarray(y).ndim < 3
    if labels:
        return None
    return as_series(y, dtype=torch.float64).to("cpu")


def check_targets(target: SeriesBatch, batch: SeriesBatch) -> None:
    """Raises unless `target` has the series and channels of `batch`."""
    if (target.n_cases, target.n_channels) != (batch.n_cases, batch.n_channels):
        raise ValueError(
            f"y must have {batch.n_cases} series of {batch.n_channels} channels as X has, "
            f"got {target.n_cases} of {target.n_channels}"
        )
