"""LatentODEReconstructor: series in, series at any times out; no labels."""

from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from latent_morph.callbacks import AnyCallback
from latent_morph.checks import check_count
from latent_morph.estimators.base import COMMON_CONSTRAINTS, LatentODEBase, is_table
from latent_morph.export import reconstructor_program, write_program
from latent_morph.flows import Recipe
from latent_morph.models import LatentODE
from latent_morph.series import Data, SeriesBatch, as_series
from latent_morph.thinning import thin
from latent_morph.training import Examples


class LatentODEReconstructor(TransformerMixin, LatentODEBase):
    """Learns the dynamics behind irregular series: fills in, forecasts, compresses, generates.

    `predict` and `reconstruct` decode a series at any times, `transform` gives its latent start,
    `sample` draws new series.

    Parameters
    ----------
    keep : float or None, default=None
        In training, show the encoder a fresh random share of each series' rows every time, and
        hold the reconstruction against all of them: learning to fill in. None shows everything.
    target_points : int or None, default=100
        In training, where `keep` or `y` make the target more than what is seen, hold the
        reconstruction against about so many random rows of each series at a time: long series
        then cost no more than short ones. None takes all.

    kl_weight : float, default=0.1
        Weight of the posterior's divergence from a standard normal, per observed value. 1 makes
        the loss the evidence lower bound, for honest samples; less reconstructs better.

    The other parameters and the attributes are those of `LatentODEClassifier`, as far as they do
    not speak of classes, with defaults that differ in `reconstruction_weight` (1), `weight_decay`
    (1e-4) and `max_epochs` (100).

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = COMMON_CONSTRAINTS | {
        "keep": [Interval(Real, 0, 1, closed="right"), None],
        "target_points": [Interval(Integral, 1, None, closed="left"), None],
    }

    def __init__(
        self,
        *,
        ode: str | Recipe = "morph",
        ode_options: dict[str, Any] | None = None,
        encoder: str = "morph",
        encoder_layers: int = 3,
        dropout: float = 0.0,
        pool: int = 1,
        encoder_ode: str | Recipe = "linear",
        encoder_ode_options: dict[str, Any] | None = None,
        bidirectional: bool = True,
        latent_dim: int = 16,
        hidden_dim: int = 64,
        decoder_width: int = 64,
        decoder_depth: int = 1,
        noise_std: float | str = "learned",
        reconstruction_weight: float = 1.0,
        kl_weight: float = 0.1,
        kl_warmup: float = 0.2,
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
        random_state: int | np.random.RandomState | None = None,
        verbose: int | bool = 0,
        callbacks: Sequence[AnyCallback] | None = None,
    ) -> None:
        self.ode = ode
        self.ode_options = ode_options
        self.encoder = encoder
        self.encoder_layers = encoder_layers
        self.dropout = dropout
        self.pool = pool
        self.encoder_ode = encoder_ode
        self.encoder_ode_options = encoder_ode_options
        self.bidirectional = bidirectional
        self.latent_dim = latent_dim
        self.hidden_dim = hidden_dim
        self.decoder_width = decoder_width
        self.decoder_depth = decoder_depth
        self.noise_std = noise_std
        self.reconstruction_weight = reconstruction_weight
        self.kl_weight = kl_weight
        self.kl_warmup = kl_warmup
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
            Factors of the series in the loss.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are validated on together or learned from together.
        """
        self._validate_params()
        batch = self._series(X, reset=True)
        target = target_series(y)
        if target is not None:
            check_targets(target, batch)
        return self._fit(
            batch,
            target=target,
            groups=groups,
            sample_weight=sample_weight,
            keep=self.keep,
            target_points=self.target_points,
        )

    def predict(self, X: Data, times: Data = None) -> np.ndarray:
        """The series decoded from the posterior's mean at its own or any other times.

        See `reconstruct`, which can also give an uncertainty. A 2-D X gets a 2-D answer.
        """
        answer = self.reconstruct(X, times, n_samples=0)
        return answer[..., 0] if is_table(X) else answer

    def transform(self, X: Data) -> np.ndarray:
        """The latent start of each series, (n_cases, latent_dim): the posterior's mean."""
        return self._latent_start(X)

    def score(self, X: Data, y: Data = None) -> float:
        """Minus the mean squared error over all observed values of `y`, or of X without it."""
        check_is_fitted(self)
        batch = self._series(X, reset=False)
        truth = target_series(y)
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
        noise = self._draws(check_count("n_samples", n_samples, least=0)).cpu()
        return write_program(path, reconstructor_program(self.model_, self.scaler_, noise), format)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def get_feature_names_out(self, input_features: Data = None) -> np.ndarray:
        """Names of what `transform` gives: z0, z1, ..."""
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
            part = examples[slice(start, start + size)].trimmed()
            target = part.seen if part.target is None else part.target
            seen = part.seen if self.keep is None else thin(part.seen, self.keep, random)
            error = model(seen, target.times).emission.mean - target.values
            error = self.scaler_.inverse_scale(error)
            total += float(error[target.mask].square().sum())
            count += float(target.mask.sum())
        return -total / max(count, 1.0)


def target_series(y: Data) -> SeriesBatch | None:
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
    came, wanted = (target.n_cases, target.n_channels), (batch.n_cases, batch.n_channels)
    if came != wanted:
        raise ValueError(
            f"y has {came[0]} series of {came[1]} channels, wanted {wanted[0]} of {wanted[1]} "
            f"as X has"
        )
