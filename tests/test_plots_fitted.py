"""Plots of fitted estimators agree with their predictions."""

import inspect

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex

from latent_morph import (
    DynamicsRegressor,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    plots,
)

SMALL = {
    "max_epochs": 2,
    "hidden_dim": 8,
    "encoder_options": {"layers": 1},
    "latent_dim": 4,
    "random_state": 0,
}
RNG = np.random.default_rng(0)
CLOCKS = [np.sort(RNG.uniform(0, 6, n)) for n in (12, 9, 15, 7, 12, 9)]
X = [(t, np.stack([np.sin(t), np.where(t > 3, np.nan, t)], 1)) for t in CLOCKS]
Y = ["odd", "even", "odd", "even", "odd", "even"]
ROWS = [np.where(t > 3, "late", "early") for t in CLOCKS]


@pytest.fixture(scope="module")
def models():
    return {
        "series": LatentODEClassifier(**SMALL).fit(X, Y),
        "points": LatentODEPointClassifier(**SMALL).fit(X, ROWS),
        "reconstructor": LatentODEReconstructor(**SMALL).fit(X),
    }


@pytest.fixture(scope="module")
def regressor():
    t = np.linspace(0, 4, 20)
    paths = [(t, a * np.exp(-t)[:, None] * np.c_[np.cos(t), np.sin(t)]) for a in (1.0, 2.0)]
    model = DynamicsRegressor(stable=True, goal=[0, 0], max_epochs=3, random_state=0).fit(paths)
    return model, paths


def test_plots_are_exported_and_return_axes():
    names = [name for name in plots.__all__ if name.startswith("plot_")]
    assert len(names) == 16
    for name in names:
        function = getattr(plots, name)
        assert inspect.signature(function).return_annotation in ("Axes", "np.ndarray"), name


def areas(ax):
    return {area.get_label(): area for area in ax.collections if isinstance(area, PolyCollection)}


def test_plot_series_of_reconstructor(models, tmp_path):
    axes = plots.plot_series(models["reconstructor"], X, case=2, channel_names=["wave", "ramp"])
    assert axes.shape == (2,)
    curve = {line.get_label(): line for line in axes[0].lines}
    observed_times = CLOCKS[2]
    np.testing.assert_array_equal(curve["observed"].get_xdata(), observed_times)
    fine = curve["reconstruction"].get_xdata()
    assert len(fine) == 300 and fine[0] == observed_times[0] and fine[-1] == observed_times[-1]
    mean = models["reconstructor"].reconstruct(X[2:3], fine)
    np.testing.assert_allclose(curve["reconstruction"].get_ydata(), mean[0, :, 0])
    assert [ax.get_ylabel() for ax in axes] == ["wave", "ramp"]
    assert {"± 2 std"} <= set(areas(axes[0]))
    assert plots.save_figure(axes, tmp_path / "series.png").stat().st_size > 5000


def test_plot_series_of_point_classifier(models):
    times = np.linspace(0, 6, 12)  # as many as the series has rows: labels stay with the rows
    axes = plots.plot_series(models["points"], X, times, labels=ROWS[0])
    probabilities = models["points"].predict_proba(X[:1], times)[0]
    stacked = areas(axes[-1])
    assert list(stacked) == ["early", "late"]
    top = stacked["early"].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(top, probabilities[:, 0].max())
    assert [tick.get_text() for tick in axes[-1].get_yticklabels()][-1] == "true class"
    (strip,) = [mesh for mesh in axes[-1].collections if hasattr(mesh, "get_coordinates")]
    assert strip.get_array().shape == (1, 12)
    edges = strip.get_coordinates()[0, :, 0]
    assert edges[0] == CLOCKS[0][0] and edges[-1] == CLOCKS[0][-1]


def test_plot_series_of_classifier_predicts_prefixes(models):
    axes = plots.plot_series(models["series"], X, case=1, labels="even", channels=[0])
    assert axes.shape == (2,)
    observed_times, values = X[1]
    prefixes = [(observed_times[:k], values[:k]) for k in range(1, len(observed_times) + 1)]
    expected = models["series"].predict_proba(prefixes)[:, 0]
    corners = areas(axes[-1])["even"].get_paths()[0].vertices
    for time, probability in zip(observed_times, expected, strict=True):
        at_time = corners[np.isclose(corners[:, 0], time), 1]
        assert np.isclose(at_time, probability, atol=1e-6).any()
    assert axes[-1].get_title(loc="right") == "true class: even"


