"""Plots of learned ODEs: parts, limits and errors."""

import numpy as np
import pytest

from latent_morph.plots import (
    plot_coordinates,
    plot_field,
    plot_morph,
    plot_phase_portrait,
    save_figure,
)


def curves(n=3, dim=2, length=20):
    t = np.linspace(0, 1, length)
    return [np.stack([np.cos(t + k), np.sin(t + k), t][:dim], 1) for k in range(n)]


@pytest.mark.parametrize("dim", [2, 3])
def test_plot_phase_portrait_parts(dim, tmp_path):
    axes = plot_phase_portrait(
        curves(dim=dim), curves(2, dim), points=curves(1, dim), goal=np.zeros(dim)
    )
    names = {line.get_label() for line in axes.get_lines()}
    assert {"truth", "roll-out", "data", "goal"} <= names
    assert axes.name == ("3d" if dim == 3 else "rectilinear")
    assert save_figure(axes, tmp_path / "portrait.png").stat().st_size > 5000


def test_plot_coordinates_panels(tmp_path):
    t, path = np.linspace(0, 1, 20), curves(1, 3)[0]
    axes = plot_coordinates(t, path, truth=(t, path), observed=(t[::5], path[::5]))
    assert len(axes) == 3 and len(axes[0].get_lines()) == 3
    axes = plot_coordinates(t, -path, log=True, base=np.zeros((20, 6)))
    assert len(axes) == 4 and axes[0].get_yscale() == "log"
    np.testing.assert_allclose(axes[0].get_lines()[0].get_ydata(), np.abs(path[:, 0]))
    assert save_figure(axes, tmp_path / "coordinates.png").stat().st_size > 5000


def test_plot_field_limits_and_shapes(tmp_path):
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 8), np.linspace(-2, 2, 9)), -1)
    axes = plot_field(grid, -grid, truth=curves(), rollouts=curves(), goal=[0, 0])
    assert axes.get_xlim() == (-1, 1) and axes.get_ylim() == (-2, 2)
    save_figure(axes, tmp_path / "field.png")
    with pytest.raises(ValueError, match=r"states and velocity must have one shape \(H, W, C\)"):
        plot_field(grid, -grid[:-1])


def test_plot_morph_limits_ignore_distant_grid_lines(tmp_path):
    stray = np.array([[0.0, 0.0], [0.0, 1e6]])
    axes = plot_morph(curves(length=200), curves(), curves(length=200), [*curves(), stray])
    assert len(axes) == 2 and axes[1].get_ylim()[1] < 10
    save_figure(axes, tmp_path / "morph.png")


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "must have a trajectory, got none"),
        ([np.ones((5, 2)), np.ones((5, 3))], "same 2 or 3 coordinates"),
    ],
)
def test_plot_phase_portrait_rejects_invalid_trajectories(paths, message):
    with pytest.raises(ValueError, match=message):
        plot_phase_portrait(paths, [])
