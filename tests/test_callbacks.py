"""Callbacks: the protocol, those of the package, and logging."""

import ast
import csv
import io
import logging
import pickle
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.base import clone
from test_dynamics import TINY as DYNAMICS
from test_dynamics import spirals
from test_estimators import TINY, sines
from test_training import QUICK, assert_equal_weights, run, weights

import latent_morph
from latent_morph import (
    Callback,
    Checkpoint,
    CSVLog,
    DynamicsRegressor,
    EarlyStopping,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    TensorBoardLog,
)
from latent_morph.losses import LatentODELoss

LIBRARY = Path(latent_morph.__file__).parent


class Recorder(Callback):
    """Records its calls in order."""

    def __init__(self):
        self.calls = []

    def on_train_begin(self, training):
        self.calls.append(("begin", len(training.history.rows)))

    def on_epoch_end(self, training):
        self.calls.append(("epoch", int(training.history.rows[-1]["epoch"])))

    def on_train_end(self, training):
        self.calls.append(("end", len(training.history.rows)))


class FailingCallback(Callback):
    """Raises in one of its methods."""

    def __init__(self, where):
        self.where = where

    def on_train_begin(self, training):
        self.fail_if("begin")

    def on_epoch_end(self, training):
        self.fail_if("epoch")

    def on_train_end(self, training):
        self.fail_if("end")

    def fail_if(self, where):
        if where == self.where:
            raise OSError("no space left on device")


# The protocol


def test_callback_methods_are_called_in_order():
    recorder = Recorder()
    run(replace(QUICK, max_epochs=2), callbacks=[recorder])
    assert recorder.calls == [("begin", 0), ("epoch", 1), ("epoch", 2), ("end", 2)]


def test_callback_sees_best_weights_at_train_end():
    kept = []

    class Watch(Callback):
        def on_epoch_end(self, training):
            kept.append(weights(training.model))

        def on_train_end(self, training):
            assert_equal_weights(training.model, kept[1])
            kept.append("seen")

    scores = [0.3, 0.9, 0.5, 0.8]
    run(score=lambda n: scores[n - 1], callbacks=[Watch()])
    assert kept[-1] == "seen"


def test_callback_stops_training():
    class Enough(Callback):
        def on_epoch_end(self, training):
            training.stop = training.history.rows[-1]["epoch"] >= 2

    _, history = run(callbacks=[Enough()])
    assert len(history.rows) == 2


@pytest.mark.parametrize("where", ["begin", "epoch", "end"])
def test_callback_on_train_end_is_called_after_error(tmp_path, where):
    before, after = Recorder(), Recorder()
    settings = replace(QUICK, max_epochs=2, checkpoint=tmp_path / "run.pt")
    with pytest.raises(OSError, match="no space"):
        run(settings, callbacks=[before, FailingCallback(where), after])
    n_epochs = {"begin": 0, "epoch": 1, "end": 2}[where]
    assert before.calls[0] == ("begin", 0) and before.calls[-1] == ("end", n_epochs)
    assert [name for name, _ in before.calls].count("end") == 1
    assert bool(after.calls) == (where != "begin")
    assert (tmp_path / "run.pt").exists() == (n_epochs > 0)


@pytest.mark.parametrize("wrong", ["print", 3, None, Recorder])
def test_callbacks_rejects_other_objects(wrong):
    with pytest.raises(TypeError, match=r"callbacks\[1\] must be a latent_morph.Callback .*, got"):
        run(callbacks=[Recorder(), wrong])


@pytest.mark.parametrize(
    "kind", [LatentODEClassifier, LatentODEPointClassifier, LatentODEReconstructor]
)
def test_callbacks_of_estimators(kind, tmp_path):
    recorder = Recorder()
    model = kind(**TINY, callbacks=[recorder]).fit(*sines(12))
    assert recorder.calls == [("begin", 0), ("epoch", 1), ("end", 1)]
    assert model.get_params()["callbacks"] == [recorder]
    assert kind.load(model.save(tmp_path / "m")).callbacks is None
    assert clone(model).callbacks[0] is not recorder
    assert pickle.loads(pickle.dumps(model)).callbacks[0].calls == recorder.calls


def test_callbacks_of_dynamics_regressor():
    recorder = Recorder()
    options = DYNAMICS | {"max_epochs": 3, "validation_fraction": 0.25}
    model = DynamicsRegressor(**options, callbacks=[recorder]).fit(spirals(8))
    begins = [place for place, call in enumerate(recorder.calls) if call == ("begin", 0)]
    assert len(begins) == 2  # one run chooses the epoch, one refits
    assert recorder.calls[-1] == ("end", model.best_epoch_)


# Callbacks of the package


@pytest.mark.parametrize(
    ("options", "scores", "n_epochs"),
    [
        ({}, [1, 2, 3, 2, 2, 9], 5),
        ({"lower_is_better": True}, [5, 4, 4, 4, 1, 1], 4),
        ({"metric": "absent"}, [1, 1, 1, 1, 1, 1], 6),
    ],
)
def test_early_stopping_patience(options, scores, n_epochs):
    settings = replace(QUICK, max_epochs=6)
    _, history = run(
        settings,
        score=lambda n: float(scores[n - 1]),
        callbacks=[EarlyStopping(2, **options)],
    )
    assert len(history.rows) == n_epochs


