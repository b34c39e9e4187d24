"""LatentODEClassifier: one label per series."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from latent_morph.encoders import EncoderRecipe
from latent_morph.estimators.decoding import DecodingMixin
from latent_morph.estimators.labels import LabelMixin
from latent_morph.estimators.latent import LatentODEBase
from latent_morph.estimators.monitors import MONITORS
from latent_morph.estimators.parameters import CLASSIFIER, Parameter, documented
from latent_morph.estimators.persistence import PersistentEstimator
from latent_morph.estimators.programs import classifier_program
from latent_morph.estimators.series_labels import SeriesLabelMixin
from latent_morph.flows import FlowRecipe
from latent_morph.io.export import Program
from latent_morph.models import LatentODE, LatentOutput, SeriesHead
from latent_morph.series import Data, Examples, SeriesBatch
from latent_morph.training import AnyCallback

# Of the logarithm of a temperature.
_LARGEST = 2.0


class ClassifierBase(LabelMixin, DecodingMixin):
    """Parameters of both classifiers."""

    _parameters: ClassVar[Mapping[str, Parameter]] = CLASSIFIER

    def __init__(
        self,
        *,
        ode: str | FlowRecipe = "morph",
        ode_options: dict[str, Any] | None = None,
        encoder: str | EncoderRecipe = "morph",
        encoder_options: dict[str, Any] | None = None,
        head: str = "trajectory+context",
        summary: bool = True,
        summary_dropout: float | None = None,
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
        scale: str = "robust",
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
        validation_fraction: float | str = "auto",
        monitor: str = "log_loss",
        n_members: int = 1,
        init: LatentODEBase | str | Path | None = None,
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
        self.head = head
        self.summary = summary
        self.summary_dropout = summary_dropout
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
        self.monitor = monitor
        self.n_members = n_members
        self.init = init
        self.checkpoint = checkpoint
        self.resume = resume
        self.compile = compile
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.callbacks = callbacks

    def _load_pretrained(self) -> LatentODEBase | None:
        if self.init is None:
            return None
        source: Any = getattr(self.init, "estimator", self.init)  # of a FrozenEstimator
        if isinstance(source, (str, Path)):
            source = PersistentEstimator.load(source, device=self.device)
        if not isinstance(source, LatentODEBase):
            raise TypeError(
                "init must be a fitted LatentODEReconstructor or the file of one, "
                f"got a {type(source).__name__}"
            )
        try:
            check_is_fitted(source)
        except NotFittedError as problem:
            raise ValueError(
                "init must be fitted, got an unfitted estimator; wrap it in "
                "sklearn.frozen.FrozenEstimator where parameters are copied, as in "
                "cross-validation, or give its file"
            ) from problem
        if source.n_channels_ != self.n_channels_:
            raise ValueError(
                f"init must have {self.n_channels_} channels as X has, got {source.n_channels_}"
            )
        return source

    def _remember_params(self) -> None:
        super()._remember_params()
        self._fitted_params["init"] = None  # its weights are copied

    def _validation_score(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> float:
        return evaluate_classes(model, examples, self.monitor, class_weight, self.batch_size)

    def _finish_member(
        self, model: LatentODE, examples: Examples, class_weight: Tensor | None
    ) -> None:
        calibrate(model, examples, class_weight, self.batch_size)

    def _n_classes(self) -> int:
        return len(self.classes_)

    def _program(self) -> Program:
        return classifier_program(self.model_, self.scaler_, self.classes_)


@documented
class LatentODEClassifier(SeriesLabelMixin, ClassifierBase):
    """Classifies irregular series, one label each, with a latent ODE.

    Each series is encoded into a posterior over its latent start z0, an ODE moves z0 to every time
    point, and a head classifies the trajectory. Series may have unequal lengths, missing values
    and arbitrary times.

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
        """Fits the model to series and their labels.

        Parameters
        ----------
        X : series
            Anything `latent_morph.as_series` accepts: 2-D or 3-D arrays with NaN, lists of arrays,
            of `(times, values)` or of DataFrames, a `SeriesBatch`.
        y : array-like of shape (n_cases,)
            One label per series.
        sample_weight : array-like of shape (n_cases,), default=None
            Weight of each series in scales, loss and validation: 2 is equivalent to a second copy,
            0 to its absence. Only proportions matter.
        groups : array-like of shape (n_cases,), default=None
            Series of one group are either all trained on or all validated on.
        """
        self._validate_params()
        batch, codes, weight, groups = self._validate_labelled(X, y, sample_weight, groups)
        return self._fit(
            batch,
            labels=torch.from_numpy(codes),
            strata=codes,
            groups=groups,
            weight=weight,
            class_weight=self._class_factors(codes, weight),
        )

    def _compute_probabilities(self, batch: SeriesBatch) -> np.ndarray:
        parts = [class_logits(output).softmax(-1).cpu() for _, output in self._outputs(batch)]
        return torch.cat(parts).numpy()


