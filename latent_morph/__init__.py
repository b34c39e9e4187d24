"""Latent ODEs for irregular time series, with solvers or in closed form."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latent_morph.encoders import ENCODERS
    from latent_morph.estimators import (
        BlendClassifier,
        BlendPointClassifier,
        DynamicsRegressor,
        FilterBank,
        FilterBankClassifier,
        FilterBankPointClassifier,
        LatentODEClassifier,
        LatentODEPointClassifier,
        LatentODEReconstructor,
        SeriesStatistics,
    )
    from latent_morph.flows import FLOWS, Flow, IntegrationError, LinearFlow, MorphFlow, SolverFlow
    from latent_morph.series import SeriesBatch, as_series, from_long
    from latent_morph.training import (
        Callback,
        Checkpoint,
        CSVLog,
        EarlyStopping,
        TensorBoardLog,
        TrainingError,
    )

__version__ = "0.2.0.dev0"

# The module of each public name. Names are imported on first use, so that `import latent_morph` is
# fast and flows do not import scikit-learn.
_HOMES = {
    "BlendClassifier": "estimators",
    "BlendPointClassifier": "estimators",
    "CSVLog": "training",
    "Callback": "training",
    "Checkpoint": "training",
    "DynamicsRegressor": "estimators",
    "EarlyStopping": "training",
    "ENCODERS": "encoders",
    "FLOWS": "flows",
    "FilterBank": "estimators",
    "FilterBankClassifier": "estimators",
    "FilterBankPointClassifier": "estimators",
    "Flow": "flows",
    "IntegrationError": "flows",
    "LatentODEClassifier": "estimators",
    "LatentODEPointClassifier": "estimators",
    "LatentODEReconstructor": "estimators",
    "LinearFlow": "flows",
    "MorphFlow": "flows",
    "SeriesBatch": "series",
    "SeriesStatistics": "estimators",
    "SolverFlow": "flows",
    "TensorBoardLog": "training",
    "TrainingError": "training",
    "as_series": "series",
    "from_long": "series",
}

__all__ = [
    "BlendClassifier",
    "BlendPointClassifier",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "DynamicsRegressor",
    "ENCODERS",
    "EarlyStopping",
    "FLOWS",
    "FilterBank",
    "FilterBankClassifier",
    "FilterBankPointClassifier",
    "Flow",
    "IntegrationError",
    "LatentODEClassifier",
    "LatentODEPointClassifier",
    "LatentODEReconstructor",
    "LinearFlow",
    "MorphFlow",
    "SeriesBatch",
    "SeriesStatistics",
    "SolverFlow",
    "TensorBoardLog",
    "TrainingError",
    "as_series",
    "from_long",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module 'latent_morph' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"latent_morph.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
