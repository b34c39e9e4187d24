"""LatentODEReconstructor: reconstructs series at any times, without labels."""

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
    """Interpolates, forecasts, compresses and generates irregular series with a latent ODE.

    `predict` and `reconstruct` decode a series at any times, `transform` returns its latent start,
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
            "Fraction of each series' rows that the encoder is given in training, drawn in every "
            "step, while the reconstruction is compared with all rows: to learn to interpolate. "
            "None gives all rows.",
        ),
        "target_points": Parameter(
            [COUNT, None],
            "int or None",
            "If the target differs from the inputs, by `keep` or `y`, compare the reconstruction "
            "with about so many random rows of each series in each step of training, which "
            "limits the cost of long series. None compares with all rows.",
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
        scale: str = "standard",
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
        self.scale = scale
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
        """Fits the model to series.

        Parameters
        ----------
        X : series
            The encoder's inputs; anything `latent_morph.as_series` accepts.
        y : SeriesBatch or list of (times, values), default=None
            Targets of the reconstruction, if not X: the same series at further times, whose
            static facts are those of X. Anything else is ignored, as in scikit-learn's
            transformers.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each series in scales, loss and validation: 2 is equivalent to a second copy,
            0 to its absence. Only proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are either all trained on or all validated on.
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
        """Decodes the posterior's mean at the series' own times, or at any others.

        `reconstruct` can also return standard deviations.

        Parameters
        ----------
        X : series
            The observations.
        times : array-like of shape (Q,) or (n_cases, Q), default=None
            Query times; the series' own times by default.

        Returns
        -------
        ndarray of shape (n_cases, Q, n_channels)
            In the units of the data; 2-D for a 2-D X.
        """
        mean = self.reconstruct(X, times, n_samples=0)
        return mean[..., 0] if is_table(X) else mean

    def transform(self, X: Data) -> np.ndarray:
        """Returns the latent start of each series: the posterior's mean.

        Parameters
        ----------
        X : series
            The observations.

        Returns
        -------
        ndarray of shape (n_cases, latent_dim)
        """
        return self._posterior_means(X)

    def score(self, X: Data, y: Data = None) -> float:
        """Returns minus the mean squared error of the reconstruction.

        Parameters
        ----------
        X : series
            The encoder's inputs.
        y : SeriesBatch or list of (times, values), default=None
            Targets of the reconstruction, as in `fit`; X by default.
        """
        check_is_fitted(self)
        batch = self._validate_series(X, reset=False)
        target = as_target(y)
        target = batch if target is None else target
        check_targets(target, batch)
        mean = torch.from_numpy(self.reconstruct(batch, target.times.numpy(), n_samples=0))
        return -float((mean - target.values)[target.mask].square().mean())

    def export(self, path: str | Path, format: str = "onnx", *, n_samples: int = 32) -> Path:
        """Writes the fitted model as a program that runs without this package.

        Its outputs are those of `reconstruct(X, times, n_samples=n_samples, return_std=True)`.

        Parameters
        ----------
        path, format
            As in `LatentODEClassifier.export`.
        n_samples : int, default=32
            Number of draws for the mean and the standard deviation. They are computed together,
            so that memory grows with their number. 0 decodes the posterior's mean.
        """
        check_is_fitted(self)
        self._check_no_static("exported")
        noise = self._posterior_noise(check_count("n_samples", n_samples, least=0)).cpu()
        return write_program(path, reconstructor_program(self.model_, self.scaler_, noise), format)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = [self.dtype]
        return tags

    def get_feature_names_out(self, input_features: Data = None) -> np.ndarray:
        """Returns the names of the outputs of `transform`: z0, z1, ...

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
        """Returns minus the mean squared error, in the units of the data."""
        random = np.random.RandomState(0)
        total = count = 0.0
        size = max(self.batch_size, 256)
        for start in range(0, len(examples), size):
            part = examples[slice(start, start + size)].trim()
            target = part.inputs if part.target is None else part.target
            inputs = part.inputs
            if self.keep is not None:
                inputs = subsample(inputs, self.keep, random)
            predicted = model(inputs, target.times, static=part.static).emission.mean
            unscale = self.scaler_.inverse_values
            error = unscale(predicted.double()) - unscale(target.values.double())
            squares = error[target.mask].square()
            weight = torch.ones_like(squares)
            if part.weight is not None:
                weight = part.weight.view(-1, 1, 1).expand_as(error)[target.mask]
            total += float((weight * squares).sum())
            count += float(weight.double().sum())
        return -total / max(count, 1.0)


def as_target(y: Data) -> SeriesBatch | None:
    """Converts `y` to series; labels, which transformers ignore, give None."""
    if isinstance(y, (list, tuple)):
        is_ignored = not len(y) or np.isscalar(y[0])
    else:
        is_ignored = not isinstance(y, SeriesBatch) and np.asarray(y).ndim < 3
    if is_ignored:
        return None
    return as_series(y, dtype=torch.float64).to("cpu")


def check_targets(target: SeriesBatch, batch: SeriesBatch) -> None:
    """Raises unless `target` has the series and channels of `batch`."""
    if (target.n_cases, target.n_channels) != (batch.n_cases, batch.n_channels):
        raise ValueError(
            f"y must have {batch.n_cases} series of {batch.n_channels} channels as X has, "
            f"got {target.n_cases} of {target.n_channels}"
        )