def class_logits(output: LatentOutput) -> Tensor:
    """Returns the logits of a model with a head."""
    if output.logits is None:
        raise ValueError("output must have logits, got those of a model without a head")
    return output.logits


def evaluate_classes(
    model: LatentODE,
    examples: Examples,
    monitor: str,
    class_weight: Tensor | None,
    batch_size: int,
) -> float:
    """Returns the score of class probabilities, of series or of time points; higher is better."""
    logits, codes, weight = compute_logits(model, examples, class_weight, batch_size)
    return MONITORS[monitor](logits.softmax(-1).numpy(), codes.numpy(), weight.numpy())


def calibrate(
    model: LatentODE, examples: Examples, class_weight: Tensor | None, batch_size: int
) -> None:
    """Divides the logits by the temperature that gives held-out series the least log loss.

    A network is as a rule too sure of itself. The temperature goes into the last layer of the
    head, so that a calibrated model is a model like any other. Targets are smoothed towards the
    shares of the classes, as if there were one more series for each class: a few series that the
    network tells apart would ask for endless confidence.
    """
    logits, codes, weight = compute_logits(model, examples, class_weight, batch_size)
    n_classes = logits.shape[1]
    share = weight / weight.sum()
    one_hot = torch.nn.functional.one_hot(codes, n_classes).double()
    smoothing = n_classes / len(examples)
    target = (one_hot + smoothing * (share @ one_hot)) / (1 + smoothing)

    def loss(log_temperature: float) -> float:
        log_p = (logits / math.exp(log_temperature)).log_softmax(-1)
        return -float(share @ (target * log_p).sum(-1))

    best = minimize_scalar(loss, bounds=(-_LARGEST, _LARGEST), method="bounded").x
    last = model.head.network[-1]  # type: ignore[union-attr]
    with torch.no_grad():
        for parameter in last.parameters():
            parameter /= math.exp(best)


def compute_logits(
    model: LatentODE, examples: Examples, class_weight: Tensor | None, batch_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits (R, K), codes (R,) and weights (R,) of series or of time points.

    Labels have the weights of their series and classes in training, so that balanced class weights
    turn accuracy into balanced accuracy.
    """
    all_logits, codes, weights = [], [], []
    size = max(batch_size, 256)
    for start in range(0, len(examples), size):
        part = examples[slice(start, start + size)].trim()
        if part.labels is None:
            raise ValueError("labels must be given to score classes, got None")
        weight = torch.ones_like(part.labels, dtype=torch.float64)
        if part.weight is not None:
            weight = (weight.t() * part.weight).t()  # labels are (N,) or (N, T)
        if class_weight is not None:
            weight = weight * class_weight.double()[part.labels.clamp(min=0)]
        is_known = part.labels >= 0
        with torch.no_grad():
            logits = class_logits(model(part.inputs, static=part.static)).double()
        all_logits.append(logits[is_known].cpu())
        codes.append(part.labels[is_known].cpu())
        weights.append(weight[is_known].cpu())
    return torch.cat(all_logits), torch.cat(codes), torch.cat(weights)
