"""Parameters that estimators share: their constraints and documentation.

Constructors list their parameters and defaults, as scikit-learn requires; `documented` adds
constraints and docstrings from here.
"""

import inspect
import textwrap
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

from latent_morph.estimators.monitors import MONITORS
from latent_morph.models.decoders import HEADS
from latent_morph.training import OPTIMIZERS, SCHEDULES

LATENT_SCALES = ("standard", "robust")
DTYPES = {"float32": torch.float32, "float64": torch.float64}

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
COUNT = Interval(Integral, 1, None, closed="left")
COUNT_OR_ZERO = Interval(Integral, 0, None, closed="left")


class Parameter(NamedTuple):
    """A parameter's constraints for scikit-learn, its type in words, and its meaning."""

    constraints: list[Any]
    type: str
    meaning: str


# Parameters of all estimators.
TRAINING: dict[str, Parameter] = {
    "optimizer": Parameter(
        [StrOptions(set(OPTIMIZERS))],
        '{"adamw", "adam", "adamax"}',
        "The optimizer.",
    ),
    "learning_rate": Parameter([POSITIVE], "float", "Highest learning rate."),
    "weight_decay": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight decay. Eigenvalues, frequencies, norms and biases do not decay.",
    ),
    "schedule": Parameter(
        [StrOptions(set(SCHEDULES))],
        '{"one-cycle", "exponential", "constant"}',
        "Schedule of the learning rate: up and down, down to a hundredth, or constant.",
    ),
    "gradient_clip": Parameter([POSITIVE, None], "float or None", "Largest norm of the gradient."),
    "batch_size": Parameter([COUNT], "int", "Series per step."),
    "max_epochs": Parameter([COUNT], "int", "Largest number of passes over the training series."),
    "budget": Parameter(
        [POSITIVE, None],
        "float or None",
        "Largest number of seconds of training, to which the schedule is adapted. The result then "
        "depends on the speed of the machine.",
    ),
    "patience": Parameter(
        [COUNT, None],
        "int or None",
        "Number of epochs without a better validation score after which training stops.",
    ),
    "validation_fraction": Parameter(
        [Interval(Real, 0, 1, closed="left")],
        "float",
        "Fraction of the series, or of the groups, held out to select the best epoch. Of fewer "
        "than ten series none is held out, and the last epoch is kept.",
    ),
    "checkpoint": Parameter(
        [str, Path, None],
        "str, Path or None",
        "File for the state of training, written every 30 seconds and at the end.",
    ),
    "resume": Parameter(["boolean"], "bool", "Continue from the checkpoint if it exists."),
    "device": Parameter([str], "str", 'Device: "cpu" or a CUDA device.'),
    "dtype": Parameter(
        [StrOptions(set(DTYPES))],
        '{"float32", "float64"}',
        "Precision of training and predictions. Double precision is slower.",
    ),
    "random_state": Parameter(
        ["random_state"],
        "int, RandomState instance or None",
        "Seed of all random numbers; the same seed gives the same result.",
    ),
    "verbose": Parameter(
        ["verbose"],
        "int or bool",
        "Log one line per epoch through `logging`, by default to standard error.",
    ),
    "callbacks": Parameter(
        ["array-like", None],
        "sequence of Callback or callable",
        "Callbacks of training: `EarlyStopping`, `Checkpoint`, `CSVLog`, `TensorBoardLog`, other "
        "subclasses of `latent_morph.Callback`, or functions `(history, settings)` that are "
        "called after every epoch. Not saved with the model.",
    ),
}

