"""The command line on series: results, files, messages and exit codes."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils import Bunch

from latent_morph import (
    FLOWS,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    datasets,
)
from latent_morph.experiments import cli, progress, report, runs
from latent_morph.experiments.latent import (
    LatentClassificationLearner,
    ReconstructionLearner,
    timed_query,
)
from latent_morph.experiments.presets import PRESETS
from latent_morph.experiments.problem import Problem, Request
from latent_morph.experiments.registry import TASKS, get_learner
from latent_morph.experiments.task import Task
from latent_morph.series import as_series
from latent_morph.training import TrainingError
from run_models import main

SMALL = ["--hidden-dim", "8", "--latent-dim", "4", "--decoder-width", "8"]
STAND_IN = ["--source", "synthetic", "--n-cases", "60"]
NEEDS_DATA = pytest.mark.skipif(
    "LATENT_MORPH_DATA" not in os.environ, reason="LATENT_MORPH_DATA names no folder of real data"
)


def run(*words, out):
    return main([*words, "--quick", *SMALL, "--out", str(out)])


def record_in(folder):
    return json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("periodic", []),
        ("activity", STAND_IN),
        ("ecg", STAND_IN),
        pytest.param("activity", ["--protocol", "person"], marks=NEEDS_DATA),
        pytest.param("ecg", ["--keep", "0.5"], marks=NEEDS_DATA),
        pytest.param("physionet", [], marks=NEEDS_DATA),
    ],
)
def test_run_writes_files_of_every_latent_dataset(dataset, words, tmp_path, capsys):
    assert run("--dataset", dataset, *words, out=tmp_path) == 0
    folder = tmp_path / f"{dataset}-morph"
    record = record_in(folder)
    assert record["dataset"] == dataset and record["ode"] == "morph"
    assert record["source"] == (
        "synthetic" if dataset == "periodic" or words == STAND_IN else "real"
    )
    metric = TASKS[dataset].metric
    assert np.isfinite(record["metrics"]["test"][metric])
    # Few series, or groups, are all trained on; of the others the monitor is recorded.
    assert len(record["metrics"]["validation"]) == (record["n_validation"] > 0)
    for name, score in record["metrics"]["validation"].items():
        assert name in ("mse", "log_loss") and score > 0
    assert record["model"] == "latent-ode"
    for key in ("encoder", "protocol", "preset", "seed", "params", "versions", "timings"):
        assert key in record
    assert record["n_train"] > record["n_validation"] >= 0 and record["n_test"] > 0
    # A reconstructor always holds series out, a classifier only of many.
    assert (record["n_validation"] > 0) == (dataset == "periodic")
    assert record["params"]["hidden_dim"] == 8
    for part in ("encoder", "integration", "decoder"):
        assert record["timings"][part]["mean_ms"] > 0
    assert len((folder / "history.csv").read_text().splitlines()) == 3
    figures = {path.stem for path in folder.glob("*.png")}
    expected = {"reconstructions"} if dataset == "periodic" else {"confusion", "example"}
    assert figures == {"learning_curves"} | expected
    assert not (folder / "checkpoint.pt").exists()
    printed = capsys.readouterr()
    assert f"test {metric}" in printed.out
    assert ("synthetic stand-in" in printed.out) == (words == STAND_IN)


def test_run_saved_model_has_recorded_score(tmp_path):
    run(out=tmp_path)
    folder = tmp_path / "periodic-morph"
    model = LatentODEReconstructor.load(folder / "model.safetensors")
    problem = TASKS["periodic"].load(Request(n_cases=120))
    mse = -model.score(problem.test_X, problem.test_y)
    assert mse == pytest.approx(record_in(folder)["metrics"]["test"]["mse"], rel=1e-4)


@pytest.mark.parametrize("ode", FLOWS)
def test_run_trains_every_ode(ode, tmp_path):
    assert run("--ode", ode, "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    record = record_in(tmp_path / f"periodic-{ode}")
    assert np.isfinite(record["metrics"]["test"]["mse"])
    assert (record["field_evaluations"] is None) == (
        ode in ("linear", "morph", "morph-real", "morph-stable")
    )


def test_ode_all_prints_and_draws_comparison(tmp_path, capsys):
    assert run("--ode", "all", "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("ODE")) :]
    assert [line.split()[0] for line in table[1:]] == list(get_learner("periodic").compared_odes)
    rows = json.loads((tmp_path / "periodic-all" / "comparison.json").read_text())["rows"]
    assert rows[0]["ratio_to_morph"] == 1.0
    assert all(row["integration_ms_mean"] > 0 for row in rows)
    assert (tmp_path / "periodic-all" / "comparison.png").stat().st_size > 5000


def test_json_is_only_standard_output(tmp_path, capsys):
    assert run("--json", out=tmp_path) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == record_in(tmp_path / "periodic-morph")


def test_same_seed_gives_same_metrics(tmp_path):
    for _ in range(2):
        run("--seed", "3", out=tmp_path)
    first, second = (
        record_in(tmp_path / name)["metrics"] for name in ("periodic-morph", "periodic-morph-2")
    )
    assert first == second


def test_paper_preset_has_settings_of_latent_odes():
    arguments = cli.parse(["--dataset", "activity", "--preset", "paper", "--ode", "dopri5"])
    params = cli.make_parameters(arguments, "dopri5")
    assert params["latent_dim"] == 15 and params["optimizer"] == "adamax"
    assert params["learning_rate"] == 1e-2 and params["max_epochs"] == 200
    assert params["ode_options"] == {"units": 500, "layers": 3}
    assert params["encoder"] == "gru-ode"
    assert params["encoder_options"] == {
        "bidirectional": False,
        "ode": "euler",
        "ode_options": {"units": 500, "layers": 5},
    }
    morph = cli.make_parameters(arguments, "morph")
    assert morph["ode_options"] == {"inn": "paper", "spectrum": "real"}
    assert morph["learning_rate"] == 1e-3


def test_given_parameters_override_preset():
    words = ["--dataset", "activity", "--preset", "paper", "--latent-dim", "7", "--budget", "2.5"]
    arguments = cli.parse([*words, "--class-weight", "balanced", "--gradient-clip", "none"])
    params = cli.make_parameters(arguments, "morph")
    assert (params["latent_dim"], params["budget"]) == (7, 2.5)
    assert (params["class_weight"], params["gradient_clip"]) == ("balanced", None)
    LatentODEPointClassifier(**params)._validate_params()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"pool": 4, "dropout": 0.1}),
        (["--encoder", "morph"], {"pool": 4, "dropout": 0.1}),
        (["--encoder", "gru-ode"], None),
        (["--preset", "paper", "--encoder", "morph"], None),
        (["--encoder-options", '{"pool": 2}'], {"pool": 2}),
        (["--encoder-options", "none"], None),
        (
            ["--encoder", "gru-ode", "--encoder-options", '{"bidirectional": false}'],
            {"bidirectional": False},
        ),
    ],
)
def test_preset_encoder_options_go_with_encoder(words, options):
    arguments = cli.parse(["--dataset", "ecg", *words])
    params = cli.make_parameters(arguments, "morph")
    assert params.get("encoder_options") == options
    assert cli.plan(arguments, "morph").estimator.encoder_options == options


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("dataset", "ode"), [(name, ode) for name in TASKS for ode in get_learner(name).compared_odes]
)
def test_presets_fit_estimator(dataset, preset, ode):
    arguments = cli.parse(["--dataset", dataset, "--preset", preset])
    assert cli.plan(arguments, ode).estimator.ode == ode


def test_registry_entry_is_enough_for_new_dataset(tmp_path, monkeypatch, capsys):
    X = datasets.make_periodic(30, 20, random_state=0).target

    def load(request):
        return Problem(
            train_X=X[:20],
            test_X=X[20:],
            test_y=X[20:],
            channel_names=["level"],
            source="synthetic",
            protocol="first",
        )

    task = Task(
        load=load,
        learners={"latent-ode": ReconstructionLearner(paper={})},
        metric="mse",
        protocols={"first": "the first twenty train"},
    )
    monkeypatch.setitem(TASKS, "levels", task)
    assert run("--dataset", "levels", out=tmp_path) == 0
    assert report.main([str(tmp_path)]) == 0
    assert "| levels | synthetic | first |" in capsys.readouterr().out


class Interrupting(progress.Progress):
    """A user who presses Ctrl-C after the first epoch."""

    def __call__(self, history, settings):
        super().__call__(history, settings)
        raise KeyboardInterrupt


def test_run_resumes_after_interrupt(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(cli, "Progress", Interrupting)
        assert run("--max-epochs", "3", out=tmp_path) == 130
    folder = tmp_path / "periodic-morph"
    assert f"--resume {folder}" in capsys.readouterr().err
    assert (folder / "checkpoint.pt").exists() and not (folder / "record.json").exists()

    assert main(["--resume", str(folder)]) == 0
    resumed = record_in(folder)
    assert resumed["epochs"]["run"] == 3

    run("--max-epochs", "3", out=tmp_path)
    whole = record_in(tmp_path / "periodic-morph-2")
    assert resumed["metrics"] == whole["metrics"]


def test_missing_file_gets_stand_in_unless_source_is_real(tmp_path, capsys, monkeypatch):
    def fetch(**_):
        raise FileNotFoundError("no ConfLongDemo_JSI.txt anywhere\nmore words")

    monkeypatch.setattr(datasets, "fetch_activity", fetch)
    assert run("--dataset", "activity", "--n-cases", "60", out=tmp_path) == 0
    printed = capsys.readouterr()
    assert "using a synthetic stand-in, since no ConfLongDemo_JSI.txt anywhere" in printed.err
    assert "synthetic stand-in" in printed.out
    assert record_in(tmp_path / "activity-morph")["source"] == "synthetic"

    assert run("--dataset", "activity", "--source", "real", out=tmp_path / "other") == 1
    assert "no ConfLongDemo_JSI.txt anywhere" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def fetch_stays(subset="a", **_):
    """Six stays of set a, or five of set c, whose one value is 100 or 300 plus their number."""
    n_cases, base = {"a": (6, 100), "c": (5, 300)}[subset]
    return Bunch(
        data=as_series(base + np.arange(n_cases, dtype=float)[:, None, None]),
        target=np.arange(n_cases) % 2,
        feature_names=["HR"],
        target_names=["survived", "died"],
        source="real",
    )


@pytest.mark.parametrize(
    ("n_cases", "n_train", "n_test"), [(None, 6, 5), (5, 3, 2), (4, 2, 2), (99, 6, 5)]
)
def test_physionet_a_c_learns_on_a_and_tests_on_c(n_cases, n_train, n_test, monkeypatch):
    monkeypatch.setattr(datasets, "fetch_physionet", fetch_stays)
    problem = TASKS["physionet"].load(Request(protocol="a-c", n_cases=n_cases))
    train, test = (X.values.ravel().numpy() for X in (problem.train_X, problem.test_X))
    assert set(train) <= set(range(100, 106)) and set(test) <= set(range(300, 305))
    assert (len(set(train)), len(set(test))) == (len(train), len(test)) == (n_train, n_test)
    assert problem.train_y.tolist() == (train % 2).tolist()
    assert problem.test_y.tolist() == (test % 2).tolist()
    assert problem.protocol == "a-c"


def test_physionet_splits_set_a_by_default(monkeypatch):
    def fetch(**options):
        assert "subset" not in options
        return fetch_stays()

    monkeypatch.setattr(datasets, "fetch_physionet", fetch)
    problem = TASKS["physionet"].load(Request())
    values = [*problem.train_X.values.ravel(), *problem.test_X.values.ravel()]
    assert sorted(map(int, values)) == list(range(100, 106))
    assert problem.protocol == "random" == next(iter(TASKS["physionet"].protocols))


def test_physionet_rejects_unknown_protocol():
    with pytest.raises(ValueError, match="protocol must be one of random, a-c, got 'a-b'"):
        TASKS["physionet"].load(Request(protocol="a-b"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--latent-dim", "0"],
            2,
            "'latent_dim' parameter of LatentODEReconstructor must be an int",
        ),
        (["--optimizer", "sgd"], 2, "'optimizer' parameter"),
        (["--n-cases", "3"], 2, "--n-cases must be at least 20, got 3"),
        (["--threads", "0"], 2, "--threads must be at least 1, got 0"),
        (["--source", "real"], 2, "source must be auto or synthetic"),
        (["--keep", "1.5"], 2, "'keep' parameter"),
        (["--dataset", "physionet", "--source", "synthetic"], 2, "without a stand-in"),
        (["--resume", "nowhere"], 1, "nowhere"),
        (["--ode-options", '{"inn": "none"}'], 2, "inn must be one of compact, paper"),
        (["--ode-options", '{"speed": 3}'], 2, "unexpected keyword argument 'speed'"),
    ],
)
def test_run_exits_on_wrong_arguments(words, code, message, tmp_path, capsys):
    assert main([*words, "--quick", "--out", str(tmp_path / "runs")]) == code
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
    assert "Traceback" not in printed.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words", [["--dataset", "activty"], ["--ode", "morf"], ["--latentdim", "3"], ["--seed", "x"]]
)
def test_unknown_arguments_exit_with_usage(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_out_that_is_a_file_exits_with_message(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--quick", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_help_shows_defaults_of_estimator(capsys):
    with pytest.raises(SystemExit):
        main(["--dataset", "ecg", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "parameters of LatentODEClassifier" in text
    assert "--class-weight VALUE default None" in text and "--hidden-dim VALUE default 64" in text


@pytest.mark.parametrize("dataset", TASKS)
def test_help_explains_every_protocol(dataset, capsys):
    with pytest.raises(SystemExit):
        main(["--dataset", dataset, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, what in TASKS[dataset].protocols.items():
        assert f"{name}: {what}" in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (125, "2:05"), (3725, "1:02:05")]
)
def test_format_duration(seconds, text):
    assert progress.format_duration(seconds) == text


def test_report_lists_runs_of_folder(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 1
    assert "folder must hold a record.json" in capsys.readouterr().err
    run(out=tmp_path)
    run("--dataset", "ecg", *STAND_IN, out=tmp_path)
    capsys.readouterr()
    assert report.main([str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4 and {len(row) for row in rows} == {14}
    assert rows[2][0] == "| ecg" and rows[3][8].startswith("mse 0.")


def test_run_resumes_finished_run_unchanged(tmp_path, capsys):
    run("--json", out=tmp_path)
    folder = tmp_path / "periodic-morph"
    before = (folder / "record.json").read_bytes()
    capsys.readouterr()
    assert main(["--resume", str(folder), "--json"]) == 0
    assert (folder / "record.json").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads(before)


def test_timed_query_has_all_target_times():
    problem = TASKS["periodic"].load(Request(n_cases=40, n_times=60))
    estimator = LatentODEReconstructor(max_epochs=1, keep=0.1, random_state=0, hidden_dim=4)
    estimator.fit(problem.train_X)
    batch, times = timed_query(estimator, problem)
    assert batch.n_times == 3 and times.shape == (8, 60)
    assert float(times.max()) == pytest.approx(1.0, abs=0.05)


def test_ode_all_leaves_out_failing_ode(tmp_path, capsys, monkeypatch):
    run_any = runs.run

    def run_but_euler(experiment, *args, **options):
        if experiment.ode == "euler":
            raise TrainingError("the loss is nan in epoch 1, batch 1 of 1")
        return run_any(experiment, *args, **options)

    monkeypatch.setattr(runs, "run", run_but_euler)
    few = replace(get_learner("periodic"), compared_odes=("morph", "euler", "linear"))
    monkeypatch.setitem(TASKS["periodic"].learners, "latent-ode", few)
    assert run("--ode", "all", "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    printed = capsys.readouterr()
    assert "euler failed and is left out: the loss is nan" in printed.err
    table = printed.out[printed.out.index("ODE") :].splitlines()[1:]
    assert [line.split()[0] for line in table] == ["morph", "linear"]


def test_data_home_that_is_no_folder_exits_with_message(tmp_path, capsys):
    assert main(["--dataset", "activity", "--data-home", str(tmp_path / "no")]) == 2
    assert "must be a folder, got" in capsys.readouterr().err


def test_run_without_arguments_is_first_look(capsys):
    arguments = cli.parse([])
    assert "No arguments: running" in capsys.readouterr().err
    assert (arguments.dataset, arguments.ode, arguments.budget) == ("periodic", "morph", 50)


def test_run_builds_one_estimator_and_predicts_once(tmp_path, monkeypatch):
    """A second look at the test set would double the time of what follows training."""
    calls = []

    def count(owner, name):
        original = getattr(owner, name)

        def counted(*args, **options):
            calls.append(name)
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    count(LatentClassificationLearner, "make_estimator")
    count(LatentClassificationLearner, "predict")
    count(LatentODEClassifier, "predict_proba")
    count(LatentODEClassifier, "_outputs")
    assert run("--dataset", "ecg", *STAND_IN, out=tmp_path) == 0
    assert calls == ["make_estimator", "predict", "_outputs"]


def test_wrong_options_are_found_before_data_are_loaded(tmp_path, monkeypatch):
    def load(request):
        raise AssertionError("loaded")

    monkeypatch.setitem(TASKS, "periodic", replace(TASKS["periodic"], load=load))
    assert main(["--ode-options", '{"speed": 3}', "--out", str(tmp_path / "runs")]) == 2
    assert not (tmp_path / "runs").exists()
