"""The benchmarks run, on less than they are made for, and their rows have what readers expect."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    ablation,
    epoch,
    growth,
    integration,
    learned,
    leave_one_out,
    memory,
    models,
    rollout,
    roofline,
    sizes,
    training,
    trajectories,
)
from benchmarks.grid import recorded
from benchmarks.mean_motion import mean_motion
from benchmarks.rows import as_markdown, timed_rows
from latent_morph import DynamicsRegressor, as_series
from latent_morph.diagnostics import Timing, interleaved
from latent_morph.experiments.dynamics import Problem
from latent_morph.training import TrainingError

KEYS = {"task", "candidate", "mean_ms", "std_ms", "median_ms", "ratio_to_morph", "threads"}


@pytest.fixture
def less(monkeypatch):
    """One task, few candidates, hardly any training."""
    small = {"periodic 100": models.SETTINGS["periodic 100"]}
    for module in (integration, roofline, sizes):
        monkeypatch.setattr(module, "SETTINGS", small)
    few = {name: models.CANDIDATES[name] for name in ("morph", "euler")}
    monkeypatch.setattr(integration, "CANDIDATES", few)
    monkeypatch.setattr(growth, "NAMES", ("morph", "dopri5"))
    for module in (integration, roofline, growth):
        monkeypatch.setattr(module, "trained", barely_trained)
    monkeypatch.setattr(sizes, "EPOCHS", {"periodic 100": 1})
    monkeypatch.setattr(sizes, "INNS", dict(list(sizes.INNS.items())[:2]))
    monkeypatch.setattr(epoch, "CANDIDATES", dict(list(epoch.CANDIDATES.items())[:2]))
    monkeypatch.setattr(epoch, "problem", a_little_activity)
    monkeypatch.setattr(training, "IMITATION", ("imitation_s",))
    monkeypatch.setattr(training, "RECORDED", {"imitation_s": 20})
    monkeypatch.setattr(training, "PAPER", 30)
    monkeypatch.setattr(learned, "SOLVERS", ("euler",))
    monkeypatch.setattr(ablation, "SIZES", ((3, 8), (2, 8), (2, 500)))
    for name in ("DEMONSTRATED", "SIZED"):
        some = dict(list(getattr(leave_one_out, name).items())[:2])
        monkeypatch.setattr(leave_one_out, name, some)
    for module in (rollout, training, learned, ablation, leave_one_out):
        monkeypatch.setattr(module, "problem", a_few_spirals)
        monkeypatch.setattr(module, "available", lambda names, only: ["imitation_s"])
    for module in (rollout, training):
        monkeypatch.setattr(module, "CANDIDATES", few)
        monkeypatch.setattr(module, "trained", hardly_trained)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def barely_trained(setting, candidate, *, seconds, n_cases=None):
    return models.trained(setting, candidate, seconds=0.2, n_cases=n_cases)


def a_little_activity(dataset, n_times, n_cases):
    return models.TASKS[dataset].load(models.Request(source="synthetic", n_cases=100))


def hardly_trained(task, candidate, X, *, seconds, **changes):
    return trajectories.trained(task, candidate, X, seconds=0.05, **changes)


def a_few_spirals(task, protocol=None, seed=0):
    """Ten points to learn from and a hundred to be held against, as demonstrations come."""

    def drawn(sizes, n_times):
        t = np.linspace(0, 1, n_times)
        wave = np.exp(-3 * t)[:, None] * np.stack([np.cos(4 * t), np.sin(4 * t)], 1)
        return as_series([(t, size * wave) for size in sizes], dtype=torch.float64)

    return Problem(
        train_X=drawn([1.0, 1.5, 2.0], 10),
        test_X=drawn([1.2, 1.8], 100),
        seen=None,
        channel_names=["x", "y"],
        unit="mm",
        source="real",
        protocol="first",
    )


TIMED = [name for name in command.BENCHMARKS if name not in command.LONG]


@pytest.mark.parametrize("name", TIMED)
def test_every_benchmark(name, less, tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "png")}
    words = [name, "--short", "--json", str(files["json"]), "--plot", str(files["png"])]
    assert command.main([*words, "--markdown", str(files["md"])]) == 0
    rows = json.loads(files["json"].read_text())
    assert rows and all(row.keys() >= KEYS for row in rows)
    assert all(row["mean_ms"] > 0 and row["threads"] == 1 for row in rows)
    if name in ("integration", "growth", "epoch", "roofline", "rollout", "training"):
        ratios = [row["ratio_to_morph"] for row in rows if row["candidate"] == "morph"]
        assert ratios == pytest.approx([1.0] * len(ratios))
    if name == "integration":
        evaluations = {row["candidate"]: row["field_evaluations"] for row in rows}
        assert evaluations == {"morph": None, "euler": 99}
    if name == "rollout":
        evaluations = {row["candidate"]: row["field_evaluations"] for row in rows}
        assert evaluations == {"morph": None, "euler": 99}
        assert {row["direction"] for row in rows} == {"predict", "flow"}
        assert {(row["starts"], row["n_times"]) for row in rows} == {(2, 100)}
    if name == "training":  # as the presets have them, as they were recorded, and as in the paper
        assert {(row["task"], row["n_times"]) for row in rows} == {
            ("imitation_s", 10),
            ("imitation_s 20", 20),
            ("imitation_s 30", 30),
        }
    assert rows[0]["candidate"] in capsys.readouterr().out
    assert f"python -m benchmarks {name} --short" in files["md"].read_text()
    assert files["png"].stat().st_size > 1000


def test_ratios_and_tables():
    timings = {"morph": Timing(9.0, 7.0, 2.0), "rk4": Timing(50.0, 3.0, 50.0)}
    rows = timed_rows("a task", timings, size=7, field_evaluations={"rk4": 40})
    assert [row["ratio_to_morph"] for row in rows] == [1.0, 25.0]
    assert [row["field_evaluations"] for row in rows] == [None, 40] and rows[1]["size"] == 7
    assert "| a task | rk4 | 50 | 3 | 50 | 25 |" in as_markdown(rows)


def test_peak_memory_sees_what_a_call_holds():
    peak = memory.peak_above(lambda: torch.ones(50_000_000 // 4))
    assert peak is None or 40 < peak < 80


def test_refuses_no_threads(capsys):
    assert command.main(["growth", "--threads", "0"]) == 2
    assert "--threads must be at least 1, got 0" in capsys.readouterr().err


# The long ones


@pytest.mark.parametrize(
    ("name", "words", "candidates"),
    [
        ("learned", ["--budget", "0.05"], ["morph", "euler", "mean of demonstrations"]),
        ("ablation", ["--widest", "100"], ["2 x 8", "3 x 8"]),
        (
            "leave_one_out",
            [],
            [
                "spread 0.1, 2 x 32, 600 steps, fade measured",
                "spread 0.3, 2 x 32, 600 steps, fade measured",
                "mean of the others",
            ],
        ),
    ],
)
def test_a_long_benchmark_is_not_run_twice(name, words, candidates, less, tmp_path, monkeypatch):
    def rows(*more):
        file = tmp_path / "rows.json"
        page = tmp_path / "page.md"
        folder = ["--records", str(tmp_path / "records"), "--markdown", str(page)]
        assert command.main([name, "--short", *words, *folder, *more, "--json", str(file)]) == 0
        assert f"python -m benchmarks {name} --short" in page.read_text()
        return json.loads(file.read_text())

    plot = [] if name == "leave_one_out" else ["--plot", str(tmp_path / "picture.png")]
    first = rows("--seeds", "2", *plot)
    assert [row["candidate"] for row in first] == candidates
    error = "error" if name == "learned" else "mse"
    assert all(row[error] > 0 for row in first)
    if plot:
        assert (tmp_path / "picture.png").stat().st_size > 1000

    def again(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(DynamicsRegressor, "fit", again)
    second = rows("--seeds", "2")
    assert [row[error] for row in second] == [row[error] for row in first]
    with pytest.raises(AssertionError, match="trained again"):
        rows("--seeds", "3")


def test_what_was_asked_for_is_part_of_a_record(tmp_path):
    path = tmp_path / "folder" / "run.json"
    assert recorded(path, {"steps": 3}, lambda: {"mse": 1.0})["mse"] == 1.0
    assert recorded(path, {"steps": 3}, lambda: {"mse": 2.0})["mse"] == 1.0
    with pytest.raises(ValueError, match=r"run.json was made with other settings, .*'steps': 3"):
        recorded(path, {"steps": 4}, lambda: {"mse": 2.0})


def test_a_method_that_cannot_be_trained_has_no_figure(less, tmp_path, monkeypatch):
    train = DynamicsRegressor.fit

    def fit(self, X):
        if self.ode == "euler" and self.max_epochs not in (1, 5):
            raise TrainingError("underflow")
        return train(self, X)

    monkeypatch.setattr(DynamicsRegressor, "fit", fit)
    morph, euler, mean = learned.run(short=True, records=tmp_path, budget=0.5)
    assert morph["failed"] == 0 and morph["error"] > 0 and morph["mean_ms"] > 0
    assert euler["failed"] == 1 and euler["error"] is None and euler["mean_ms"] is None
    assert morph["astray"] == 0 and euler["astray"] is None
    assert mean["error"] > 0 and mean["steps"] == 0 and mean["mean_ms"] is None


def test_the_learning_rate_that_learned_better_counts(less, tmp_path):
    *rows, _ = learned.run(short=True, records=tmp_path, budget=0.05)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*/*.json")]
    assert len(records) == len(rows) * len(learned.RATES)
    for row in rows:
        ode = row["candidate"]
        tried = [record for record in records if record["asked"]["params"]["ode"] == ode]
        best = min(tried, key=lambda record: record["learned_error"])
        assert row["learning_rates"] == f"{best['asked']['params']['learning_rate']:g}"
        assert row["error"] == best["errors"]["mse"]


def test_the_mean_motion_is_right_where_motions_differ_by_their_starts_alone():
    def motion(start, n_times):
        share = np.linspace(0, 1, n_times)
        arc = np.stack([np.sin(3 * share), share**2], 1)
        return arc + np.outer((1 - share) ** 2, start)

    rng = np.random.default_rng(0)
    shown = as_series(np.stack([motion(start, 400) for start in rng.normal(size=(5, 2))]))
    starts = rng.normal(size=(3, 2))
    truth = np.stack([motion(start, 50) for start in starts])
    guess = mean_motion(shown, starts, 50)
    np.testing.assert_allclose(guess[:, 0], starts, atol=1e-6)
    np.testing.assert_allclose(guess, truth, atol=0.02)  # the fade is measured to 5 %


@pytest.mark.parametrize(
    ("readings", "steps", "spent"),
    [
        # Three of ten steps took sixteen seconds, so one is tried.
        ([0, 1, 4, 16, 0, 4, 9], 1, 9.0),
        # Ten steps took five seconds, so twenty are tried.
        ([0, *[1] * 10, 5, 0, *[1] * 20, 8], 20, 8.0),
    ],
)
def test_a_budget_is_neither_overdrawn_nor_left_over(readings, steps, spent, monkeypatch):
    clock = iter([0, 5, *readings])  # the first five steps took five seconds, so ten are tried
    monkeypatch.setattr(learned.time, "process_time", lambda: float(next(clock)))
    X = a_few_spirals("imitation_s").train_X
    model = DynamicsRegressor(**trajectories.parameters("imitation_s", "morph"))
    assert learned.fit_within(model, X, 10.0) == (steps, spent)
    assert model.n_iter_ == steps and model.callbacks is None


def test_starts_that_do_not_come_home_are_counted():
    data = a_few_spirals("imitation_s")
    model = trajectories.trained("imitation_s", "morph", data.train_X, seconds=0.05)
    assert learned._astray(model, data) == 0
    model.equilibrium_ = model.equilibrium_ + 0.01
    assert learned._astray(model, data) == learned.STARTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["growth", "--task", "ecg"], "--task of growth is none, got 'ecg'"),
        (["ablation", "--task", "lorenz"], "one of imitation_s, imitation_cube, imitation_c"),
        (["rollout", "--budget", "3"], "--budget is for learned"),
        (["learned", "--protocol", "random"], "--protocol of lotka_volterra is one of standard"),
        (["leave_one_out", "--plot", "a.png"], "has no times"),
    ],
)
def test_options_are_for_some(words, message, capsys):
    assert command.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_number_of_runs_is_positive(capsys):
    with pytest.raises(SystemExit):
        command.main(["learned", "--seeds", "0"])
    assert "must be positive, got 0" in capsys.readouterr().err


def test_tasks_without_their_files_are_named(monkeypatch, capsys):
    def absent(task):
        raise FileNotFoundError("3D_Cshape_top.mat was not found")

    monkeypatch.setattr(trajectories, "problem", absent)
    assert trajectories.available(("imitation_c",), None) == []
    assert "imitation_c is left out: 3D_Cshape_top.mat was not found" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        trajectories.available(("imitation_c",), "imitation_c")


def test_candidates_take_turns_and_warm_up_where_they_run_in_a_row():
    calls = []
    candidates = {name: partial(calls.append, name) for name in "ab"}
    timings = interleaved(candidates, repeats=2)
    assert "".join(calls) == "ab" + "ba" + "ab"  # a first call of each, then rounds
    assert all(timing.mean_ms >= 0 and timing.std_ms >= 0 for timing in timings.values())
    calls.clear()
    interleaved(candidates, repeats=1, in_a_row=3)
    assert "".join(calls) == "ab" + "bbbb" + "aaaa"  # the first of four is not counted