def test_early_stopping_stops_resumed_run(tmp_path):
    settings = replace(QUICK, max_epochs=6, patience=1, checkpoint=tmp_path / "run.pt")
    _, history = run(settings, score=lambda n: -float(n))
    assert len(history.rows) == 2
    model, again = run(replace(settings, resume=True), score=lambda n: -float(n))
    assert len(again.rows) == 2
    _, more = run(replace(settings, resume=True, patience=2), score=lambda n: -float(n))
    assert len(more.rows) == 3


@pytest.mark.parametrize("wrong", [0, 1.5, None])
def test_early_stopping_rejects_patience(wrong):
    with pytest.raises((TypeError, ValueError), match="patience must be"):
        EarlyStopping(wrong)


def test_checkpoint_callback_can_be_resumed(tmp_path):
    path = tmp_path / "run.pt"
    settings = replace(QUICK, schedule="constant")
    loss = LatentODELoss()  # without annealing, which depends on the number of epochs
    whole, _ = run(settings, loss=loss)
    run(replace(settings, max_epochs=2), loss=loss, callbacks=[Checkpoint(path)])
    resumed, history = run(replace(settings, checkpoint=path, resume=True), loss=loss)
    assert len(history.rows) == 4
    assert_equal_weights(whole, resumed)


def test_checkpoint_callback_interval(tmp_path):
    n_rows = []

    class Look(Callback):
        def on_epoch_end(self, training):
            n_rows.append(len(torch.load(path)["rows"]) if path.exists() else 0)

    path = tmp_path / "run.pt"
    run(callbacks=[Checkpoint(path, every=0.0), Look()])
    assert n_rows == [1, 2, 3, 4]
    n_rows.clear()
    path.unlink()
    run(callbacks=[Checkpoint(path), Look()])
    assert n_rows == [0, 0, 0, 0] and len(torch.load(path)["rows"]) == 4


def read_table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_csv_log_keeps_epochs_before_interruption(tmp_path):
    table = tmp_path / "history.csv"
    settings = replace(QUICK, checkpoint=tmp_path / "run.pt")
    with pytest.raises(OSError):
        run(settings, score=float, callbacks=[CSVLog(table), FailingCallback("epoch")])
    assert [row["epoch"] for row in read_table(table)] == ["1"]
    _, history = run(replace(settings, resume=True), score=float, callbacks=[CSVLog(table)])
    rows = read_table(table)
    assert [float(row["train_loss"]) for row in rows] == [r["train_loss"] for r in history.rows]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4]
    assert "validation_score" in rows[0]


@pytest.mark.parametrize("kind", [CSVLog, Checkpoint])
def test_file_callbacks_reject_absent_folder_before_training(tmp_path, kind):
    recorder = Recorder()
    with pytest.raises(
        FileNotFoundError, match=r"must be in an existing folder, got .*absent.file"
    ):
        run(callbacks=[kind(tmp_path / "absent" / "file"), recorder])
    assert recorder.calls == []


def test_tensorboard_log_writes_every_column(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log = TensorBoardLog(tmp_path / "board")
    _, history = run(score=float, callbacks=[log])
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == set(history.rows[0]) - {"epoch"}
    points = events.Scalars("validation_score")
    assert [(point.step, point.value) for point in points] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    pickle.dumps(log)  # nothing of the file is left open


def test_tensorboard_log_without_tensorboard(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"latent_morph\[tensorboard\]"):
        run(callbacks=[TensorBoardLog(tmp_path)])


# Logging


@contextmanager
def bare_logging():
    """Logging without configuration; pytest configures it for each phase of a test."""
    root, own = logging.getLogger(), logging.getLogger("latent_morph")
    before = [(log, log.handlers[:], log.level) for log in (root, own)]
    root.handlers.clear(), own.handlers.clear()
    root.setLevel(logging.WARNING), own.setLevel(logging.NOTSET)
    yield own
    after = own.handlers[:], own.level
    for log, handlers, level in before:
        log.handlers[:] = handlers
        log.setLevel(level)
    assert after[0] == [], "a handler was left behind"


def test_verbose_without_logging_configuration(capsys):
    with bare_logging() as log:
        LatentODEClassifier(**TINY | {"max_epochs": 2}, verbose=1).fit(*sines(12))
        assert log.level == logging.NOTSET
    out, err = capsys.readouterr()
    assert out == "" and [line[:9] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]


def test_verbose_off_prints_nothing(capsys):
    with bare_logging():
        LatentODEClassifier(**TINY).fit(*sines(12))
    assert capsys.readouterr() == ("", "")


def test_verbose_uses_configured_handlers(capsys):
    stream = io.StringIO()
    with bare_logging():
        logging.getLogger().addHandler(logging.StreamHandler(stream))
        DynamicsRegressor(**DYNAMICS | {"max_epochs": 2}, verbose=True).fit(spirals())
    assert capsys.readouterr() == ("", "")
    assert stream.getvalue().count("epoch ") == 2


def test_verbose_keeps_configured_level(capsys):
    with bare_logging() as log:
        log.setLevel(logging.ERROR)
        LatentODEClassifier(**TINY, verbose=1).fit(*sines(12))
        assert log.level == logging.ERROR
    assert capsys.readouterr() == ("", "")


COMMANDS = {LIBRARY / "experiments" / "cli.py"}


@pytest.mark.parametrize(
    "path", sorted({*LIBRARY.rglob("*.py")} - COMMANDS), ids=lambda path: path.stem
)
def test_library_has_no_print(path):
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if getattr(part, "name", None) != "main"]  # commands
    names = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "print" not in [name.id for name in names if isinstance(name, ast.Name)]
