"""scikit-learn estimators for irregular time series."""

from latent_morph.estimators.classifier import LatentODEClassifier
from latent_morph.estimators.dynamics import DynamicsRegressor
from latent_morph.estimators.points import LatentODEPointClassifier
from latent_morph.estimators.reconstructor import LatentODEReconstructor

__all__ = [
    "DynamicsRegressor",
    "LatentODEClassifier",
    "LatentODEPointClassifier",
    "LatentODEReconstructor",
]
