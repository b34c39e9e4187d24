"""Models: the latent ODE of irregular series, an ODE on the states, a head for features."""

from latent_morph.models.decoders import Decoder, Emission, PointHead, SeriesHead
from latent_morph.models.dynamics import DynamicsModel
from latent_morph.models.latent_ode import Ensemble, LatentODE, LatentOutput, average_logits
from latent_morph.models.moments import Moments, choose_alpha
from latent_morph.models.ridge import RidgeChoice, RidgeHead, choose_search_cases
from latent_morph.models.summary import PointSummary, SeriesSummary

__all__ = [
    "Decoder",
    "DynamicsModel",
    "Emission",
    "Ensemble",
    "LatentODE",
    "LatentOutput",
    "Moments",
    "PointHead",
    "PointSummary",
    "RidgeChoice",
    "RidgeHead",
    "SeriesHead",
    "SeriesSummary",
    "average_logits",
    "choose_alpha",
    "choose_search_cases",
]
