"""The command line on filter banks, and the metrics of all classifiers."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import log_loss, precision_recall_curve, precision_score, recall_score

from latent_morph import FilterBankClassifier, FilterBankPointClassifier
from latent_morph.experiments import cli, report
from latent_morph.experiments.classification import (
    Classifications,
    compute_calibration_error,
    compute_log_loss,
    compute_metrics,
    event_1_score,
)
from latent_morph.experiments.filters import FilterBankLearner
from latent_morph.experiments.problem import Problem
from latent_morph.experiments.registry import TASKS
from latent_morph.series import as_series
from run_models import main

STAND_IN = ["--source", "synthetic", "--n-cases", "60"]
NEEDS_DATA = pytest.mark.skipif(
    "LATENT_MORPH_DATA" not in os.environ, reason="LATENT_MORPH_DATA names no folder of real data"
)


def run(*words, out):
    return main([*words, "--model", "filter-bank", "--quick", "--out", str(out)])


def record_in(folder):
    return json.loads((folder / "record.json").read_text())


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("activity", STAND_IN),
        ("ecg", STAND_IN),
        pytest.param("activity", ["--protocol", "person"], marks=NEEDS_DATA),
        pytest.param("ecg", ["--keep", "0.5"], marks=NEEDS_DATA),
        pytest.param("physionet", [], marks=NEEDS_DATA),
    ],
)
def test_run_filter_bank_writes_record_and_figures(dataset, words, tmp_path, capsys):
    assert run("--dataset", dataset, *words, out=tmp_path) == 0
    folder = tmp_path / f"{dataset}-filter-bank"
    record = record_in(folder)
    assert (record["model"], record["ode"], record["epochs"]) == ("filter-bank", None, None)
    assert record["n_train"] > record["n_test"] > 0 == record["n_validation"]
    assert set(record["timings"]) == {"training_s", "prediction_s", "threads"}
    assert record["timings"]["training_s"] > 0 and record["n_parameters"] > 0
    assert {"class_weight", "max_memory", "device"} <= set(record["params"])
    assert not {"head", "ode", "random_state"} & set(record["params"])
    scores = record["metrics"]["test"]
    assert {"accuracy", "log_loss", "calibration_error"} <= set(scores)
    binary = {"roc_auc", "average_precision", "brier", "event_1"}
    assert binary <= set(scores) or dataset != "physionet"
    assert all(np.isfinite(score) for score in scores.values())
    files = {path.name for path in folder.iterdir()}
    figures = {"confusion.png", "example.png", "filters.png"}
    assert files == figures | {"record.json", "arguments.json", "model.safetensors"}
    printed = capsys.readouterr().out
    name = f"{dataset} (synthetic stand-in)" if words == STAND_IN else dataset
    protocol = record["protocol"]
    assert printed.startswith(f"{name}, filter-bank, default preset, protocol {protocol}: test ")
    assert "epochs" not in printed


@pytest.mark.skipif(
    not os.path.exists(
        os.path.join(os.environ.get("LATENT_MORPH_DATA", ""), "physionet", "Outcomes-c.txt")
    ),
    reason="LATENT_MORPH_DATA names no folder with set c",
)
def test_run_filter_bank_on_set_c(tmp_path):
    assert run("--dataset", "physionet", "--protocol", "a-c", out=tmp_path) == 0
    record = record_in(tmp_path / "physionet-filter-bank")
    assert (record["n_train"], record["n_test"]) == (60, 60)
    assert (record["protocol"], record["source"]) == ("a-c", "real")
    assert 0 <= record["metrics"]["test"]["event_1"] <= 1


def test_run_filter_bank_saved_model_has_recorded_score(tmp_path):
    run("--dataset", "ecg", *STAND_IN, out=tmp_path)
    folder = tmp_path / "ecg-filter-bank"
    model = FilterBankClassifier.load(folder / "model.safetensors")
    problem = TASKS["ecg"].load(cli.make_request(cli.parse(["--dataset", "ecg", *STAND_IN])))
    accuracy = model.score(problem.test_X, problem.test_y)
    assert accuracy == record_in(folder)["metrics"]["test"]["accuracy"]


def test_run_filter_bank_resumes(tmp_path, capsys, monkeypatch):
    """A complete run is read from its files, another is fitted anew."""
    assert run("--dataset", "ecg", *STAND_IN, "--json", out=tmp_path) == 0
    folder = tmp_path / "ecg-filter-bank"
    before = record_in(folder)
    assert json.loads(capsys.readouterr().out) == before

    for name in ("record.json", "model.safetensors"):
        (folder / name).unlink()
    assert main(["--resume", str(folder), "--json"]) == 0
    assert record_in(folder)["metrics"] == before["metrics"]

    (folder / "filters.png").unlink()

    def refit(*_, **__):
        raise AssertionError("fitted again")

    monkeypatch.setattr(FilterBankLearner, "fit", refit)
    assert main(["--resume", str(folder)]) == 0
    assert (folder / "filters.png").exists()


def test_run_filter_bank_passes_groups(monkeypatch, tmp_path):
    given = []

    class Grouped(FilterBankPointClassifier):
        def fit(self, X, y, sample_weight=None, groups=None):
            given.append(groups)
            return super().fit(X, y, sample_weight, groups)

    monkeypatch.setitem(
        TASKS["activity"].learners, "filter-bank", FilterBankLearner(estimator=Grouped)
    )
    load = TASKS["activity"].load

    def load_grouped(request):
        problem = load(request)
        return replace(problem, groups=np.arange(len(problem.train_X)) % 4)

    monkeypatch.setitem(TASKS, "activity", replace(TASKS["activity"], load=load_grouped))
    assert run("--dataset", "activity", *STAND_IN, "--n-units", "5", out=tmp_path) == 0
    assert len(given) == 1 and set(given[0]) == {0, 1, 2, 3}


def test_run_filter_bank_passes_parameters(tmp_path):
    words = ["--dataset", "ecg", "--model", "filter-bank", "--class-weight", "balanced"]
    estimator = cli.plan(cli.parse([*words, "--seed", "3"]), None).estimator
    assert isinstance(estimator, FilterBankClassifier)
    assert (estimator.class_weight, estimator.random_state) == ("balanced", 3)


@pytest.mark.parametrize(
    ("dataset", "models", "model"),
    [
        ("periodic", "latent-ode", "filter-bank"),
        ("lorenz", "dynamics", "filter-bank"),
        ("ecg", "latent-ode or filter-bank", "forest"),
    ],
)
def test_model_unknown_for_dataset_exits_with_message(dataset, models, model, capsys):
    assert main(["--dataset", dataset, "--model", model]) == 2
    message = f"run_models.py: --model must be {models} for {dataset}, got {model}\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    "option", [["--ode", "rk4"], ["--ode", "all"], ["--preset", "paper"], ["--max-epochs", "3"]]
)
def test_options_of_latent_odes_are_refused_for_filter_bank(option, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        run("--dataset", "ecg", *STAND_IN, *option, out=tmp_path / "runs")
    assert stop.value.code == 2
    message = "unrecognized arguments for --dataset ecg --model filter-bank: " + " ".join(option)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_wrong_parameter_of_filter_bank_exits_with_message(tmp_path, capsys):
    assert run("--dataset", "ecg", *STAND_IN, "--max-memory", "0", out=tmp_path / "runs") == 2
    assert "'max_memory' parameter of FilterBankClassifier" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_help_depends_on_model(capsys):
    with pytest.raises(SystemExit):
        main(["--dataset", "ecg", "--model", "filter-bank", "--help"])
    text = capsys.readouterr().out
    assert "parameters of FilterBankClassifier" in text and "latent-ode or filter-bank" in text
    for option in ("--ode NAME", "--preset", "--max-epochs", "--head", "--random-state"):
        assert option not in text


def test_report_lists_filter_bank_beside_latent_ode(tmp_path, capsys):
    run("--dataset", "ecg", *STAND_IN, out=tmp_path)
    record = record_in(tmp_path / "ecg-filter-bank")
    old = {name: value for name, value in record.items() if name != "model"}
    old |= {"ode": "morph", "epochs": {"run": 7, "best": 3}}  # as of version 0.1
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "record.json").write_text(json.dumps(old))
    capsys.readouterr()
    assert report.main([str(tmp_path)]) == 0
    header, _, new_row, old_row = (
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()
    )
    new_cells, old_cells = (dict(zip(header, row, strict=True)) for row in (new_row, old_row))
    of_model = ("model", "ODE", "epochs")
    assert [new_cells[name] for name in of_model] == ["filter-bank", "-", "-"]
    assert [old_cells[name] for name in of_model] == ["latent-ode", "morph", "7"]
    assert new_cells["integration ms"] == new_cells["epoch s"] == "-"


# Metrics of classes


def make_problem(y):
    X = as_series(np.zeros((len(y), 1, 1)))
    return Problem(
        train_X=X, test_X=X, test_y=y, channel_names=["x"], source="synthetic", protocol=""
    )


def test_log_loss_is_that_of_sklearn_and_allows_new_classes():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), 40)
    truth = rng.integers(0, 3, 40)
    ours = compute_log_loss(truth, np.arange(3), probabilities)
    assert ours == pytest.approx(log_loss(truth, probabilities))
    truth[0] = 7
    assert compute_log_loss(truth, np.arange(3), probabilities) > ours


def test_calibration_error_of_known_bins():
    confidence = np.array([0.9] * 10 + [0.5] * 10)
    is_correct = np.array([True] * 9 + [False] + [True] * 5 + [False] * 5)
    assert compute_calibration_error(is_correct, confidence) == pytest.approx(0)
    assert compute_calibration_error(~is_correct, confidence) == pytest.approx(0.4)
    assert compute_calibration_error(np.ones(4, bool), np.ones(4)) == 0


def test_binary_metrics_are_of_second_class():
    truth = np.array([0, 0, 0, 1])
    positive = np.array([0.1, 0.2, 0.6, 0.9])
    predicted = Classifications(np.array([0, 1]), np.stack([1 - positive, positive], 1))
    scores = compute_metrics(predicted, make_problem(truth))
    assert scores["roc_auc"] == scores["average_precision"] == 1
    assert scores["brier"] == pytest.approx((0.01 + 0.04 + 0.36 + 0.01) / 4)
    assert scores["accuracy"] == 0.75
    assert scores["event_1"] == 0.5  # the two largest are flagged, as the sum is 1.8
    only_zeros = compute_metrics(predicted, make_problem(np.zeros(4, int)))
    assert not {"roc_auc", "event_1"} & set(only_zeros) and "log_loss" in only_zeros


@pytest.mark.parametrize(
    ("truth", "probability", "score"),
    [
        pytest.param([1, 1, 0, 0], [0.9, 0.8, 0.2, 0.1], 1, id="all right"),
        pytest.param([0, 0, 1, 1], [0.9, 0.8, 0.2, 0.1], 0, id="all wrong"),
        # Three are flagged, two of them rightly, of four positives: 2/4 < 2/3.
        pytest.param([1, 1, 0, 1, 1], [0.9, 0.8, 0.7, 0.4, 0.3], 2 / 4, id="recall"),
        # Three are flagged, two of them rightly, of two positives: 2/3 < 1.
        pytest.param([1, 0, 1, 0, 0], [0.9, 0.8, 0.7, 0.4, 0.3], 2 / 3, id="precision"),
        # The sum 1.2 stands for one; two are equal and are both flagged.
        pytest.param([1, 0, 0], [0.5, 0.5, 0.2], 1 / 2, id="ties"),
        pytest.param([0, 0, 0, 1], [0.25] * 4, 1 / 4, id="constant"),
        pytest.param([1, 0, 0], [0.2, 0.1, 0.1], 0, id="none flagged"),
        pytest.param([1, 0], [1.0, 1.0], 1 / 2, id="all flagged"),
    ],
)
def test_event_1_score_of_known_cases(truth, probability, score):
    truth, probability = np.array(truth, bool), np.array(probability)
    assert event_1_score(truth, probability) == pytest.approx(score)
    assert event_1_score(truth[::-1], probability[::-1]) == pytest.approx(score)


def test_event_1_score_is_smaller_of_recall_and_precision_and_near_their_best():
    rng = np.random.default_rng(0)
    probability = rng.beta(0.5, 3, 4000)  # as rare as deaths
    truth = rng.random(4000) < probability  # calibrated
    score = event_1_score(truth, probability)
    flagged = probability >= np.sort(probability)[-round(probability.sum())]
    assert score == min(recall_score(truth, flagged), precision_score(truth, flagged))
    precision, recall, _ = precision_recall_curve(truth, probability)
    best = np.minimum(precision, recall).max()
    assert best - 0.03 < score <= best


def test_event_1_score_needs_a_positive_case():
    with pytest.raises(ValueError, match="truth must have a positive case, got none of 3"):
        event_1_score(np.zeros(3, bool), np.full(3, 0.5))


def test_metrics_of_time_points_are_those_of_all_points():
    rng = np.random.default_rng(0)
    probabilities, truth = rng.dirichlet(np.ones(3), (5, 8)), rng.integers(0, 3, (5, 8))
    classes = np.arange(3)
    points = compute_metrics(Classifications(classes, probabilities), make_problem(truth))
    flat = Classifications(classes, probabilities.reshape(40, 3))
    assert points == compute_metrics(flat, make_problem(truth.ravel()))
