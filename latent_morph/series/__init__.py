"""Irregular time series: the container, conversions to it, scaling, static facts, subsampling."""

from latent_morph.series.batch import Data, SeriesBatch, insert_rows
from latent_morph.series.conversion import as_series, from_long, is_timed, pack_rows
from latent_morph.series.examples import Examples
from latent_morph.series.scaling import SCALES, SeriesScaler
from latent_morph.series.static_encoder import StaticEncoder
from latent_morph.series.subsample import subsample

__all__ = [
    "SCALES",
    "Data",
    "Examples",
    "SeriesBatch",
    "SeriesScaler",
    "StaticEncoder",
    "as_series",
    "from_long",
    "insert_rows",
    "is_timed",
    "pack_rows",
    "subsample",
]
