"""Plots of given data: content, axes, files and errors."""

import os
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from latent_morph import plots
from latent_morph.plots import (
    annotate_source,
    plot_confusion,
    plot_history,
    plot_labelled_series,
    plot_ode_table,
    plot_point_probabilities,
    plot_reconstruction,
    plot_reconstructions,
    save_figure,
)
from latent_morph.plots.figures import get_class_colours

plt.switch_backend("Agg")

NAN = float("nan")
TIMES = np.linspace(0, 4, 50)
NAMES = ["walking", "lying down", "sitting on the ground"]
CODES = np.repeat([0, 1, 2], [20, 20, 10])
PROBABILITIES = np.eye(3)[CODES] * 0.7 + 0.1
VALUES = np.where(np.arange(100).reshape(50, 2) % 3, 1.5, NAN)
HISTORY = [
    {"epoch": i, "train_loss": 1 / i, "validation_loss": 2 / i, "validation_score": 1 - 1 / i}
    for i in range(1, 13)
]
ODES = [
    {"ode": "rk4", "score": 0.91, "integration_ms_mean": 80.0, "integration_ms_std": 9.0,
     "ratio_to_morph": 26.7},
    {"ode": "morph", "score": 0.9, "integration_ms_mean": 3.0, "integration_ms_std": 0.4,
     "ratio_to_morph": 1.0},
    {"ode": "dopri5", "score": None, "integration_ms_mean": 4000.0, "integration_ms_std": 5000.0,
     "ratio_to_morph": 1333.3},
]  # fmt: skip
RECONSTRUCTION = {
    "times": TIMES,
    "mean": np.sin(TIMES),
    "std": np.full(50, 0.1),
    "observed": ([0.5, 1.0, 2.0], [0.4, NAN, 0.8]),
    "truth": (TIMES, np.cos(TIMES)),
    "channel_name": "heart rate",
}
# Every function, with all optional arguments.
PLOTS = {
    "reconstruction": lambda: plot_reconstruction(**RECONSTRUCTION),
    "reconstructions": lambda: plot_reconstructions([RECONSTRUCTION] * 4),
    "probabilities": lambda: plot_point_probabilities(
        TIMES, PROBABILITIES, NAMES, labels=CODES, observed_times=TIMES[::5]
    ),
    "series": lambda: plot_labelled_series(TIMES, VALUES, CODES, CODES, NAMES, ["a", "b"]),
    "confusion": lambda: plot_confusion(CODES, CODES[::-1], NAMES),
    "history": lambda: plot_history(HISTORY, best_epoch=9),
    "odes": lambda: plot_ode_table(ODES, score_name="accuracy"),
}
WITH_AX = {
    "reconstruction": lambda ax: plot_reconstruction(**RECONSTRUCTION, ax=ax),
    "probabilities": lambda ax: plot_point_probabilities(
        TIMES, PROBABILITIES, NAMES, labels=CODES, ax=ax
    ),
    "confusion": lambda ax: plot_confusion(CODES, CODES, NAMES, ax=ax),
    "odes": lambda ax: plot_ode_table(ODES, score_name="accuracy", ax=ax),
}


def texts(axes):
    """All visible text of the figure."""
    figure = np.ravel(axes)[0].figure
    figure.canvas.draw()
    artists = figure.findobj(matplotlib.text.Text)
    return {text.get_text() for text in artists if text.get_visible()} - {""}


def strips(ax):
    """The colours of each strip of classes, cell by cell; None where there is a gap."""
    ax.figure.canvas.draw()
    meshes = [artist for artist in ax.collections if isinstance(artist, QuadMesh)]
    return [
        [to_hex(colour) if colour[3] else None for colour in mesh.get_facecolors().reshape(-1, 4)]
        for mesh in meshes
    ]


# All plots


@pytest.mark.parametrize("name", PLOTS)
def test_plot_saves_new_figure_that_pyplot_does_not_manage(name, tmp_path):
    axes = PLOTS[name]()
    assert all(isinstance(ax, Axes) for ax in np.ravel(axes))
    path = save_figure(axes, tmp_path / f"{name}.png")
    assert path == tmp_path / f"{name}.png"
    pixels = plt.imread(path)[..., :3]
    assert pixels.shape[0] > 150 and pixels.shape[1] > 300
    assert 0.005 < (pixels.min(axis=-1) < 0.95).mean() < 0.9  # neither blank nor flooded
    assert plt.get_fignums() == []


