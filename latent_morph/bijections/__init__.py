"""Bijections: invertible maps between base coordinates and latent states."""

from latent_morph.bijections.base import Anchored, Bijection, Composed, Inverted
from latent_morph.bijections.coupling import CouplingINN
from latent_morph.bijections.freia import FREIA_COUPLINGS, FreiaINN
from latent_morph.bijections.inn import COUPLINGS, INN_PRESETS, make_inn
from latent_morph.bijections.scalar import ScalarWarp

__all__ = [
    "COUPLINGS",
    "FREIA_COUPLINGS",
    "INN_PRESETS",
    "Anchored",
    "Bijection",
    "Composed",
    "CouplingINN",
    "FreiaINN",
    "Inverted",
    "ScalarWarp",
    "make_inn",
]
