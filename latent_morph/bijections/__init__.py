"""Invertible maps, the lenses through which a simple ODE is seen as a rich one."""

from latent_morph.bijections.base import Anchored, Bijection, Composed, Inverted
from latent_morph.bijections.inn import INN_PRESETS, CouplingINN, make_inn
from latent_morph.bijections.scalar import ScalarWarp

__all__ = [
    "INN_PRESETS",
    "Anchored",
    "Bijection",
    "Composed",
    "CouplingINN",
    "Inverted",
    "ScalarWarp",
    "make_inn",
]