@pytest.mark.parametrize("name", PLOTS)
def test_plot_cuts_off_no_text(name):
    axes = PLOTS[name]()
    figure = np.ravel(axes)[0].figure
    annotate_source(axes, "synthetic stand-in")
    figure.canvas.draw()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 > -0.05 and box.y0 > -0.05
    assert box.x1 < width + 0.05 and box.y1 < height + 0.05


@pytest.mark.parametrize("name", WITH_AX)
def test_plot_draws_into_given_axes(name):
    figure, ax = plt.subplots()
    try:
        assert WITH_AX[name](ax) is ax
        figure.canvas.draw()
        assert plt.get_fignums() == [figure.number]
    finally:
        plt.close(figure)


@pytest.mark.parametrize("name", PLOTS)
def test_plot_keeps_rc_params(name):
    before = dict(matplotlib.rcParams)
    PLOTS[name]()
    assert dict(matplotlib.rcParams) == before


# Reconstructions


def test_plot_reconstruction_parts():
    ax = plot_reconstruction(**RECONSTRUCTION)
    lines = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(lines["reconstruction"].get_ydata(), np.sin(TIMES))
    np.testing.assert_array_equal(lines["observed"].get_xdata(), [0.5, 1.0, 2.0])
    assert lines["observed"].get_linestyle() == "None" and lines["observed"].get_marker() == "o"
    assert lines["truth"].get_linestyle() == "--"
    (band,) = ax.collections
    heights = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(heights.max(), (np.sin(TIMES) + 0.2).max())
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["observed", "reconstruction", "± 2 std", "truth"]
    assert ax.get_ylabel() == "heart rate" and ax.get_xlabel() == "time"


def test_plot_reconstruction_mean_only():
    ax = plot_reconstruction([0, 1], [1, 2])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["reconstruction"]
    assert not ax.collections


def test_plot_reconstruction_sorts_times():
    ax = plot_reconstruction([2, 0, 1], [20, 0, 10])
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[0, 0], [1, 10], [2, 20]])


def test_plot_reconstruction_limits_wide_band():
    ax = plot_reconstruction(TIMES, np.sin(TIMES), np.linspace(0.1, 1e3, 50))
    low, high = ax.get_ylim()
    assert 2 < high - low < 8


@pytest.mark.parametrize("std", [np.zeros(3), np.full(3, NAN), np.full(3, np.inf)])
def test_plot_reconstruction_constant_mean(std):
    ax = plot_reconstruction([0, 1, 2], [5.0, 5.0, 5.0], std)
    low, high = ax.get_ylim()
    assert low < 5 < high
    ax.figure.canvas.draw()


def test_plot_reconstructions_panels_and_legend():
    cases = [{**RECONSTRUCTION, "channel_name": f"channel {i}"} for i in range(5)]
    axes = plot_reconstructions(cases, columns=3)
    assert axes.shape == (5,)
    assert [ax.get_title(loc="left") for ax in axes] == [f"channel {i}" for i in range(5)]
    figure = axes[0].figure
    assert figure.axes == list(axes)  # the sixth place is free
    assert len(figure.legends) == 1 and not any(ax.get_legend() for ax in axes)
    assert [ax.get_xlabel() for ax in axes] == ["", "", "time", "time", "time"]


def test_plot_reconstruction_rejects_invalid_arguments():
    with pytest.raises(ValueError, match=r"mean must have shape \(3,\), got \(2,\)"):
        plot_reconstruction([0, 1, 2], [1, 2])
    with pytest.raises(ValueError, match=r"std must have shape \(2,\), got \(1,\)"):
        plot_reconstruction([0, 1], [1, 2], [1])
    with pytest.raises(ValueError, match=r"observed values must have shape \(1,\), got \(2,\)"):
        plot_reconstruction([0, 1], [1, 2], observed=([0], [1, 2]))
    with pytest.raises(ValueError, match="times must be finite, got NaN"):
        plot_reconstruction([0, NAN], [1, 2])
    with pytest.raises(ValueError, match="cases must have at least one case"):
        plot_reconstructions([])
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        plot_reconstructions([RECONSTRUCTION], columns=0)


