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

from latent_morph.checks import check_count
from latent_morph.estimators.base import (
    COMMON_CONSTRAINTS,
    LatentODEBase,
    counted_cases,
    is_table,
)
from latent_morph.estimators.export import reconstructor_program, write_program
from latent_morph.flows import Recipe
from latent_morph.models import LatentODE
from latent_morph.series import Data, SeriesBatch, as_series, subsample
from latent_morph.training import Examples
from latent_morph.training.callbacks import AnyCallback


class LatentODEReconstructor(TransformerMixin, LatentODEBase):
    """Learns the dynamics behind irregular series: fills in, forecasts, compresses, generates.

    `predict` and `reconstruct` decode a series at any times, `transform` gives its latent start,
    `sample` draws new series.

    Parameters
    ----------
    ode : str or callable, default="morph"
        The generative ODE: a name from `latent_morph.FLOWS`, or a recipe
        `(latent_dim, **options) -> Flow`.
    ode_options : dict, default=None
        Options of the recipe, for example `{"rtol": 1e-3}` for `"dopri5"`.
    encoder : {"morph", "gru-ode"}, default="morph"
        How series are encoded: in closed form, by linear flows with jumps at the observations, or
        by a GRU update at every observation with any ODE between them. The next four parameters
        are the former's, the three after them the latter's.
    encoder_layers : int, default=3
        Layers of the closed-form encoder.
    encoder_modes : int, default=16
        Decaying rotations by which a layer remembers, in each direction of time.
    dropout : float, default=0.0
        Share of each layer's update that is left out in training.
    pool : int, default=1
        Observations that are taken in together; for long series 4 is some twice as fast.
    encoder_ode : str or callable, default="linear"
        The ODE of the encoder's hidden state between observations.
    encoder_ode_options : dict, default=None
        Its options. None gives `"linear"` a fading memory (stable, independent modes).
    bidirectional : bool, default=True
        Whether the encoder also sweeps forwards in time; the paper's goes backwards only.
    latent_dim : int, default=16
        Dimensions of the latent state.
    hidden_dim : int, default=64
        Units of the encoder's state, and of the head where there are classes.
    decoder_width : int, default=64
        Hidden units of the decoder.
    decoder_depth : int, default=1
        Hidden layers of the decoder; 0 is linear.
    noise_std : float or "learned", default="learned"
        Standard deviation of the observation noise, channels being scaled to 1.
    reconstruction_weight : float, default=1.0
        Weight of the negative log-likelihood of the observed values, a mean over them.
    kl_weight : float, default=0.1
        Weight of the posterior's divergence from a standard normal, per observed value. 1 makes
        the loss the evidence lower bound, for honest samples; less reconstructs better.
    kl_warmup : float, default=0.2
        Share of training over which that weight rises from 0.
    sample_z0 : bool, default=True
        Whether training draws z0 from its posterior. False takes the posterior's mean: nothing is
        random about a step then, and nothing but the divergence says how wide a posterior is.
    keep : float or None, default=None
        In training, show the encoder a fresh random share of each series' rows every time, and
        hold the reconstruction against all of them: learning to fill in. None shows everything.
    target_points : int or None, default=100
        In training, where `keep` or `y` make the target more than what is seen, hold the
        reconstruction against about so many random rows of each series at a time: long series
        then cost no more than short ones. None takes all.
    time_origin : {"case", "absolute"}, default="case"
        Whether each series starts at time 0, or times are counted from the earliest in training.
    optimizer : {"adamw", "adam", "adamax"}, default="adamw"
        The optimiser.
    learning_rate : float, default=4e-3
        Its highest learning rate.
    weight_decay : float, default=1e-4
        Its weight decay.
    schedule : {"one-cycle", "exponential", "constant"}, default="one-cycle"
        How the learning rate goes over training: up and down, down to a hundredth, or not at all.
    gradient_clip : float or None, default=1.0
        Largest norm of a gradient.
    batch_size : int, default=64
        Series a step.
    max_epochs : int, default=100
        Passes over the training series at most.
    budget : float or None, default=None
        Seconds of training at most; the schedule is fitted to it. With a budget the result
        depends on the machine's speed.
    patience : int or None, default=None
        Stop after so many epochs without a better validation score.
    validation_fraction : float, default=0.1
        Share of the series, or of the groups, held out to pick the best epoch. Fewer than ten
        series are all learned from, and the last epoch is kept.
    checkpoint : str, Path or None, default=None
        File for the state of training, written every half minute and at the end.
    resume : bool, default=False
        Continue from the checkpoint if it exists.
    compile : bool, default=False
        Have torch compile the invertible networks, which takes some tens of seconds at first.
        On a CPU little is gained, and nothing in training, unless they are large; without a
        compiler training goes on as without this.
    device : str, default="cpu"
        Where to compute: "cpu" or a CUDA device.
    dtype : {"float32", "float64"}, default="float32"
        Precision of training and of answers. Double precision takes longer and is for results
        that are to agree to many digits.
    random_state : int, RandomState instance or None, default=None
        Seed of everything random; the same seed gives the same result.
    verbose : int or bool, default=0
        Log a line an epoch through `logging`: to standard error, unless logging was set up to go
        elsewhere.
    callbacks : sequence of Callback or callable, default=None
        Told how training goes: `EarlyStopping`, `Checkpoint`, `CSVLog`, `TensorBoardLog`, a
        `latent_morph.Callback` of one's own, or a function `(history, settings)` to call after
        every epoch. Not saved with the model.

    Attributes
    ----------
    model_ : LatentODE
        The trained network.
    scaler_ : SeriesScaler
        Scales learned from the training series.
    history_ : list of dict
        One row an epoch: losses, validation score, seconds.
    best_epoch_ : int
        The epoch whose weights were kept.
    n_iter_ : int
        Epochs run.
    n_learn_, n_validation_ : int
        Series learned from and validated on.
    n_channels_ : int
        Channels of the series.
    n_features_in_ : int
        Columns of a 2-D X, otherwise the channels.
    fitted_on_table_ : bool
        Whether X was 2-D: a 2-D X asked about later must then have as many columns.

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
        encoder_modes: int = 16,
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
        self.encoder_layers = encoder_layers
        self.encoder_modes = encoder_modes
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
        batch = self._series(X, reset=True)
        target = target_series(y)
        if target is not None:
            check_targets(target, batch)
        there, weight, groups = counted_cases(batch, sample_weight, groups)
        return self._fit(
            batch[there],
            target=None if target is None else target[there],
            groups=groups,
            weight=weight,
            keep=self.keep,
            target_points=self.target_points,
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
        return self._latent_start(X)

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
            part = examples[slice(start, start + size)].trimmed()
            target = part.seen if part.target is None else part.target
            seen = part.seen if self.keep is None else subsample(part.seen, self.keep, random)
            error = model(seen, target.times).emission.mean - target.values
            error = self.scaler_.inverse_scale(error)
            squares = error[target.mask].square()
            factor = torch.ones_like(squares)
            if part.weight is not None:
                factor = part.weight.view(-1, 1, 1).expand_as(error)[target.mask]
            total += float((factor * squares).sum())
            count += float(factor.double().sum())
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
