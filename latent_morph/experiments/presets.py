"""Presets with the settings of the paper's appendix."""

from collections.abc import Mapping
from typing import Any

from latent_morph.flows import METHODS

PRESETS = ("default", "paper")

# The paper follows the repository of Rubanova et al. (2019). It counts a network's layers without
# the first, so that its "one layer" is two hidden layers here. Gates of its GRU are small networks
# (100 and 50 units); ours are linear, and `hidden_dim` is the size of the state.
_LATENT: dict[str, Any] = {
    "encoder": "gru-ode",
    "decoder_depth": 0,
    "optimizer": "adamax",
    "learning_rate": 1e-2,
    "weight_decay": 0.0,
    "schedule": "exponential",
    "gradient_clip": None,
    "batch_size": 50,
    "noise_std": 0.01,
}
_ENCODER = {"ode": "euler", "bidirectional": False}
PAPER_RECONSTRUCTION: dict[str, Any] = _LATENT | {
    "latent_dim": 10,
    "hidden_dim": 20,
    "encoder_options": _ENCODER | {"ode_options": {"units": 100, "layers": 2}},
    "target_points": None,
    "kl_weight": 1.0,
    "max_epochs": 500,
}
PAPER_CLASSIFICATION: dict[str, Any] = _LATENT | {
    "latent_dim": 15,
    "hidden_dim": 100,
    "head": "trajectory",
    "summary": False,
    "scale": "standard",
    "monitor": "accuracy",
    "encoder_options": _ENCODER | {"ode_options": {"units": 500, "layers": 5}},
    "classification_weight": 100.0,
    "reconstruction_weight": 1.0,
    "kl_weight": 1.0,
    "max_epochs": 200,
}
# Full batches, from the trajectories' own starts only. For the stiff system the paper reduces the
# learning rate to a hundredth after 500 steps; here it is constant.
PAPER_DYNAMICS: dict[str, Any] = {
    "optimizer": "adam",
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "schedule": "constant",
    "gradient_clip": None,
    "max_epochs": 5000,
    "restarts": 0,
    "linear_start": False,
}


def paper_ode_options(ode: str, units: int, layers: int) -> dict[str, Any] | None:
    """Returns the paper's options of an ODE; `units` and `layers` are of a solver's network."""
    if ode in METHODS:
        return {"units": units, "layers": layers}
    if ode == "morph":
        return {"inn": "paper", "spectrum": "real"}
    return {"inn": "paper"} if ode.startswith("morph") else None


def override(preset: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a preset's parameters, overridden by those given.

    The preset's encoder options are dropped with its encoder.
    """
    params, encoder = dict(preset), preset.get("encoder", "morph")
    if given.get("encoder", encoder) != encoder:
        params.pop("encoder_options", None)
    return params | dict(given)
