"""The benchmarks run on small problems, and their rows have the expected columns."""

import json
from functools import partial

import numpy as np
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import (
    ablation,
    epoch,
    few_labels,
    filter_growth,
    filters,
    growth,
    integration,
    labelled_sets,
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
from benchmarks.cache import run_cached
from benchmarks.mean_motion import predict_mean_motion
from benchmarks.rows import format_markdown, make_timing_rows
from latent_morph import DynamicsRegressor, as_series
from latent_morph.diagnostics import Timing, time_interleaved
from latent_morph.experiments.dynamics import Problem
from latent_morph.series import SeriesBatch
from latent_morph.training import TrainingError

KEYS = {"task", "candidate", "mean_ms", "std_ms", "median_ms", "ratio_to_morph", "threads"}


@pytest.fixture
def small_problems(monkeypatch):
    """One task, few candidates, little training."""
    small = {"periodic 100": models.SETTINGS["periodic 100"]}
    for module in (integration, roofline, sizes):
        monkeypatch.setattr(module, "SETTINGS", small)
    few = {name: models.CANDIDATES[name] for name in ("morph", "euler")}
    monkeypatch.setattr(integration, "CANDIDATES", few)
    monkeypatch.setattr(growth, "NAMES", ("morph", "dopri5"))
    for module in (integration, roofline, growth):
        monkeypatch.setattr(module, "train_estimator", train_series_estimator)
    monkeypatch.setattr(filter_growth, "SHORT_GROWTH", {"rows": (10, 20), "cases": (5, 10)})
    monkeypatch.setattr(sizes, "EPOCHS", {"periodic 100": 1})
    monkeypatch.setattr(sizes, "INNS", dict(list(sizes.INNS.items())[:2]))
    monkeypatch.setattr(epoch, "CANDIDATES", dict(list(epoch.CANDIDATES.items())[:2]))
    monkeypatch.setattr(epoch, "load_problem", load_activity)
    monkeypatch.setattr(training, "IMITATION", ("imitation_s",))
    monkeypatch.setattr(training, "RECORDED", {"imitation_s": 20})
    monkeypatch.setattr(training, "PAPER", 30)
    monkeypatch.setattr(learned, "SOLVERS", ("euler",))
    monkeypatch.setattr(ablation, "SIZES", ((3, 8), (2, 8), (2, 500)))
    for name in ("IMITATION_VARIANTS", "SIZE_VARIANTS"):
        variants = dict(list(getattr(leave_one_out, name).items())[:2])
        monkeypatch.setattr(leave_one_out, name, variants)
    for module in (rollout, training, learned, ablation, leave_one_out):
        monkeypatch.setattr(module, "load_problem", make_spirals)
        monkeypatch.setattr(module, "list_available", lambda names, only: ["imitation_s"])
    for module in (rollout, training):
        monkeypatch.setattr(module, "CANDIDATES", few)
        monkeypatch.setattr(module, "train_estimator", train_trajectory_estimator)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train_series_estimator(setting, candidate, *, seconds, n_cases=None):
    return models.train_estimator(setting, candidate, seconds=0.2, n_cases=n_cases)


def load_activity(dataset, n_times, n_cases):
    return models.TASKS[dataset].load(models.Request(source="synthetic", n_cases=100))


def train_trajectory_estimator(task, candidate, X, *, seconds, **changes):
    return trajectories.train_estimator(task, candidate, X, seconds=0.05, **changes)


def make_spirals(task, protocol=None, seed=0):
    """Spirals with ten points for training and a hundred for testing."""

    def sample(sizes, n_times):
        t = np.linspace(0, 1, n_times)
        wave = np.exp(-3 * t)[:, None] * np.stack([np.cos(4 * t), np.sin(4 * t)], 1)
        return as_series([(t, size * wave) for size in sizes], dtype=torch.float64)

    return Problem(
        train_X=sample([1.0, 1.5, 2.0], 10),
        test_X=sample([1.2, 1.8], 100),
        train_reference=None,
        channel_names=["x", "y"],
        unit="mm",
        source="real",
        protocol="first",
    )


TIMED = [name for name in command.BENCHMARKS if name not in command.LONG]


@pytest.mark.parametrize("name", TIMED)
def test_benchmark_writes_rows_table_and_figure(name, small_problems, tmp_path, capsys):
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
    if name == "training":  # points of the presets, as recorded, and as in the paper
        assert {(row["task"], row["n_times"]) for row in rows} == {
            ("imitation_s", 10),
            ("imitation_s 20", 20),
            ("imitation_s 30", 30),
        }
    assert rows[0]["candidate"] in capsys.readouterr().out
    assert f"python -m benchmarks {name} --short" in files["md"].read_text()
    assert files["png"].stat().st_size > 1000


def test_timing_rows_ratios_and_markdown():
    timings = {"morph": Timing(9.0, 7.0, 2.0), "rk4": Timing(50.0, 3.0, 50.0)}
    rows = make_timing_rows("a task", timings, size=7, field_evaluations={"rk4": 40})
    assert [row["ratio_to_morph"] for row in rows] == [1.0, 25.0]
    assert [row["field_evaluations"] for row in rows] == [None, 40] and rows[1]["size"] == 7
    assert "| a task | rk4 | 50 | 3 | 50 | 25 |" in format_markdown(rows)


def test_peak_memory_of_a_call():
    peak = memory.peak_above(lambda: torch.ones(50_000_000 // 4))
    assert peak is None or 40 < peak < 80


def test_main_rejects_zero_threads(capsys):
    assert command.main(["growth", "--threads", "0"]) == 2
    assert "--threads must be at least 1, got 0" in capsys.readouterr().err


# Long benchmarks


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
def test_long_benchmark_reads_its_records(
    name, words, candidates, small_problems, tmp_path, monkeypatch
):
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


def make_set(kind, n_splits):
    """Slow and fast waves at 40 times, which the label tells apart."""

    def load(split):
        rng = np.random.default_rng(split)
        y = np.arange(60) % 2
        t = np.arange(40)
        values = np.sin((0.2 + 0.8 * y)[:, None] * (t + rng.uniform(0, 6, (60, 1))))
        X = as_series(values, dtype=torch.float64)
        y = np.repeat(y[:, None], 40, axis=1) if kind == "points" else y
        return labelled_sets.Split(X[:40], y[:40], X[40:], y[40:])

    is_folded = kind == "ranked series"
    return labelled_sets.LabelledSet(load, n_splits, is_folded, kind)


@pytest.fixture
def small_sets(monkeypatch):
    """One set of each kind, two quick methods each, all values and half of them."""
    sets = {kind: make_set(kind, 2) for kind in ("ranked series", "points")}
    sets = {"series": make_set("series", 1)} | sets
    for module in (filters, labelled_sets):
        monkeypatch.setattr(module, "SETS", sets)
    monkeypatch.setattr(filters, "TASKS", tuple(sets))
    monkeypatch.setattr(filters, "FRACTIONS", (1.0, 0.5))
    series = {key: filters.SERIES_METHODS[key] for key in ("filter bank", "boosted trees")}
    points = {"boosted trees": filters.POINT_METHODS["boosted trees"]}
    monkeypatch.setattr(filters, "SERIES_METHODS", series)
    methods = {"series": series, "ranked series": series, "points": points}
    monkeypatch.setattr(filters, "METHODS_OF", methods)
    labelled_sets.load_split.cache_clear()
    yield
    labelled_sets.load_split.cache_clear()


def test_filters_scores_and_reads_its_records(small_sets, tmp_path, monkeypatch, capsys):
    words = ["filters", "--seeds", "2", "--records", str(tmp_path / "records")]
    assert command.main([*words, "--json", str(tmp_path / "first.json")]) == 0
    rows = json.loads((tmp_path / "first.json").read_text())
    metrics = (*filters.RANKING, *filters.OF_PROBABILITIES)
    assert len(list((tmp_path / "records").iterdir())) == 2 * (2 * 2 + 2 * 2 + 2 * 2)
    assert [(row["task"], row["rows"], row["metric"]) for row in rows[:-4]] == [
        ("series", "100%", "accuracy"),
        ("series", "50%", "accuracy"),
        *[("ranked series", rows, name) for rows in ("100%", "50%") for name in metrics],
        ("points", "100%", "accuracy"),
        ("points", "50%", "accuracy"),
    ]
    assert all(row["filter bank"] < 0.1 for row in rows if row.get("metric") == "Brier")
    assert all(row["filter bank"] > 0.9 for row in rows[:10] if row["metric"] != "Brier")
    assert rows[10]["boosted trees"] > 0.6 and rows[10]["boosted trees s"] > 0
    assert rows[-4]["task"] == "mean rank, 2 sets"

    def again(*_):
        raise AssertionError("fitted again")

    monkeypatch.setattr(filters, "_score", again)
    assert command.main([*words, "--json", str(tmp_path / "second.json")]) == 0
    assert json.loads((tmp_path / "second.json").read_text()) == rows
    assert "wins/ties/losses" in capsys.readouterr().out


def test_few_labels_scores_and_reads_its_records(tmp_path, monkeypatch):
    def draw_beats(subset, n_beats, seed):
        split = make_set("series", 1).load(seed)
        X = SeriesBatch.concatenate([split.train_X] * 5)
        return X, np.tile(split.train_y, 5)

    monkeypatch.setattr(few_labels, "_draw_beats", draw_beats)
    words = ["few_labels", "--short", "--records", str(tmp_path / "records")]
    assert command.main([*words, "--json", str(tmp_path / "first.json")]) == 0
    rows = json.loads((tmp_path / "first.json").read_text())
    assert [(row["labels"], row["metric"]) for row in rows] == [
        (labels, metric) for labels in ("5%", "20%", "100%") for metric in few_labels.METRICS
    ]
    assert all(row["filter bank"] == 1 and row["filter bank s"] > 0 for row in rows)
    assert all(0 < row[few_labels.PRETRAINED] <= 1 and row["pretraining s"] > 0 for row in rows)

    monkeypatch.setattr(few_labels, "_measure", None)
    assert command.main([*words, "--json", str(tmp_path / "second.json")]) == 0
    assert json.loads((tmp_path / "second.json").read_text()) == rows


def test_filters_compare_ranks_and_counts():
    def row(task, bank, rocket, trees, blend, metric="accuracy"):
        scores = zip(filters.RANKED_METHODS, (bank, rocket, trees, blend), strict=True)
        return {"task": task, "rows": "50%", "metric": metric} | dict(scores)

    rows = [row("a", 0.9, 0.8, 0.7, 0.6), row("b", 0.8, 0.8002, 0.9, 0.1)]
    rows += [row("c", 0.5, 0.4, 0.6, 0.7, metric="AUROC"), row("c", 0, 1, 1, 1, metric="AUPRC")]
    rows.append({"task": "d", "rows": "50%", "filter bank": 0.9, "random forest": 0.8})
    ranks, counts = filters.compare(rows)
    assert ranks["task"] == "mean rank, 3 sets"
    assert [ranks[name] for name in filters.SERIES_METHODS] == pytest.approx(
        [(1 + 2.5 + 2) / 3, (2 + 2.5 + 3) / 3, (3 + 1 + 1) / 3]
    )
    assert counts["MiniRocket"] == "2/1/0" and counts["boosted trees"] == "1/0/2"
    assert counts["random forest"] == "1/0/0"


def test_filters_grid_of_minirocket():
    X = as_series([([0, 2, 4], [[0, 7], [2, 7], [8, np.nan]]), ([1, 2], [[1, np.nan]] * 2)])
    grid = filters.GridMiniRocket(5, is_stretched=False, random_state=0)
    grid.fill_, grid.span_ = np.array([0.0, 9.0]), (0.0, 4.0)
    np.testing.assert_allclose(grid._grid(X)[0], [[0, 1, 2, 5, 8], [7] * 5])
    np.testing.assert_allclose(grid._grid(X)[1], [[1] * 5, [9] * 5])
    grid.span_ = None
    short = as_series([([2, 4], [0, 4])])
    np.testing.assert_allclose(grid._grid(short)[0], [[0, 1, 2, 3, 4]])


def test_filters_rows_are_filled_in_both_directions():
    X = as_series([[np.nan, 1.0, np.nan, 3.0, np.nan], [2.0] * 5])
    rows = filters.fill_rows(X)
    assert rows.shape == (10, 2 + 12) and np.isfinite(rows).all()
    np.testing.assert_array_equal(rows[:5, 0], [1, 1, 1, 3, 3])
    np.testing.assert_array_equal(rows[:5, 1], [1, 1, 3, 3, 3])
    np.testing.assert_array_equal(rows[:, 2], [2] * 5 + [5] * 5)  # the number of observations


def test_thin_keeps_labels_of_points_with_their_rows():
    X = as_series(np.arange(40.0).reshape(2, 20))
    y = np.arange(40).reshape(2, 20)
    thinned = labelled_sets.thin(labelled_sets.Split(X, y, X, y), 0.5, seed=0)
    for values, labels in (thinned[:2], thinned[2:4]):
        assert labels.shape == (2, 10) and labels.dtype == np.int64
        np.testing.assert_array_equal(values.values[..., 0], labels)


def test_run_cached_rejects_other_settings(tmp_path):
    path = tmp_path / "folder" / "run.json"
    assert run_cached(path, {"steps": 3}, lambda: {"mse": 1.0})["mse"] == 1.0
    assert run_cached(path, {"steps": 3}, lambda: {"mse": 2.0})["mse"] == 1.0
    with pytest.raises(
        ValueError, match=r"run.json must be a record of .*'steps': 4.*, got .*'steps': 3"
    ):
        run_cached(path, {"steps": 4}, lambda: {"mse": 2.0})


def test_learned_row_of_failed_training(small_problems, tmp_path, monkeypatch):
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


def test_learned_selects_better_learning_rate(small_problems, tmp_path):
    *rows, _ = learned.run(short=True, records=tmp_path, budget=0.05)
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*/*.json")]
    assert len(records) == len(rows) * len(learned.LEARNING_RATES)
    for row in rows:
        ode = row["candidate"]
        tried = [record for record in records if record["asked"]["params"]["ode"] == ode]
        best = min(tried, key=lambda record: record["learned_error"])
        assert row["learning_rates"] == f"{best['asked']['params']['learning_rate']:g}"
        assert row["error"] == best["errors"]["mse"]


def test_predict_mean_motion_of_shifted_motions():
    def make_motion(start, n_times):
        t = np.linspace(0, 1, n_times)
        arc = np.stack([np.sin(3 * t), t**2], 1)
        return arc + np.outer((1 - t) ** 2, start)

    rng = np.random.default_rng(0)
    demonstrations = as_series(
        np.stack([make_motion(start, 400) for start in rng.normal(size=(5, 2))])
    )
    starts = rng.normal(size=(3, 2))
    truth = np.stack([make_motion(start, 50) for start in starts])
    predicted = predict_mean_motion(demonstrations, starts, 50)
    np.testing.assert_allclose(predicted[:, 0], starts, atol=1e-6)
    np.testing.assert_allclose(predicted, truth, atol=0.02)  # the decay is estimated within 5 %


@pytest.mark.parametrize(
    ("readings", "steps", "spent"),
    [
        # Three of ten steps took sixteen seconds, so one step is tried.
        ([0, 1, 4, 16, 0, 4, 9], 1, 9.0),
        # Ten steps took five seconds, so twenty steps are tried.
        ([0, *[1] * 10, 5, 0, *[1] * 20, 8], 20, 8.0),
    ],
)
def test_fit_within_budget_adapts_steps(readings, steps, spent, monkeypatch):
    clock = iter([0, 5, *readings])  # the first five steps took five seconds, so ten are tried
    monkeypatch.setattr(learned.time, "process_time", lambda: float(next(clock)))
    X = make_spirals("imitation_s").train_X
    model = DynamicsRegressor(**trajectories.get_parameters("imitation_s", "morph"))
    assert learned.fit_within_budget(model, X, 10.0) == (steps, spent)
    assert model.n_iter_ == steps and model.callbacks is None


def test_count_not_converged():
    data = make_spirals("imitation_s")
    model = trajectories.train_estimator("imitation_s", "morph", data.train_X, seconds=0.05)
    assert learned._count_not_converged(model, data) == 0
    model.equilibrium_ = model.equilibrium_ + 0.01
    assert learned._count_not_converged(model, data) == learned.N_STARTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["growth", "--task", "ecg"], "--task of growth must be none, got 'ecg'"),
        (["ablation", "--task", "lorenz"], "one of imitation_s, imitation_cube, imitation_c"),
        (["rollout", "--budget", "3"], "--budget must be used with learned, got rollout"),
        (
            ["learned", "--protocol", "random"],
            "--protocol of lotka_volterra must be one of standard",
        ),
        *[
            (
                [name, "--plot", "a.png"],
                f"--plot must be used with a benchmark of times, got {name}",
            )
            for name in ("leave_one_out", "filters", "few_labels")
        ],
    ],
)
def test_main_rejects_misused_option(words, message, capsys):
    assert command.main(words) == 2
    assert message in capsys.readouterr().err


def test_main_rejects_zero_seeds(capsys):
    with pytest.raises(SystemExit):
        command.main(["learned", "--seeds", "0"])
    assert "must be positive, got 0" in capsys.readouterr().err


def test_list_available_skips_tasks_without_files(monkeypatch, capsys):
    def absent(task):
        raise FileNotFoundError("3D_Cshape_top.mat was not found")

    monkeypatch.setattr(trajectories, "load_problem", absent)
    assert trajectories.list_available(("imitation_c",), None) == []
    assert "imitation_c is skipped: 3D_Cshape_top.mat was not found" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError):
        trajectories.list_available(("imitation_c",), "imitation_c")


def test_time_interleaved_order_of_calls():
    calls = []
    candidates = {name: partial(calls.append, name) for name in "ab"}
    timings = time_interleaved(candidates, repeats=2)
    assert "".join(calls) == "ab" + "ba" + "ab"  # a first call of each, then rounds
    assert all(timing.mean_ms >= 0 and timing.std_ms >= 0 for timing in timings.values())
    calls.clear()
    time_interleaved(candidates, repeats=1, batch_calls=3)
    assert "".join(calls) == "ab" + "bbbb" + "aaaa"  # the first of four is not counted
