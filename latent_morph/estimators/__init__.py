"""scikit-learn estimators for irregular time series."""

from latent_morph.estimators.blend import BlendClassifier, BlendPointClassifier
from latent_morph.estimators.classifier import LatentODEClassifier
from latent_morph.estimators.dynamics import DynamicsRegressor
from latent_morph.estimators.filter_classifier import FilterBankClassifier
from latent_morph.estimators.filter_points import FilterBankPointClassifier
from latent_morph.estimators.filters import FilterBank
from latent_morph.estimators.points import LatentODEPointClassifier
from latent_morph.estimators.reconstructor import LatentODEReconstructor
from latent_morph.estimators.statistics import SeriesStatistics

__all__ = [
    "BlendClassifier",
    "BlendPointClassifier",
    "DynamicsRegressor",
    "FilterBank",
    "FilterBankClassifier",
    "FilterBankPointClassifier",
    "LatentODEClassifier",
    "LatentODEPointClassifier",
    "LatentODEReconstructor",
    "SeriesStatistics",
]
