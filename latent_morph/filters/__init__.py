"""Filters in continuous time: features of irregular series that need no training."""

from latent_morph.filters.bank import BLOCKS, Bank, split_by_size
from latent_morph.filters.interpolant import Interpolant, interpolate, measure_times, resample
from latent_morph.filters.kernels import Kernels
from latent_morph.filters.modes import Modes
from latent_morph.filters.observations import Observations
from latent_morph.filters.points import PointBank, RandomLayer
from latent_morph.filters.scores import NormalScores
from latent_morph.filters.statistics import Statistics

__all__ = [
    "BLOCKS",
    "Bank",
    "Interpolant",
    "Kernels",
    "Modes",
    "NormalScores",
    "Observations",
    "PointBank",
    "RandomLayer",
    "Statistics",
    "interpolate",
    "measure_times",
    "resample",
    "split_by_size",
]
