"""ENCODERS: names to recipes, `(n_channels, latent_dim, hidden_dim, **options) -> Encoder`."""

from collections.abc import Callable
from typing import Any

from latent_morph.encoders.attention import AttentionEncoder
from latent_morph.encoders.base import Encoder
from latent_morph.encoders.gru_decay import GRUDecayEncoder
from latent_morph.encoders.gru_ode import GRUODEEncoder
from latent_morph.encoders.morph import MorphEncoder
from latent_morph.flows import FlowRecipe, resolve_flow
from latent_morph.registry import Registry

EncoderRecipe = Callable[..., Encoder]

# Stable, so that the state forgets observations further back than the span of a series.
_FLOW_DEFAULTS: dict[str, dict[str, Any]] = {
    "linear": {"stable": True, "eigenvectors": "identity"},
}


def gru_ode(
    n_channels: int,
    latent_dim: int,
    hidden_dim: int = 64,
    *,
    ode: str | FlowRecipe = "linear",
    ode_options: dict[str, Any] | None = None,
    bidirectional: bool = True,
) -> GRUODEEncoder:
    """Builds an encoder with a GRU and the flow `ode`; see `GRUODEEncoder`.

    With `ode_options=None`, `"linear"` is stable and has independent modes.
    """
    if ode_options is None and isinstance(ode, str):
        ode_options = _FLOW_DEFAULTS.get(ode)
    return GRUODEEncoder(
        n_channels,
        latent_dim,
        resolve_flow(ode, ode_options, name="ode of the encoder"),
        hidden_dim=hidden_dim,
        bidirectional=bidirectional,
    )


ENCODERS: Registry[EncoderRecipe] = Registry(
    "encoder",
    {
        "morph": MorphEncoder,
        "gru-ode": gru_ode,
        "gru-decay": GRUDecayEncoder,
        "attention": AttentionEncoder,
    },
)


def register(name: str, recipe: EncoderRecipe) -> None:
    """Makes `recipe` available to every estimator as `encoder=name`.

    Args:
        name: A new name.
        recipe: `(n_channels, latent_dim, hidden_dim, **options) -> Encoder`; users pass the
            options as `encoder_options`.
    """
    ENCODERS.register(name, recipe)