# Classes over time


def test_plot_point_probabilities_stacks_areas_above_true_classes():
    ax = plot_point_probabilities(
        TIMES, PROBABILITIES, NAMES, labels=CODES, observed_times=[0.1, 3.0]
    )
    areas = [artist for artist in ax.collections if not isinstance(artist, QuadMesh)]
    assert [area.get_label() for area in areas] == NAMES
    top = areas[-1].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(top, 1.0)
    colours = [to_hex(area.get_facecolor()[0]) for area in areas]
    assert strips(ax) == [[colours[code] for code in CODES]]
    assert {"true class", "observed", "probability", *NAMES} <= texts(ax)


def test_plot_point_probabilities_legend_is_beside_the_axes():
    ax = PLOTS["probabilities"]()
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


def test_plot_point_probabilities_labels_as_names_and_gaps():
    by_name = np.array(NAMES)[CODES]
    first = plot_point_probabilities(TIMES, PROBABILITIES, NAMES, labels=by_name)
    second = plot_point_probabilities(TIMES, PROBABILITIES, NAMES, labels=CODES)
    assert strips(first) == strips(second)
    gaps = CODES.copy()
    gaps[:3] = -1
    (cells,) = strips(plot_point_probabilities(TIMES, PROBABILITIES, NAMES, labels=gaps))
    assert cells[:4].count(None) == 3
    named = by_name.astype(object)
    named[:3] = None
    (cells,) = strips(plot_point_probabilities(TIMES, PROBABILITIES, NAMES, labels=named))
    assert cells[:4].count(None) == 3


def test_plot_point_probabilities_numeric_class_names():
    (cells,) = strips(plot_point_probabilities([0, 1], np.eye(2), [1, 2], labels=[2, 1]))
    assert cells == [plots.CLASS_COLOURS[1].lower(), plots.CLASS_COLOURS[0].lower()]


def test_plot_point_probabilities_labels_at_observed_times():
    ax = plot_point_probabilities(
        TIMES, PROBABILITIES, NAMES, labels=[2, 0], observed_times=[3.0, 1.0]
    )
    first, second = strips(ax)[0]
    assert (first, second) == (plots.CLASS_COLOURS[0].lower(), plots.CLASS_COLOURS[2].lower())


def test_plot_labelled_series_panels_and_strips():
    predicted = np.where(TIMES > 2, 2, CODES)
    axes = plot_labelled_series(TIMES, VALUES, CODES, predicted, NAMES, ["heart rate", "pH"])
    assert axes.shape == (3,)
    for ax, column in zip(axes, VALUES.T, strict=False):
        assert len(ax.lines[-1].get_xdata()) == np.isfinite(column).sum()
    true, guessed = strips(axes[-1])
    palette = [colour.lower() for colour in plots.CLASS_COLOURS]
    assert true == [palette[code] for code in CODES]
    assert guessed == [palette[code] for code in predicted]
    assert {"heart rate", "pH", "true", "predicted", *NAMES} <= texts(axes)


def test_plot_labelled_series_legend_has_occurring_classes():
    axes = plot_labelled_series([0, 1], [[1.0], [NAN]], [0, 0], [0, 1], NAMES)
    (legend,) = axes[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == NAMES[:2]


def test_plot_labelled_series_unobserved_channel_and_single_time(tmp_path):
    axes = plot_labelled_series([3.0], [[NAN, 1.0]], [0], [1], NAMES)
    save_figure(axes, tmp_path / "one.png")
    assert not len(axes[0].get_yticks()) and len(axes[1].get_yticks())


def test_get_class_colours_beyond_the_palette():
    assert len(set(get_class_colours(12))) == 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": np.zeros((3, 2))}, r"values must have shape \(50, C\), got \(3, 2\)"),
        ({"labels": [0, 1]}, r"labels must have shape \(50,\), got \(2,\)"),
        ({"predicted": np.full(50, 3)}, "predicted must be at most 2, got 3"),
        ({"labels": ["running"] * 50}, r"labels must be among \['walking'.*, got .*running"),
        ({"channel_names": ["a"]}, "channel_names must have 2 names, got 1"),
        ({"class_names": []}, "class_names must have at least one name"),
    ],
)
def test_plot_labelled_series_rejects_invalid_arguments(change, message):
    arguments = {
        "times": TIMES,
        "values": VALUES,
        "labels": CODES,
        "predicted": CODES,
        "class_names": NAMES,
    }
    with pytest.raises(ValueError, match=message):
        plot_labelled_series(**arguments | change)