# Parameters of the latent ODEs.
LATENT: dict[str, Parameter] = TRAINING | {
    "ode": Parameter(
        [str, callable],
        "str or callable",
        "The generative ODE: a name from `latent_morph.FLOWS`, or a recipe "
        "`(latent_dim, **options) -> Flow`.",
    ),
    "ode_options": Parameter(
        [dict, None],
        "dict or None",
        'Options of the recipe, for example `{"rtol": 1e-3}` for `"dopri5"`.',
    ),
    "encoder": Parameter(
        [str, callable],
        "str or callable",
        "The encoder: a name from `latent_morph.ENCODERS`, or a recipe `(n_channels, "
        'latent_dim, hidden_dim, **options) -> Encoder`. `"morph"` is in closed form, linear '
        'flows with jumps at the observations; `"gru-ode"` has a GRU update at every '
        'observation and any ODE between them; `"gru-decay"` is a GRU whose state and inputs '
        'decay between observations; `"attention"` averages the observations around reference '
        'times. Only `"morph"` can be exported.',
    ),
    "encoder_options": Parameter(
        [dict, None],
        "dict or None",
        'Options of the recipe. `"morph"` takes `layers` (3), `modes` (16 damped rotations per '
        "layer and direction of time), `dropout` (0.2; 0 in `LatentODEReconstructor`) and `pool` "
        "(1, the number of observations encoded together; for long series 4 is about twice as "
        'fast). `"gru-ode"` takes `ode` ("linear", the ODE of the hidden state), `ode_options` '
        "(stable, independent modes) and `bidirectional` (True; the paper's is backward only). "
        '`"gru-decay"` takes `bidirectional` (True; the paper\'s is forward only). `"attention"` '
        "takes `n_reference` (32 reference times), `heads` (2) and `embed_dim` (32, the size of "
        "the embeddings of times).",
    ),
    "latent_dim": Parameter([COUNT], "int", "Dimensions of the latent state."),
    "hidden_dim": Parameter(
        [COUNT],
        "int",
        "Units of the encoder's state, and of a classifier's head.",
    ),
    "decoder_width": Parameter([COUNT], "int", "Hidden units of the decoder."),
    "decoder_depth": Parameter(
        [COUNT_OR_ZERO], "int", "Hidden layers of the decoder; 0 is linear."
    ),
    "noise_std": Parameter(
        [POSITIVE, StrOptions({"learned"})],
        'float or "learned"',
        "Standard deviation of the observation noise, in scaled units.",
    ),
    "reconstruction_weight": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight of the negative log-likelihood, a mean over the observed values.",
    ),
    "kl_weight": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight of the posterior's divergence from a standard normal, per observed value. If this "
        "and `reconstruction_weight` are 1, the loss is the negative evidence lower bound, for "
        "calibrated samples; less reconstructs better.",
    ),
    "kl_warmup": Parameter(
        [Interval(Real, 0, 1, closed="both")],
        "float",
        "Fraction of training over which `kl_weight` rises from 0.",
    ),
    "sample_z0": Parameter(
        ["boolean"],
        "bool",
        "Whether training draws z0 from its posterior. False takes the posterior's mean; then "
        "only the divergence determines the width of the posterior.",
    ),
    "scale": Parameter(
        [StrOptions(set(LATENT_SCALES))],
        '{"standard", "robust"}',
        "Scaling of each channel: by mean and standard deviation, or by median and interquartile "
        "range with a logarithm for what lies far outside, so that a few absurd values do no "
        "harm.",
    ),
    "time_origin": Parameter(
        [StrOptions({"case", "absolute"})],
        '{"case", "absolute"}',
        "Whether each series starts at time 0, or times are counted from the earliest training "
        "time.",
    ),
    "compile": Parameter(
        ["boolean"],
        "bool",
        "Compile the invertible networks with torch, which takes tens of seconds at first. On a "
        "CPU this makes only large networks faster. Without a compiler it has no effect.",
    ),
}

# Parameters of the classifiers.
CLASSIFIER: dict[str, Parameter] = LATENT | {
    "validation_fraction": Parameter(
        [Interval(Real, 0, 1, closed="left"), StrOptions({"auto"})],
        'float or "auto"',
        'Fraction of the series, or of the groups, held out to select the best epoch. "auto" is a '
        "tenth, but 0 if there are fewer than 1,000 series or if there are groups: then all are "
        "trained on, and the weights at the end of the schedule are kept. With `patience` it is "
        "always a tenth. Of fewer than ten series none is held out. Probabilities are calibrated "
        "on what is held out, by a temperature.",
    ),
    "monitor": Parameter(
        [StrOptions(set(MONITORS))],
        '{"log_loss", "accuracy", "balanced_accuracy", "roc_auc", "average_precision"}',
        "The score on validation series that selects the best epoch. The history has the negative "
        "log loss, so that higher is better.",
    ),
    "n_members": Parameter(
        [COUNT],
        "int",
        "Number of models that are trained apart, from different seeds and with different "
        "validation series, and whose probabilities are averaged. Scales are those of all series "
        "that some member is trained on. Latent states and reconstructions, and the history, are "
        "those of the first.",
    ),
    "head": Parameter(
        [StrOptions(set(HEADS))],
        '{"trajectory+context", "trajectory"}',
        "Input of the classifier: the latent trajectory and the encoder's states, or the "
        "trajectory alone, as in the paper.",
    ),
    "init": Parameter(
        [HasMethods(["fit"]), str, Path, None],
        "LatentODEReconstructor, str, Path or None",
        "A fitted estimator, or the file of one, whose scales and weights of encoder, ODE and "
        "decoder training starts from: learn these from many series without labels, and classes "
        "from few with labels. It must have the same `ode`, `encoder`, their options and sizes. "
        "Where parameters are copied, as in cross-validation, give a file or wrap it in "
        "`sklearn.frozen.FrozenEstimator`. Not saved with the model.",
    ),
    "summary": Parameter(
        ["boolean"],
        "bool",
        "Whether the classifier is also given features that need no training: of a series, "
        "statistics of each channel (last value, its age, decayed means, extremes, slope, "
        "counts); of a time point, each channel's value and its means that decay with age in both "
        "directions of time.",
    ),
    "summary_dropout": Parameter(
        [Interval(Real, 0, 1, closed="left"), None],
        "float or None",
        "Fraction of these features that is dropped in training. None is 0.7 of those of a "
        "series, and 0.3 of those of a time point, since there are more labels.",
    ),
    "classification_weight": Parameter([NOT_NEGATIVE], "float", "Weight of the cross-entropy."),
    "class_weight": Parameter(
        [dict, StrOptions({"balanced"}), None],
        'dict, "balanced" or None',
        "Weights of the classes in the cross-entropy.",
    ),
}

