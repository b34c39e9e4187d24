"""Parameters for each data set: our defaults, and the settings of the paper's appendix."""

from typing import Any

from latent_morph.checks import check_choice
from latent_morph.flows import METHODS

PRESETS = ("default", "paper")

# Ours: what the estimators' own defaults do not suit.
_DEFAULT: dict[str, dict[str, Any]] = {
    "periodic": {
        "keep": 0.05,
        "time_origin": "absolute",
        "latent_dim": 20,
        # Five points say little: a strong prior would smooth away what they say.
        "kl_weight": 0.03,
        "max_epochs": 300,
    },
    "activity": {"encoder_modes": 8, "max_epochs": 30},
    # Beats have up to 187 samples, and there are many of them: larger steps, less to forget.
    "ecg": {"batch_size": 128, "max_epochs": 12, "pool": 4, "dropout": 0.1},
    "physionet": {"batch_size": 64, "max_epochs": 15, "class_weight": "balanced"},
}

# The paper follows the repository of Rubanova et al. (2019). It counts a network's layers without
# the first, so that its "one layer" is two hidden layers here. Its GRU computes its gates by small
# networks of their own (100 and 50 units); ours are linear, and `hidden_dim` is the state's size.
_SHARED: dict[str, Any] = {
    "encoder": "gru-ode",
    "bidirectional": False,
    "encoder_ode": "euler",
    "decoder_depth": 0,
    "optimizer": "adamax",
    "learning_rate": 1e-2,
    "weight_decay": 0.0,
    "schedule": "exponential",
    "gradient_clip": None,
    "batch_size": 50,
    "noise_std": 0.01,
}
_CLASSIFICATION: dict[str, Any] = _SHARED | {
    "latent_dim": 15,
    "hidden_dim": 100,
    "head": "trajectory",
    "encoder_ode_options": {"units": 500, "layers": 5},
    "classification_weight": 100.0,
    "reconstruction_weight": 1.0,
    "kl_weight": 1.0,
    "max_epochs": 200,
}
_PAPER: dict[str, dict[str, Any]] = {
    "periodic": _SHARED
    | {
        "latent_dim": 10,
        "hidden_dim": 20,
        "encoder_ode_options": {"units": 100, "layers": 2},
        "keep": 0.05,
        "target_points": None,
        "kl_weight": 1.0,
        "time_origin": "absolute",
        "max_epochs": 500,
    },
    "activity": _CLASSIFICATION,
    "ecg": _CLASSIFICATION,
    "physionet": _CLASSIFICATION,
}
_PAPER_FIELD: dict[str, dict[str, Any]] = {
    "periodic": {"units": 100, "layers": 2},
    "activity": {"units": 500, "layers": 3},
    "ecg": {"units": 500, "layers": 3},
    "physionet": {"units": 500, "layers": 3},
}


def preset_parameters(dataset: str, preset: str, ode: str) -> dict[str, Any]:
    """Estimator parameters of a preset, the options of its ODE included."""
    check_choice("preset", preset, PRESETS)
    if preset == "default":
        return dict(_DEFAULT[dataset])
    params, options = dict(_PAPER[dataset]), None
    if ode in METHODS:
        options = dict(_PAPER_FIELD[dataset])
    elif ode.startswith("morph"):
        options = {"inn": "paper"} | ({"spectrum": "real"} if ode == "morph" else {})
        # At the paper's 1e-2 a network of 1,500 units runs away in the first steps: the loss of
        # an epoch of Human Activity was 1e12 to 1e13 for three seeds, gradients clipped or not.
        params["learning_rate"] = 1e-3
    return params | {"ode_options": options}
