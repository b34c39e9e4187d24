"""LatentODEClassifier: one label a series."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import column_or_1d, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y, check_consistent_length
from torch import Tensor

from latent_morph.estimators.base import (
    CLASSIFIER_CONSTRAINTS,
    LatentODEBase,
    counted_cases,
)
from latent_morph.estimators.export import Program, classifier_program
from latent_morph.flows import Recipe
from latent_morph.models import LatentODE, LatentOutput
from latent_morph.models.decoders import SeriesHead
from latent_morph.series import Data
from latent_morph.training import Examples
from latent_morph.training.callbacks import AnyCallback


class ClassifierBase(ClassifierMixin, LatentODEBase):
    """Parameters, label coding and file contents of the two classifiers."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = CLASSIFIER_CONSTRAINTS

    if TYPE_CHECKING:  # scikit-learn's mixin, which has it, has no types

        def score(self, X: Data, y: Data, sample_weight: Data = None) -> float: ...

    def __init__(
        self,
        *,
        ode: str | Recipe = "morph",
        ode_options: dict[str, Any] | None = None,
        encoder: str = "morph",
        encoder_layers: int = 3,
        encoder_modes: int = 16,
        dropout: float = 0.2,
        pool: int = 1,
        encoder_ode: str | Recipe = "linear",
        encoder_ode_options: dict[str, Any] | None = None,
        bidirectional: bool = True,
        head: str = "trajectory+context",
        latent_dim: int = 16,
        hidden_dim: int = 64,
        decoder_width: int = 64,
        decoder_depth: int = 1,
        noise_std: float | str = "learned",
        classification_weight: float = 1.0,
        reconstruction_weight: float = 0.1,
        kl_weight: float = 0.1,
        kl_warmup: float = 0.2,
        sample_z0: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        time_origin: str = "case",
        optimizer: str = "adamw",
        learning_rate: float = 4e-3,
        weight_decay: float = 0.01,
        schedule: str = "one-cycle",
        gradient_clip: float | None = 1.0,
        batch_size: int = 64,
        max_epochs: int = 40,
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
        self.head = head
        self.latent_dim = latent_dim
        self.hidden_dim = hidden_dim
        self.decoder_width = decoder_width
        self.decoder_depth = decoder_depth
        self.noise_std = noise_std
        self.classification_weight = classification_weight
        self.reconstruction_weight = reconstruction_weight
        self.kl_weight = kl_weight
        self.kl_warmup = kl_warmup
        self.sample_z0 = sample_z0
        self.class_weight = class_weight
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

    def _check_target(self, y: Data) -> None:
        if y is None:
            # scikit-learn's own words, which its tests look for
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )

    def _encode_labels(self, y: np.ndarray) -> np.ndarray:
        """Learns `classes_` and returns codes of the shape of `y`."""
        check_classification_targets(y.ravel())
        self.classes_, codes = np.unique(y, return_inverse=True)
        return codes.reshape(y.shape)

    def _class_factors(self, codes: np.ndarray, weight: np.ndarray | None) -> Tensor | None:
        """(K,) from the codes of all labels and the weights of these."""
        if self.class_weight is None:
            return None
        if self.class_weight == "balanced" and weight is not None:
            share = np.bincount(codes, weight)  # scikit-learn takes weights only since 1.7
            factors = share.sum() / (len(share) * share)
        else:
            labels = self.classes_[codes]
            factors = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return torch.from_numpy(factors)

    def _validation_score(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> float:
        return accuracy(model, examples, class_weight, self.batch_size)

    def _extra_config(self) -> dict[str, Any]:
        return {"classes": self.classes_.tolist(), "classes_dtype": self.classes_.dtype.str}

    def _restore_extra(self, config: dict[str, Any]) -> None:
        dtype = np.dtype(config["classes_dtype"])
        if dtype.itemsize * len(config["classes"]) > 2**24:
            raise ValueError(f"classes of dtype {dtype} would fill memory")
        self.classes_ = np.array(config["classes"], dtype=dtype)

    def _n_classes(self) -> int:
        return len(self.classes_)

    def _program(self) -> Program:
        return classifier_program(self.model_, self.scaler_, self.classes_)


class LatentODEClassifier(ClassifierBase):
    """Classifies irregular series, one label each, with a latent ODE.

    Each series is encoded into a belief about its latent start z0, an ODE carries z0 to every time
    point, and a head reads the class off the trajectory. Unequal lengths, missing channels and
    arbitrary times need no preparation.

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
    dropout : float, default=0.2
        Share of each layer's update that is left out in training.
    pool : int, default=1
        Observations that are taken in together; for long series 4 is some twice as fast.
    encoder_ode : str or callable, default="linear"
        The ODE of the encoder's hidden state between observations.
    encoder_ode_options : dict, default=None
        Its options. None gives `"linear"` a fading memory (stable, independent modes).
    bidirectional : bool, default=True
        Whether the encoder also sweeps forwards in time; the paper's goes backwards only.
    head : {"trajectory+context", "trajectory"}, default="trajectory+context"
        What the class is read from: the latent trajectory joined with the encoder's states, or
        the trajectory alone, as in the paper.
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
    classification_weight : float, default=1.0
        Weight of the cross-entropy.
    reconstruction_weight : float, default=0.1
        Weight of the negative log-likelihood of the observed values, a mean over them.
    kl_weight : float, default=0.1
        Weight of the posterior's divergence from a standard normal, per observed value.
    kl_warmup : float, default=0.2
        Share of training over which that weight rises from 0.
    sample_z0 : bool, default=True
        Whether training draws z0 from its posterior. False takes the posterior's mean: nothing is
        random about a step then, and nothing but the divergence says how wide a posterior is.
    class_weight : dict, "balanced" or None, default=None
        Factors of the classes in the cross-entropy.
    time_origin : {"case", "absolute"}, default="case"
        Whether each series starts at time 0, or times are counted from the earliest in training.
    optimizer : {"adamw", "adam", "adamax"}, default="adamw"
        The optimiser.
    learning_rate : float, default=4e-3
        Its highest learning rate.
    weight_decay : float, default=0.01
        Its weight decay.
    schedule : {"one-cycle", "exponential", "constant"}, default="one-cycle"
        How the learning rate goes over training: up and down, down to a hundredth, or not at all.
    gradient_clip : float or None, default=1.0
        Largest norm of a gradient.
    batch_size : int, default=64
        Series a step.
    max_epochs : int, default=40
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
    classes_ : ndarray of shape (n_classes,)
        The labels.
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
    >>> from latent_morph import LatentODEClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = [], []
    >>> for i in range(60):
    ...     times = np.sort(rng.uniform(0, 6, rng.integers(8, 15)))
    ...     X.append((times, np.sin((1 + i % 2) * times)))
    ...     y.append("fast" if i % 2 else "slow")
    >>> model = LatentODEClassifier(max_epochs=15, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _head_type = SeriesHead

    def fit(self, X: Data, y: Data, sample_weight: Data = None, groups: Data = None) -> Self:
        """Learns from series and their labels.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` takes: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : array-like of shape (n_cases,)
            One label a series.
        sample_weight : array-like of shape (n_cases,), default=None
            How much each series counts, in scales, loss and validation: 2 is as good as a copy
            more, 0 as good as its absence. Only their proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are validated on together or learned from together.
        """
        self._validate_params()
        self._check_target(y)
        batch = self._series(X, reset=True)
        y = column_or_1d(_check_y(y, estimator=self), warn=True)
        check_consistent_length(batch.values, y)
        there, weight, groups = counted_cases(batch, sample_weight, groups)
        codes = self._encode_labels(y[there])
        return self._fit(
            batch[there],
            labels=torch.from_numpy(codes),
            strata=codes,
            groups=groups,
            weight=weight,
            class_weight=self._class_factors(codes, weight),
        )

    def predict_proba(self, X: Data) -> np.ndarray:
        """Class probabilities of each series.

        Parameters
        ----------
        X : series
            What was observed.

        Returns
        -------
        ndarray of shape (n_cases, n_classes)
            In the order of `classes_`.
        """
        outputs = self._outputs(self._asked(X))
        parts = [class_logits(output).softmax(-1).cpu() for _, output in outputs]
        return torch.cat(parts).numpy()

    def predict(self, X: Data) -> np.ndarray:
        """The likeliest label of each series.

        Parameters
        ----------
        X : series
            What was observed.

        Returns
        -------
        ndarray of shape (n_cases,)
        """
        best = self.predict_proba(X).argmax(-1)
        return self.classes_[best]


def class_logits(output: LatentOutput) -> Tensor:
    """The logits of a model that has a head."""
    if output.logits is None:
        raise ValueError("the model has no head to read a class from")
    return output.logits


def accuracy(
    model: LatentODE, examples: Examples, class_weight: Tensor | None, batch_size: int
) -> float:
    """Share of labels, of series or of time points, that the likeliest class gets right.

    Labels count as their series and their classes do in training: with balanced classes it is
    balanced accuracy.
    """
    right = total = 0.0
    size = max(batch_size, 256)
    for start in range(0, len(examples), size):
        part = examples[slice(start, start + size)].trimmed()
        if part.labels is None:
            raise ValueError("accuracy needs labels, got None")
        weight = (part.labels >= 0).double()
        if class_weight is not None:
            weight = weight * class_weight.double()[part.labels.clamp(min=0)]
        if part.weight is not None:
            weight = (weight.t() * part.weight).t()  # labels are (N,) or (N, T)
        hit = class_logits(model(part.seen)).argmax(-1) == part.labels
        right += float((weight * hit).sum())
        total += float(weight.sum())
    return right / total if total else 0.0