# Parameters of the filter bank and its relatives.
FILTERS: dict[str, Parameter] = {
    "max_memory": Parameter(
        [POSITIVE],
        "float",
        "Megabytes for intermediate results: series are processed so many at a time. One series "
        "alone may need more. Does not change results.",
    ),
    "device": TRAINING["device"],
    "random_state": Parameter(
        ["random_state"],
        "int, RandomState instance or None",
        "Seed of the random filters; the same seed gives the same features.",
    ),
}

TIME_ORIGIN = Parameter(
    [StrOptions({"case", "absolute"})],
    '{"case", "absolute"}',
    "Whether each series is seen from its own first observation to its last, or all of them on "
    "one clock, from the first observation of all training series to the last.",
)

MODE_SCALES = ("robust", "normal")
MODE_SCALE = Parameter(
    [StrOptions(set(MODE_SCALES))],
    '{"robust", "normal"}',
    "Whether the damped rotations read values scaled by median and interquartile range, or their "
    "normal scores, which spread skewed values and cut extremes.",
)

# Parameters of the classifiers on the filter bank.
FILTER_CLASSIFIER: dict[str, Parameter] = FILTERS | {
    "head": Parameter(
        [HasMethods(["fit", "predict"]), None],
        "classifier or None",
        "Classifier of the features. None is a ridge regression on the classes, whose "
        "regularisation and probabilities are calibrated by leaving one series out at a time, in "
        "closed form. Any classifier of scikit-learn may take its place; features are "
        "standardised for it.",
    ),
    "class_weight": CLASSIFIER["class_weight"]._replace(meaning="Weights of the classes."),
}

# Fitted attributes of all estimators.
ATTRIBUTES = {
    "model_": ("torch module", "What computes the predictions."),
    "scaler_": ("SeriesScaler", "Scales of the training series."),
    "static_encoder_": (
        "StaticEncoder or None",
        "Encoder of the static facts of the training series, if they had any.",
    ),
    "n_channels_": ("int", "Number of channels."),
    "n_features_in_": ("int", "Number of columns of a 2-D X, otherwise of channels."),
    "fitted_on_table_": (
        "bool",
        "Whether X was 2-D; a 2-D X in predictions must then have as many columns.",
    ),
}

# Fitted attributes of estimators that gradients train.
TRAINED_ATTRIBUTES = {
    "history_": ("list of dict", "One row per epoch: losses, validation score, seconds."),
    "best_epoch_": ("int", "The epoch whose weights were kept."),
    "n_iter_": ("int", "Number of epochs run."),
    "n_train_": ("int", "Number of training series."),
    "n_val_": ("int", "Number of validation series."),
}

_Class = TypeVar("_Class", bound=type)


def documented(cls: _Class) -> _Class:
    """Class decorator that adds constraints and completes the docstring.

    In the docstring, `{parameters}` is replaced by the constructor's parameters, as described in
    the class's `_parameters`, and `{attributes}` by the fitted attributes in its `_attributes`, or
    those of all estimators without one.
    """
    table: Mapping[str, Parameter] = cls._parameters  # type: ignore[attr-defined]
    signature = inspect.signature(cls)
    cls._parameter_constraints = {  # type: ignore[attr-defined]
        name: table[name].constraints for name in signature.parameters
    }
    parameters = [
        _format_entry(
            name,
            f"{table[name].type}, default={_format_default(parameter.default)}",
            table[name].meaning,
        )
        for name, parameter in signature.parameters.items()
    ]
    known: Mapping[str, tuple[str, str]] = getattr(cls, "_attributes", None) or {
        name: about
        for name, about in (ATTRIBUTES | TRAINED_ATTRIBUTES).items()
        if (name in ATTRIBUTES or "max_epochs" in signature.parameters)
        and (name != "scaler_" or cls._is_scaled)  # type: ignore[attr-defined]
    }
    attributes = [_format_entry(name, *about) for name, about in known.items()]
    doc = inspect.cleandoc(cls.__doc__ or "")
    doc = doc.replace("{parameters}", "\n".join(parameters))
    cls.__doc__ = doc.replace("{attributes}", "\n".join(attributes))
    return cls


def _format_entry(name: str, kind: str, meaning: str) -> str:
    text = textwrap.fill(
        meaning, 96, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
    )
    return f"{name} : {kind}\n{text}"


def _format_default(value: object) -> str:
    """Formats a default as in the source, with double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)
