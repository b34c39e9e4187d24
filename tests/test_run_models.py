"""The command line, as a user meets it: results, files, messages and exit codes."""

import json
import os

import numpy as np
import pytest

import run_models
from latent_morph import FLOWS, LatentODEPointClassifier, LatentODEReconstructor
from latent_morph.experiments import progress, report, tasks
from latent_morph.experiments.dynamics import DYNAMICS
from latent_morph.experiments.runs import timed_query
from latent_morph.experiments.tasks import TASKS
from latent_morph.training import TrainingError
from run_models import COMPARED, main

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
def test_every_data_set_runs_and_leaves_its_files(dataset, words, tmp_path, capsys):
    assert run("--dataset", dataset, *words, out=tmp_path) == 0
    folder = tmp_path / f"{dataset}-morph"
    record = record_in(folder)
    assert record["dataset"] == dataset and record["ode"] == "morph"
    assert record["source"] == (
        "synthetic" if dataset == "periodic" or words == STAND_IN else "real"
    )
    metric = TASKS[dataset].metric
    assert np.isfinite(record["metrics"]["test"][metric])
    assert np.isfinite(record["metrics"]["validation"][metric])
    for key in ("encoder", "protocol", "preset", "seed", "params", "versions", "timings"):
        assert key in record
    assert record["n_train"] > record["n_validation"] > 0 and record["n_test"] > 0
    assert record["params"]["hidden_dim"] == 8
    for part in ("encoder", "integration", "decoder"):
        assert record["timings"][part]["mean_ms"] > 0
    assert len((folder / "history.csv").read_text().splitlines()) == 3
    pictures = {path.stem for path in folder.glob("*.png")}
    expected = {"reconstructions"} if dataset == "periodic" else {"confusion", "example"}
    assert pictures == {"learning_curves"} | expected
    assert not (folder / "checkpoint.pt").exists()
    printed = capsys.readouterr()
    assert f"test {metric}" in printed.out
    assert ("synthetic stand-in" in printed.out) == (words == STAND_IN)


def test_the_saved_model_gives_the_recorded_figure(tmp_path):
    run(out=tmp_path)
    folder = tmp_path / "periodic-morph"
    model = LatentODEReconstructor.load(folder / "model.safetensors")
    problem = TASKS["periodic"].load(tasks.Request(n_cases=120))
    found = -model.score(problem.test_X, problem.test_y)
    assert found == pytest.approx(record_in(folder)["metrics"]["test"]["mse"], rel=1e-4)


