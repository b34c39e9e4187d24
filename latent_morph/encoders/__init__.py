"""Encoders, from irregular series to a posterior over their latent start."""

from latent_morph.encoders.attention import AttentionEncoder
from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.encoders.gru_decay import GRUDecayEncoder
from latent_morph.encoders.gru_ode import GRUODEEncoder
from latent_morph.encoders.morph import MorphEncoder
from latent_morph.encoders.registry import ENCODERS, EncoderRecipe, register

__all__ = [
    "ENCODERS",
    "AttentionEncoder",
    "Encoder",
    "EncoderRecipe",
    "Encoding",
    "GRUDecayEncoder",
    "GRUODEEncoder",
    "MorphEncoder",
    "register",
]
