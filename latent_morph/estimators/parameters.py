"""Parameters that estimators share: what each may be and what it means, said once.

A constructor lists its parameters and their defaults, as scikit-learn wants it; `documented`
takes constraints and docstrings from here.
"""

import inspect
import textwrap
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from sklearn.utils._param_validation import Interval, StrOptions

from latent_morph.models.decoders import HEADS
from latent_morph.training import OPTIMIZERS, SCHEDULES

DTYPES = {"float32": torch.float32, "float64": torch.float64}

POSITIVE = Interval(Real, 0, None, closed="neither")
NOT_NEGATIVE = Interval(Real, 0, None, closed="left")
COUNT = Interval(Integral, 1, None, closed="left")
COUNT_OR_ZERO = Interval(Integral, 0, None, closed="left")


class Parameter(NamedTuple):
    """What a parameter may be, in scikit-learn's terms and in words, and what it means."""

    constraints: list[Any]
    type: str
    meaning: str


# Of every estimator that trains.
TRAINING: dict[str, Parameter] = {
    "optimizer": Parameter(
        [StrOptions(set(OPTIMIZERS))],
        '{"adamw", "adam", "adamax"}',
        "The optimiser.",
    ),
    "learning_rate": Parameter([POSITIVE], "float", "Its highest learning rate."),
    "weight_decay": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Its weight decay. Eigenvalues, frequencies, norms and biases do not decay.",
    ),
    "schedule": Parameter(
        [StrOptions(set(SCHEDULES))],
        '{"one-cycle", "exponential", "constant"}',
        "How the learning rate moves: up and down, down to a hundredth, or not at all.",
    ),
    "gradient_clip": Parameter([POSITIVE, None], "float or None", "Largest norm of a gradient."),
    "batch_size": Parameter([COUNT], "int", "Series per step."),
    "max_epochs": Parameter([COUNT], "int", "Passes over the training series at most."),
    "budget": Parameter(
        [POSITIVE, None],
        "float or None",
        "Seconds of training at most; the schedule is fitted to it. With a budget the result "
        "depends on the machine's speed.",
    ),
    "patience": Parameter(
        [COUNT, None],
        "int or None",
        "Stop after so many epochs without a better validation score.",
    ),
    "validation_fraction": Parameter(
        [Interval(Real, 0, 1, closed="left")],
        "float",
        "Fraction of the series, or of the groups, held out to pick the best epoch. Fewer than "
        "ten series are all learned from, and the last epoch is kept.",
    ),
    "checkpoint": Parameter(
        [str, Path, None],
        "str, Path or None",
        "File for the state of training, written every half minute and at the end.",
    ),
    "resume": Parameter(["boolean"], "bool", "Continue from the checkpoint if it exists."),
    "device": Parameter([str], "str", 'Where to compute: "cpu" or a CUDA device.'),
    "dtype": Parameter(
        [StrOptions(set(DTYPES))],
        '{"float32", "float64"}',
        "Precision of training and of answers. Double precision takes longer and is for results "
        "that are to agree to many digits.",
    ),
    "random_state": Parameter(
        ["random_state"],
        "int, RandomState instance or None",
        "Seed of everything random; the same seed gives the same result.",
    ),
    "verbose": Parameter(
        ["verbose"],
        "int or bool",
        "Log a line per epoch through `logging`: to standard error, unless logging was set up to "
        "go elsewhere.",
    ),
    "callbacks": Parameter(
        ["array-like", None],
        "sequence of Callback or callable",
        "Told how training goes: `EarlyStopping`, `Checkpoint`, `CSVLog`, `TensorBoardLog`, a "
        "`latent_morph.Callback` of one's own, or a function `(history, settings)` to call after "
        "every epoch. Not saved with the model.",
    ),
}

