"""Models: the latent ODE of irregular series, and an ODE on the states themselves."""

from latent_morph.models.decoders import Decoder, Emission, PointHead, SeriesHead
from latent_morph.models.dynamics import DynamicsModel
from latent_morph.models.latent_ode import LatentODE, LatentOutput

__all__ = [
    "Decoder",
    "DynamicsModel",
    "Emission",
    "LatentODE",
    "LatentOutput",
    "PointHead",
    "SeriesHead",
]
