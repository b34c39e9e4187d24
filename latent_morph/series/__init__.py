"""Irregular time series: the container, conversions that lead to it, scaling, subsampling."""

from latent_morph.series.batch import Data, SeriesBatch, insert_rows
from latent_morph.series.conversion import as_series, from_long, is_timed, pack_rows
from latent_morph.series.scaling import SCALES, SeriesScaler
from latent_morph.series.subsample import subsample

__all__ = [
    "SCALES",
    "Data",
    "SeriesBatch",
    "SeriesScaler",
    "as_series",
    "from_long",
    "insert_rows",
    "is_timed",
    "pack_rows",
    "subsample",
]