def test_plot_point_probabilities_rejects_shape():
    with pytest.raises(
        ValueError, match=r"probabilities must have shape \(50, 2\), got \(50, 3\)"
    ):
        plot_point_probabilities(TIMES, PROBABILITIES, NAMES[:2])


# Confusion, history, timings


def test_plot_confusion_fractions_of_true_classes():
    ax = plot_confusion([0, 0, 0, 0, 1], [0, 0, 0, 1, 1], NAMES)
    (image,) = ax.images
    np.testing.assert_allclose(image.get_array(), [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 0]])
    shown = [text.get_text() for text in ax.texts]
    assert shown == ["75%", "25%", "", "", "100%", "", "", "", ""]
    assert [text.get_text() for text in ax.get_xticklabels()] == NAMES
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "walking  (4)",
        "lying down  (1)",
        "sitting on the ground  (0)",
    ]
    assert ax.get_xlabel() == "predicted" and ax.get_ylabel().startswith("true")


def test_plot_confusion_ignores_unlabelled():
    ax = plot_confusion([[0, -1], [1, 1]], [[0, 2], [1, 0]], NAMES)
    np.testing.assert_allclose(ax.images[0].get_array()[:2], [[1, 0, 0], [0.5, 0.5, 0]][:2])
    with pytest.raises(ValueError, match="must have a labelled element in common"):
        plot_confusion([-1], [0], NAMES)


def test_plot_confusion_rejects_unequal_shapes():
    with pytest.raises(ValueError, match=r"predicted must have shape \(2,\), got \(1,\)"):
        plot_confusion([0, 1], [0], NAMES)


def test_plot_history_panels():
    axes = plot_history(HISTORY, best_epoch=9, score_name="balanced accuracy")
    assert axes.shape == (2,)
    assert [ax.get_title(loc="left") for ax in axes] == ["loss", "balanced accuracy"]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), [r["train_loss"] for r in HISTORY])
    np.testing.assert_allclose(axes[1].lines[0].get_xdata(), range(1, 13))
    assert {"training", "validation", "best: epoch 9", "best: epoch 9, 0.8889"} <= texts(axes)
    for ax in axes:
        assert any(set(line.get_xdata()) == {9} for line in ax.lines)


def test_plot_history_with_losses_or_scores_only():
    (ax,) = plot_history([{"epoch": 1, "train_loss": 2.0}, {"epoch": 2, "train_loss": NAN}])
    assert len(ax.lines[0].get_xdata()) == 1
    rows = [{"epoch": 1, "validation_score": 0.5, "train_loss": None}]
    (ax,) = plot_history(rows, score_name="F1", best_epoch=1)
    assert ax.get_title(loc="left") == "F1"


def test_plot_history_clips_early_epochs():
    rows = [{"epoch": i, "train_loss": 1e6 if i == 0 else 1 / i} for i in range(30)]
    (ax,) = plot_history(rows)
    assert ax.get_ylim()[1] < 2


def test_plot_history_labels_do_not_overlap():
    rows = [{"epoch": i, "train_loss": 1.0, "validation_loss": 1.0} for i in range(3)]
    (ax,) = plot_history(rows)
    first, second = (text.get_position()[1] for text in ax.texts)
    assert abs(first - second) > 0.08


def test_plot_history_rejects_invalid_rows():
    with pytest.raises(ValueError, match="history must have one row per epoch"):
        plot_history([])
    with pytest.raises(
        ValueError, match=r"history\[1\] must have the key 'epoch', got \['train_loss'\]"
    ):
        plot_history([HISTORY[0], {"train_loss": 1}])
    with pytest.raises(ValueError, match="history must have a number under 'train_loss'"):
        plot_history([{"epoch": 1, "train_loss": NAN}])


def test_plot_ode_table_sorts_by_time_on_log_axis():
    ax = plot_ode_table(ODES, score_name="accuracy")
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_yticklabels()] == ["morph", "rk4", "dopri5"]
    assert ax.yaxis_inverted()  # so the first is at the top
    means = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert means == [3.0, 80.0, 4000.0]
    shown = {"accuracy", "0.900", "0.910", "–", "× 1", "× 26.7", "× 1,333"}
    assert shown <= texts(ax)