def test_plot_series_draws_most_observed_channels(models):
    wide = [(t, np.tile(v, 3)) for t, v in X]
    model = LatentODEReconstructor(**SMALL).fit(wide)
    labels = [ax.get_ylabel() for ax in plots.plot_series(model, wide)]
    assert labels == ["channel 0", "channel 1", "channel 2", "channel 4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": [2]}, r"channels must be positions in 0 \.\. 1, got \[2\]"),
        ({"channel_names": ["a"]}, "channel_names must have 2 names, got 1"),
        ({"labels": "neither"}, r"labels must be one of \['even', 'odd'\], got 'neither'"),
    ],
)
def test_plot_series_rejects_invalid_arguments(models, change, message):
    with pytest.raises(ValueError, match=message):
        plots.plot_series(models["series"], X, **change)
    with pytest.raises(ValueError, match=r"labels must have shape \(12,\), got \(2,\)"):
        plots.plot_series(models["points"], X, labels=["early", "late"])


def colours(ax):
    (lines,) = [part for part in ax.collections if isinstance(part, LineCollection)]
    return lines.get_segments(), [to_hex(colour) for colour in lines.get_colors()]


@pytest.mark.parametrize("name", ["series", "points", "reconstructor"])
def test_plot_latent_trajectories_of_estimators(models, name, tmp_path):
    ax = plots.plot_latent_trajectories(models[name], X)
    assert isinstance(ax, Axes) and ax.get_legend() is None
    segments, _ = colours(ax)
    assert len(segments) == len(X) * 99
    assert "of variance" in ax.get_xlabel()
    assert plots.save_figure(ax, tmp_path / "latent.png").stat().st_size > 5000


def test_plot_latent_trajectories_low_latent_dim():
    model = LatentODEReconstructor(**SMALL | {"latent_dim": 2}).fit(X)
    ax = plots.plot_latent_trajectories(model, X)
    starts = ax.collections[1].get_offsets()
    np.testing.assert_allclose(starts, model.transform(X), atol=1e-5)
    assert ax.get_xlabel() == "latent state 1"
    with pytest.raises(ValueError, match="latent_dim of estimator must be at least 2, got 1"):
        flat = LatentODEReconstructor(**SMALL | {"latent_dim": 1, "ode": "linear"}).fit(X)
        plots.plot_latent_trajectories(flat, X)


def test_plot_latent_trajectories_labels(models):
    ax = plots.plot_latent_trajectories(models["series"], X, labels=Y)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names == ["even", "odd"]
    _, drawn = colours(ax)
    palette = [colour.lower() for colour in plots.CLASS_COLOURS]
    assert drawn[0] == palette[1] and drawn[99] == palette[0]
    times = np.linspace(0, 6, 30)
    labels = np.where(np.tile(times > 3, (len(X), 1)), "late", "early")
    _, drawn = colours(plots.plot_latent_trajectories(models["points"], X, times, labels=labels))
    assert drawn[0] == palette[0] and drawn[28] == palette[1]
    with pytest.raises(
        ValueError, match=r"labels must have shape \(6,\) or \(6, 30\), got \(2,\)"
    ):
        plots.plot_latent_trajectories(models["points"], X, times, labels=["late", "early"])


def test_plot_vector_field_content(regressor, tmp_path):
    model, paths = regressor
    ax = plots.plot_vector_field(model, paths, names=("here", "there"))
    assert ax.get_xlabel() == "here" and ax.get_xlim()[0] < 0 and ax.get_xlim()[1] > 2
    assert {"truth", "roll-out", "goal"} <= {line.get_label() for line in ax.lines}
    assert plots.plot_vector_field(model, paths, ax=ax) is ax
    plots.save_figure(ax, tmp_path / "field.png")
    with pytest.raises(ValueError, match="X must have 2 channels, got 1"):
        plots.plot_vector_field(model, [np.ones((3, 1))])


def test_plot_morphed_grid_content(regressor):
    model, paths = regressor
    base, learned = plots.plot_morphed_grid(model, paths)
    assert len(base.lines) == len(learned.lines) == 26 + 2
    np.testing.assert_allclose(learned.lines[26].get_xydata()[0], paths[0][1][0], atol=1e-5)
