"""Latent ODEs for irregular time series, with solvers or in closed form."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latent_morph.flows import FLOWS, Flow, IntegrationError, LinearFlow, MorphFlow, SolverFlow

__version__ = "0.1.0"

# Where each public name lives. Resolved on first use: `import latent_morph` costs nothing, and
# a user of flows never waits for scikit-learn.
_HOMES = {
    "FLOWS": "latent_morph.flows",
    "Flow": "latent_morph.flows",
    "IntegrationError": "latent_morph.flows",
    "LinearFlow": "latent_morph.flows",
    "MorphFlow": "latent_morph.flows",
    "SolverFlow": "latent_morph.flows",
}

__all__ = ["FLOWS", "Flow", "IntegrationError", "LinearFlow", "MorphFlow", "SolverFlow"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module 'latent_morph' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
