"""Plots of series, latent trajectories, learned ODEs, classes and training.

Every `plot_*` function draws into `ax` if it is given, else into a new figure that pyplot does not
manage, and returns the axes. `save_figure` writes either to a file. matplotlib is imported on the
first call.
"""

from latent_morph.plots.classes import (
    plot_confusion,
    plot_labelled_series,
    plot_point_probabilities,
)
from latent_morph.plots.figures import CLASS_COLOURS, annotate_source, save_figure
from latent_morph.plots.filters import plot_filter_bank
from latent_morph.plots.fitted import (
    plot_latent_trajectories,
    plot_morphed_grid,
    plot_series,
    plot_vector_field,
)
from latent_morph.plots.learning import plot_history
from latent_morph.plots.portraits import (
    plot_coordinates,
    plot_field,
    plot_morph,
    plot_phase_portrait,
)
from latent_morph.plots.reconstructions import plot_reconstruction, plot_reconstructions
from latent_morph.plots.timings import plot_ode_table

__all__ = [
    "CLASS_COLOURS",
    "annotate_source",
    "plot_confusion",
    "plot_coordinates",
    "plot_field",
    "plot_filter_bank",
    "plot_history",
    "plot_labelled_series",
    "plot_latent_trajectories",
    "plot_morph",
    "plot_morphed_grid",
    "plot_ode_table",
    "plot_phase_portrait",
    "plot_point_probabilities",
    "plot_reconstruction",
    "plot_reconstructions",
    "plot_series",
    "plot_vector_field",
    "save_figure",
]
