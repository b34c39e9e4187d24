"""Encoders, from irregular series to a belief about their latent start."""

from latent_morph.encoders.base import Encoder, Encoding
from latent_morph.encoders.gru_ode import GRUODEEncoder
from latent_morph.encoders.morph import MorphEncoder

__all__ = ["Encoder", "Encoding", "GRUODEEncoder", "MorphEncoder"]
