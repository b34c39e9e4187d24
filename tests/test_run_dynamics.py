"""The command line on dynamics: scores, files, presets and messages."""

import json
import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from latent_morph import DynamicsRegressor, datasets
from latent_morph.experiments import cli, report, runs
from latent_morph.experiments.problem import Request
from latent_morph.experiments.registry import TASKS, get_learner
from run_models import main

NEEDS_DATA = pytest.mark.skipif(
    "LATENT_MORPH_DATA" not in os.environ, reason="LATENT_MORPH_DATA names no folder of real data"
)
SMALL = ["--ode-options", '{"inn": {"blocks": 2, "width": 8}}']


@pytest.fixture
def short_trajectories(monkeypatch):
    """References of a few points: the solver behind them is not what is tested here."""
    for name in ("make_lotka_volterra", "make_lorenz", "make_robertson"):
        make = getattr(datasets, name)
        short = partial(
            lambda make, **options: make(**options | {"n_times": 6, "refine": 2}), make
        )
        monkeypatch.setattr(datasets, name, short)


def run(*words, out):
    return main([*words, "--quick", "--out", str(out)])


def record_in(folder):
    return json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize(
    ("dataset", "ode", "words", "figures"),
    [
        ("lotka_volterra", "morph", SMALL, {"morphed_grid"}),
        ("lorenz", "morph-neural", [], set()),
        ("lorenz", "morph", ["--protocol", "long"], {"morphed_grid"}),
        ("rober", "morph-neural", ["--protocol", "printed"], set()),
        ("rober", "euler", [], set()),
        pytest.param("imitation_s", "morph", SMALL, {"morphed_grid"}, marks=NEEDS_DATA),
        pytest.param("imitation_c", "linear", ["--protocol", "random"], set(), marks=NEEDS_DATA),
        pytest.param(
            "imitation_cube",
            "morph-real",
            ["--protocol", "recorded"],
            {"morphed_grid"},
            marks=NEEDS_DATA,
        ),
    ],
)
def test_run_writes_files_of_every_dynamics_dataset(
    dataset, ode, words, figures, short_trajectories, tmp_path, capsys
):
    code = run("--dataset", dataset, "--ode", ode, *words, out=tmp_path)
    printed = capsys.readouterr()
    if code == 1 and "was not found" in printed.err:
        pytest.skip(f"{dataset} was not found")
    assert code == 0
    folder = tmp_path / f"{dataset}-{ode}"
    record = record_in(folder)
    assert record["dataset"] == dataset and record["ode"] == ode
    assert np.isfinite(record["metrics"]["test"][TASKS[dataset].metric])
    assert ("mse_interpolation" in record["metrics"]["test"]) == (dataset == "lotka_volterra")
    assert record["timings"]["integration"]["mean_ms"] > 0
    assert (record["field_evaluations"] is None) == (ode not in ("morph-neural", "euler"))
    assert record["scaler"]["values"] == record["params"]["scale"]
    assert "synthetic stand-in" not in printed.out
    expected = {"learning_curves", "phase_portrait", "coordinates"} | figures
    if dataset == "imitation_s":
        expected |= {"vector_field"}
    assert {path.stem for path in folder.glob("*.png")} == expected
    if dataset.startswith("imitation"):
        assert record["params"]["stable"] and record["params"]["goal"] == "ends"
        assert record["equilibrium"] is not None and record["source"] == "real"


def test_run_dynamics_saved_model_has_recorded_score(short_trajectories, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "draw", lambda *_: [])
    run("--dataset", "lotka_volterra", *SMALL, out=tmp_path)
    folder = tmp_path / "lotka_volterra-morph"
    model = DynamicsRegressor.load(folder / "model.safetensors")
    truth = datasets.make_lotka_volterra(random_state=0).unseen
    path = model.predict(truth.values[:, 0].numpy(), truth.times[0].numpy())
    mse = np.square(path - truth.values.numpy()).mean()
    assert mse == pytest.approx(record_in(folder)["metrics"]["test"]["mse"], rel=1e-9)