def test_plot_ode_table_digits_of_small_scores():
    rows = [{**ODES[0], "score": 0.000345}, {**ODES[1], "score": 0.00121}]
    assert {"0.000345", "0.001210"} <= texts(plot_ode_table(rows, score_name="MSE"))


def test_plot_ode_table_without_optional_columns():
    ax = plot_ode_table([{"ode": "morph", "integration_ms_mean": 3}], score_name="MSE")
    assert "MSE" not in texts(ax)


def test_plot_ode_table_rejects_invalid_rows():
    with pytest.raises(ValueError, match="rows must have one row per ODE"):
        plot_ode_table([], score_name="x")
    with pytest.raises(ValueError, match=r"rows\[0\] must have the key 'ode', got"):
        plot_ode_table([{"integration_ms_mean": 3}], score_name="x")
    with pytest.raises(ValueError, match=r"integration_ms_mean must be positive, got \[0.0\]"):
        plot_ode_table([{"ode": "morph", "integration_ms_mean": 0}], score_name="x")


# Saving


def test_save_figure_axes_arrays_and_figures(tmp_path):
    figure, axes = plt.subplots(1, 2)
    try:
        for drawn in (figure, axes, axes[0], list(axes)):
            assert save_figure(drawn, str(tmp_path / "x.png")) == tmp_path / "x.png"
        assert plt.fignum_exists(figure.number)
    finally:
        plt.close(figure)
    assert os.listdir(tmp_path) == ["x.png"]


def test_save_figure_of_subfigure_saves_whole_figure(tmp_path):
    figure = Figure()
    left, right = figure.subfigures(1, 2)
    left.subplots(), right.subplots()
    save_figure(right.axes[0], tmp_path / "sub.png")
    save_figure(figure, tmp_path / "all.png")
    assert (tmp_path / "sub.png").read_bytes() == (tmp_path / "all.png").read_bytes()


def test_save_figure_keeps_old_file_on_error(tmp_path, monkeypatch):
    path = tmp_path / "x.png"
    path.write_bytes(b"old")
    ax = plot_reconstruction([0, 1], [0, 1])

    def interrupted(file, **_):
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(ax.figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_figure(ax, path)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x.png"]


def test_save_figure_rejects_invalid_arguments(tmp_path):
    ax = plot_reconstruction([0, 1], [0, 1])
    with pytest.raises(ValueError, match=r"path must end in \.png, got .*x\.jpg'"):
        save_figure(ax, tmp_path / "x.jpg")
    for thing in ("picture", [], None):
        with pytest.raises(
            TypeError, match=f"axes_or_figure must be .*, got {type(thing).__name__}"
        ):
            save_figure(thing, tmp_path / "x.png")
    with pytest.raises(FileNotFoundError):
        save_figure(ax, tmp_path / "absent" / "x.png")


@pytest.mark.parametrize("name", PLOTS)
def test_annotate_source_position(name):
    axes = PLOTS[name]()
    note = annotate_source(axes, "synthetic stand-in")
    figure = np.ravel(axes)[0].figure
    figure.canvas.draw()
    box = note.get_window_extent()
    assert note.get_text() == "synthetic stand-in"
    assert box.x1 > 0.98 * figure.bbox.width and box.y0 >= 0
    for ax in np.ravel(axes):
        assert not box.overlaps(ax.get_tightbbox())


def test_annotate_source_keeps_existing_label():
    figure = Figure()
    figure.subplots()
    figure.supxlabel("taken")
    assert annotate_source(figure, "note") in figure.texts
    assert figure.get_supxlabel() == "taken"


def test_plots_without_matplotlib():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from latent_morph import plots\n"
        "for call in (lambda: plots.plot_reconstruction([0], [1]),\n"
        "             lambda: plots.plot_confusion([0], [0], ['a']),\n"
        "             lambda: plots.save_figure(None, 'x.png')):\n"
        "    try: call()\n"
        "    except ImportError as error: print(error)\n"
    )
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert seen.splitlines() == ['plots need matplotlib: pip install "latent_morph[plot]"'] * 3
