"""Encoders, from irregular series to a posterior over their latent start."""

from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.encoders.gru_ode import GRUODEEncoder
from latent_morph.encoders.morph import MorphEncoder
from latent_morph.encoders.registry import ENCODERS, EncoderRecipe, register

__all__ = [
    "ENCODERS",
    "Encoder",
    "EncoderRecipe",
    "Encoding",
    "GRUODEEncoder",
    "MorphEncoder",
    "register",
]