def test_ode_all_compares_closed_forms_with_solvers(
    short_trajectories, tmp_path, capsys, monkeypatch
):
    assert {"morph", "euler", "midpoint", "rk4", "dopri5"} <= set(
        get_learner("lorenz").compared_odes
    )
    few = replace(get_learner("lorenz"), compared_odes=("morph", "euler"))
    monkeypatch.setitem(TASKS["lorenz"].learners, "dynamics", few)
    monkeypatch.setattr(runs, "draw", lambda *_: [])  # drawn elsewhere, and slowly
    assert run("--dataset", "lorenz", "--ode", "all", out=tmp_path) == 0
    rows = json.loads((tmp_path / "lorenz-all" / "comparison.json").read_text())["rows"]
    assert [row["ode"] for row in rows] == ["morph", "euler"]
    assert "test mae" in capsys.readouterr().out
    assert report.main([str(tmp_path)]) == 0
    assert "| mae " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.92104, "0.9210"), (0.0062, "0.0062"), (1.354e-4, "1.35e-04"), (0.0, "0.0000")],
)
def test_format_score_shows_small_values(value, text):
    assert report.format_score(value) == text


def test_paper_preset_has_settings_of_dynamics():
    arguments = cli.parse(["--dataset", "imitation_c", "--preset", "paper"])
    morph, solver = (cli.make_parameters(arguments, ode) for ode in ("morph", "rk4"))
    assert morph["learning_rate"] == 1e-4 and morph["max_epochs"] == 5000
    assert morph["ode_options"] == {"inn": "paper", "spectrum": "real"} and morph["stable"]
    assert solver["ode_options"] == {"units": 150, "layers": 5} and "stable" not in solver


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "lorenz", "--n-cases", "30"], "--n-cases must be absent for lorenz"),
        (["--dataset", "imitation_s", "--source", "synthetic"], "without a stand-in"),
        (["--dataset", "rober", "--ode", "rk4", "--stable", "true"], "ode must have a linear"),
    ],
)
def test_run_dynamics_exits_on_wrong_arguments(words, message, tmp_path, capsys):
    assert main([*words, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert message in said and "Traceback" not in said


def test_run_dynamics_resumes_after_interrupt(short_trajectories, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "draw", lambda *_: [])

    def interrupt(self, history, settings):
        if len(history.rows) == 1:
            raise KeyboardInterrupt

    words = ("--dataset", "lotka_volterra", *SMALL)
    with monkeypatch.context() as patch:
        patch.setattr(cli.Progress, "__call__", interrupt)
        assert run(*words, out=tmp_path) == 130
    folder = tmp_path / "lotka_volterra-morph"
    assert main(["--resume", str(folder)]) == 0
    run(*words, out=tmp_path)
    first, second = (record_in(tmp_path / name) for name in (folder.name, f"{folder.name}-2"))
    assert first["metrics"] == second["metrics"]


def test_demonstration_splits_follow_protocol_and_seed(monkeypatch):
    def fetch(motion, **options):
        from sklearn.utils import Bunch

        from latent_morph import as_series

        X = as_series(np.arange(10.0)[:, None, None] + np.zeros((10, 5, 2)))
        return Bunch(
            data=X,
            train=np.arange(7),
            test=np.arange(7, 10),
            feature_names=["x", "y"],
            unit="mm",
            source="real",
        )

    monkeypatch.setattr(datasets, "fetch_robot_demonstrations", fetch)
    load = TASKS["imitation_s"].load
    first, again, other = (
        load(Request(protocol="random", seed=seed)).test_X.values[:, 0, 0].tolist()
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert load(Request()).test_X.values[:, 0, 0].tolist() == [7, 8, 9]
    assert load(Request()).train_X.shape == (7, 100, 2)


@NEEDS_DATA
@pytest.mark.parametrize("motion", ["imitation_cube", "imitation_c"])
def test_demonstrations_leap_only_under_protocol_leaps(motion):
    smooth, leaping = (
        np.linalg.norm(np.diff(TASKS[motion].load(request).test_X.values, axis=1), axis=2).max()
        for request in (Request(), Request(protocol="leaps"))
    )
    assert smooth < 0.4 and leaping > 1  # cm from one of a thousand points to the next
    note = TASKS[motion].load(Request(protocol="leaps")).note
    assert "where rows are missing positions jump" in note