@pytest.mark.parametrize("ode", FLOWS)
def test_every_ode_trains(ode, tmp_path):
    assert run("--ode", ode, "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    record = record_in(tmp_path / f"periodic-{ode}")
    assert np.isfinite(record["metrics"]["test"]["mse"])
    assert (record["field_evaluations"] is None) == (
        ode in ("linear", "morph", "morph-real", "morph-stable")
    )


def test_all_prints_a_table_with_ratios_and_draws_it(tmp_path, capsys):
    assert run("--ode", "all", "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("ODE")) :]
    assert [line.split()[0] for line in table[1:]] == list(COMPARED)
    rows = json.loads((tmp_path / "periodic-all" / "comparison.json").read_text())["rows"]
    assert rows[0]["ratio_to_morph"] == 1.0
    assert all(row["integration_ms_mean"] > 0 for row in rows)
    assert (tmp_path / "periodic-all" / "comparison.png").stat().st_size > 5000


def test_json_is_all_of_standard_output(tmp_path, capsys):
    assert run("--json", out=tmp_path) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == record_in(tmp_path / "periodic-morph")


def test_the_same_seed_gives_the_same_figure(tmp_path):
    for _ in range(2):
        run("--seed", "3", out=tmp_path)
    first, second = (
        record_in(tmp_path / name)["metrics"] for name in ("periodic-morph", "periodic-morph-2")
    )
    assert first == second


def test_the_paper_preset_has_the_papers_settings(tmp_path):
    arguments = run_models.parse(["--dataset", "activity", "--preset", "paper", "--ode", "dopri5"])
    params = run_models.plan(arguments, "dopri5", tmp_path).params
    assert params["latent_dim"] == 15 and params["optimizer"] == "adamax"
    assert params["learning_rate"] == 1e-2 and params["max_epochs"] == 200
    assert params["ode_options"] == {"units": 500, "layers": 3}
    assert run_models.plan(arguments, "morph", tmp_path).params["ode_options"]["inn"] == "paper"


def test_what_is_given_wins_over_the_preset(tmp_path):
    words = ["--dataset", "activity", "--preset", "paper", "--latent-dim", "7", "--budget", "2.5"]
    arguments = run_models.parse([*words, "--class-weight", "balanced", "--gradient-clip", "none"])
    params = run_models.plan(arguments, "morph", tmp_path).params
    assert (params["latent_dim"], params["budget"]) == (7, 2.5)
    assert (params["class_weight"], params["gradient_clip"]) == ("balanced", None)
    LatentODEPointClassifier(**params)._validate_params()


class Interrupting(progress.Progress):
    """A user who presses Ctrl-C after the first epoch."""

    def __call__(self, history, settings):
        super().__call__(history, settings)
        raise KeyboardInterrupt


def test_ctrl_c_keeps_a_checkpoint_and_the_run_can_go_on(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_models, "Progress", Interrupting)
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


def test_a_missing_file_is_replaced_aloud_or_not_at_all(tmp_path, capsys, monkeypatch):
    def nowhere(**_):
        raise FileNotFoundError("no ConfLongDemo_JSI.txt anywhere\nmore words")

    monkeypatch.setattr(tasks, "fetch_activity", nowhere)
    assert run("--dataset", "activity", "--n-cases", "60", out=tmp_path) == 0
    printed = capsys.readouterr()
    assert (
        "going on with a synthetic stand-in, since no ConfLongDemo_JSI.txt anywhere" in printed.err
    )
    assert "synthetic stand-in" in printed.out
    assert record_in(tmp_path / "activity-morph")["source"] == "synthetic"

    assert run("--dataset", "activity", "--source", "real", out=tmp_path / "other") == 1
    assert "no ConfLongDemo_JSI.txt anywhere" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


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
        (["--source", "real"], 2, "the periodic set is generated by definition"),
        (["--keep", "1.5"], 2, "'keep' parameter"),
        (["--dataset", "physionet", "--source", "synthetic"], 2, "no generated stand-in"),
        (["--resume", "nowhere"], 1, "nowhere"),
        (["--ode-options", '{"inn": "none"}'], 2, "inn must be one of compact, paper"),
        (["--ode-options", '{"speed": 3}'], 2, "unexpected keyword argument 'speed'"),
    ],
)
def test_wrong_use_is_one_clear_line(words, code, message, tmp_path, capsys):
    assert main([*words, "--quick", "--out", str(tmp_path / "runs")]) == code
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    "words", [["--dataset", "activty"], ["--ode", "morf"], ["--latentdim", "3"], ["--seed", "x"]]
)
def test_unknown_words_exit_with_2(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_an_unusable_out_folder_is_said_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--quick", "--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_help_shows_the_estimators_own_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["--dataset", "ecg", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "parameters of LatentODEClassifier" in text
    assert "--class-weight VALUE default None" in text and "--hidden-dim VALUE default 64" in text


@pytest.mark.parametrize("dataset", [*TASKS, *DYNAMICS])
def test_help_says_what_every_protocol_is(dataset, capsys):
    with pytest.raises(SystemExit):
        main(["--dataset", dataset, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for name, what in (TASKS | DYNAMICS)[dataset].protocols.items():
        assert f"{name}: {what}" in shown


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (125, "2:05"), (3725, "1:02:05")]
)
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


def test_report_lists_the_runs_of_a_folder(tmp_path, capsys):
    assert report.main([str(tmp_path)]) == 1
    assert "no record.json below" in capsys.readouterr().err
    run(out=tmp_path)
    run("--dataset", "ecg", *STAND_IN, out=tmp_path)
    capsys.readouterr()
    assert report.main([str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4 and {len(row) for row in rows if len(row) > 1} == {len(report.COLUMNS)}
    assert rows[2][0] == "| ecg" and rows[3][7].startswith("mse 0.")


def test_resuming_a_finished_run_changes_nothing(tmp_path, capsys):
    run("--json", out=tmp_path)
    folder = tmp_path / "periodic-morph"
    before = (folder / "record.json").read_bytes()
    capsys.readouterr()
    assert main(["--resume", str(folder), "--json"]) == 0
    assert (folder / "record.json").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads(before)


def test_periodic_is_timed_at_all_of_its_times(tmp_path):
    problem = TASKS["periodic"].load(tasks.Request(n_cases=40, n_times=60))
    estimator = LatentODEReconstructor(max_epochs=1, keep=0.1, random_state=0, hidden_dim=4)
    estimator.fit(problem.train_X)
    batch, times = timed_query(estimator, problem)
    assert batch.n_times == 3 and times.shape == (8, 60)
    assert float(times.max()) == pytest.approx(1.0, abs=0.05)


def test_one_failing_ode_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    whole = run_models.run_one

    def fragile(task, run_, problem, arguments):
        if run_.ode == "euler":
            raise TrainingError("the loss is nan in epoch 1, batch 1 of 1")
        return whole(task, run_, problem, arguments)

    monkeypatch.setattr(run_models, "run_one", fragile)
    monkeypatch.setattr(run_models, "COMPARED", ("morph", "euler", "linear"))
    assert run("--ode", "all", "--n-cases", "30", "--n-times", "20", out=tmp_path) == 0
    printed = capsys.readouterr()
    assert "euler failed and is left out: the loss is nan" in printed.err
    table = printed.out[printed.out.index("ODE") :].splitlines()[1:]
    assert [line.split()[0] for line in table] == ["morph", "linear"]


def test_a_data_home_that_is_no_folder(tmp_path, capsys):
    assert main(["--dataset", "activity", "--data-home", str(tmp_path / "no")]) == 2
    assert "is no folder" in capsys.readouterr().err


def test_no_arguments_mean_a_first_look_of_a_minute(tmp_path, capsys):
    arguments = run_models.parse([])
    assert "No arguments: a first look" in capsys.readouterr().err
    assert (arguments.dataset, arguments.ode, arguments.budget) == ("periodic", "morph", 50)
