"""Upgrades of model files that version 0.1 wrote."""

import re
from typing import Any

from torch import Tensor

# Parameters that became options of the encoders.
_ENCODER_OPTIONS = {
    "morph": {
        "encoder_layers": "layers",
        "encoder_modes": "modes",
        "dropout": "dropout",
        "pool": "pool",
    },
    "gru-ode": {
        "encoder_ode": "ode",
        "encoder_ode_options": "ode_options",
        "bidirectional": "bidirectional",
    },
}
_RENAMED = {
    "n_learn": "n_train",
    "n_validation": "n_val",
    "one_label_a_series": "one_label_per_series",
}
# Subnets for the first half and for the second, in `AffineCoupling` and in FrEIA's RNVP block.
_AFFINE = (("first",), ("second",))
_RNVP = (("subnet_s2", "subnet_t2"), ("subnet_s1", "subnet_t1"))


def upgrade(config: dict[str, Any], tensors: dict[str, Tensor], version: int) -> None:
    """Upgrades the content of a file of an older format, in place."""
    if version < 4:
        _upgrade_config(config)
        _upgrade_tensors(tensors)


def _upgrade_config(config: dict[str, Any]) -> None:
    for old, new in _RENAMED.items():
        if old in config:
            config[new] = config.pop(old)
    params = config["params"]
    if "encoder" in params:
        names = _ENCODER_OPTIONS[params["encoder"]]
        params["encoder_options"] = {new: params[old] for old, new in names.items()}
        # What these were before they became parameters.
        params |= {"scale": "standard", "monitor": "accuracy", "summary": False}
    for ode_options in (params.get("ode_options"), params.get("encoder_ode_options")):
        inn = (ode_options or {}).get("inn")
        if isinstance(inn, dict) and inn.get("coupling") == "glow":
            inn["coupling"] = "affine"  # the same function; "glow" is FrEIA's own module now


def _upgrade_tensors(tensors: dict[str, Tensor]) -> None:
    """Separates the weights of blocks, which were stacked as (blocks, ...)."""
    pattern = re.compile(r"(.*)movers\.(\d)\.(\d)\.(\d+)\.(weight|bias)")
    matches = [match for name in tensors if (match := pattern.fullmatch(name))]
    rnvp_prefixes = {match[1] for match in matches if match[3] == "1"}
    for match in matches:
        prefix, half, subnet, layer, kind = match.groups()
        names = _RNVP if prefix in rnvp_prefixes else _AFFINE
        network = names[int(half)][int(subnet)]
        for block, value in enumerate(tensors.pop(match[0])):
            tensors[f"{prefix}blocks.{block}.{network}.{2 * int(layer)}.{kind}"] = value.clone()
    for name in [name for name in tensors if ".entered." in name]:
        tensors[name.replace(".entered.", ".bijection.")] = tensors.pop(name)