# Of the latent ODEs.
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
        "How series are encoded: a name from `latent_morph.ENCODERS`, or a recipe `(n_channels, "
        'latent_dim, hidden_dim, **options) -> Encoder`. `"morph"` is in closed form, linear '
        'flows with jumps at the observations; `"gru-ode"` makes a GRU update at every '
        "observation with any ODE between them.",
    ),
    "encoder_options": Parameter(
        [dict, None],
        "dict or None",
        'Options of the recipe. `"morph"` takes `layers` (3), `modes` (16, the decaying rotations '
        "by which a layer remembers, in each direction of time), `dropout` (0.2; 0 in "
        "`LatentODEReconstructor`) and `pool` (1, the observations that are taken in together; "
        'for long series 4 is some twice as fast). `"gru-ode"` takes `ode` ("linear", the ODE of '
        "the hidden state), `ode_options` (a fading memory) and `bidirectional` (True; the "
        "paper's goes backward only).",
    ),
    "latent_dim": Parameter([COUNT], "int", "Dimensions of the latent state."),
    "hidden_dim": Parameter(
        [COUNT],
        "int",
        "Units of the encoder's state, and of the head where there are classes.",
    ),
    "decoder_width": Parameter([COUNT], "int", "Hidden units of the decoder."),
    "decoder_depth": Parameter([COUNT_OR_ZERO], "int", "Hidden layers; 0 is linear."),
    "noise_std": Parameter(
        [POSITIVE, StrOptions({"learned"})],
        'float or "learned"',
        "Standard deviation of the observation noise, channels being scaled to 1.",
    ),
    "reconstruction_weight": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight of the negative log-likelihood of the observed values, a mean over them.",
    ),
    "kl_weight": Parameter(
        [NOT_NEGATIVE],
        "float",
        "Weight of the posterior's divergence from a standard normal, per observed value. With 1 "
        "for this and for `reconstruction_weight` the loss is the evidence lower bound, for "
        "honest samples; less reconstructs better.",
    ),
    "kl_warmup": Parameter(
        [Interval(Real, 0, 1, closed="both")],
        "float",
        "Fraction of training over which that weight rises from 0.",
    ),
    "sample_z0": Parameter(
        ["boolean"],
        "bool",
        "Whether training draws z0 from its posterior. False takes the posterior's mean: nothing "
        "is random about a step then, and only the divergence says how wide a posterior is.",
    ),
    "time_origin": Parameter(
        [StrOptions({"case", "absolute"})],
        '{"case", "absolute"}',
        "Whether each series starts at time 0, or times are counted from the earliest in "
        "training.",
    ),
    "compile": Parameter(
        ["boolean"],
        "bool",
        "Have torch compile the invertible networks, which takes some tens of seconds at first. "
        "On a CPU little is gained, and nothing in training, unless they are large; without a "
        "compiler training goes on as without this.",
    ),
}

# Of the classifiers.
CLASSIFIER: dict[str, Parameter] = LATENT | {
    "head": Parameter(
        [StrOptions(set(HEADS))],
        '{"trajectory+context", "trajectory"}',
        "What the class is read from: the latent trajectory joined with the encoder's states, or "
        "the trajectory alone, as in the paper.",
    ),
    "classification_weight": Parameter([NOT_NEGATIVE], "float", "Weight of the cross-entropy."),
    "class_weight": Parameter(
        [dict, StrOptions({"balanced"}), None],
        'dict, "balanced" or None',
        "Factors of the classes in the cross-entropy.",
    ),
}

# What every estimator learns.
ATTRIBUTES = {
    "model_": ("torch module", "The trained network."),
    "scaler_": ("SeriesScaler", "Scales learned from the training series."),
    "history_": ("list of dict", "One row per epoch: losses, validation score, seconds."),
    "best_epoch_": ("int", "The epoch whose weights were kept."),
    "n_iter_": ("int", "Epochs run."),
    "n_train_": ("int", "Series learned from."),
    "n_val_": ("int", "Series validated on."),
    "n_channels_": ("int", "Channels of the series."),
    "n_features_in_": ("int", "Columns of a 2-D X, otherwise the channels."),
    "fitted_on_table_": (
        "bool",
        "Whether X was 2-D: a 2-D X asked about later must then have as many columns.",
    ),
}

_Class = TypeVar("_Class", bound=type)


def documented(cls: _Class) -> _Class:
    """Class decorator: constraints from the class's `_parameters`, and a complete docstring.

    In the docstring `{parameters}` stands for the constructor's parameters, in its order and with
    its defaults, and `{attributes}` for what every estimator learns.
    """
    table: Mapping[str, Parameter] = cls._parameters  # type: ignore[attr-defined]
    signature = inspect.signature(cls)
    cls._parameter_constraints = {  # type: ignore[attr-defined]
        name: table[name].constraints for name in signature.parameters
    }
    parameters = [
        _entry(name, f"{table[name].type}, default={_literal(given.default)}", table[name].meaning)
        for name, given in signature.parameters.items()
    ]
    attributes = [_entry(name, *about) for name, about in ATTRIBUTES.items()]
    doc = inspect.cleandoc(cls.__doc__ or "")
    doc = doc.replace("{parameters}", "\n".join(parameters))
    cls.__doc__ = doc.replace("{attributes}", "\n".join(attributes))
    return cls


def _entry(name: str, kind: str, meaning: str) -> str:
    text = textwrap.fill(meaning, 96, initial_indent="    ", subsequent_indent="    ")
    return f"{name} : {kind}\n{text}"


def _literal(value: object) -> str:
    """As the constructor would have it written."""
    return f'"{value}"' if isinstance(value, str) else repr(value)
