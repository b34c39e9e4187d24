"""Callbacks see how training goes, keep records of it, and can end it; logging shows it."""

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

LIBRARY = Path(latent_morph.__file__).parent


class Diary(Callback):
    """Notes what it is told, in order."""

    def __init__(self):
        self.notes = []

    def on_train_begin(self, training):
        self.notes.append(("begin", len(training.history.rows)))

    def on_epoch_end(self, training):
        self.notes.append(("epoch", int(training.history.rows[-1]["epoch"])))

    def on_train_end(self, training):
        self.notes.append(("end", len(training.history.rows)))


class Bomb(Callback):
    def __init__(self, where):
        self.where = where

    def on_train_begin(self, training):
        self.go("begin")

    def on_epoch_end(self, training):
        self.go("epoch")

    def on_train_end(self, training):
        self.go("end")

    def go(self, where):
        if where == self.where:
            raise OSError("no space left on device")


# The protocol


def test_callbacks_are_told_in_order():
    diary = Diary()
    run(replace(QUICK, max_epochs=2), callbacks=[diary])
    assert diary.notes == [("begin", 0), ("epoch", 1), ("epoch", 2), ("end", 2)]


def test_at_the_end_the_best_weights_are_in_place():
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


def test_a_callback_can_end_training():
    class Enough(Callback):
        def on_epoch_end(self, training):
            training.stop = training.history.rows[-1]["epoch"] >= 2

    _, history = run(callbacks=[Enough()])
    assert len(history.rows) == 2


@pytest.mark.parametrize("where", ["begin", "epoch", "end"])
def test_the_end_is_told_to_all_that_began(tmp_path, where):
    before, after = Diary(), Diary()
    settings = replace(QUICK, max_epochs=2, checkpoint=tmp_path / "run.pt")
    with pytest.raises(OSError, match="no space"):
        run(settings, callbacks=[before, Bomb(where), after])
    n_epochs = {"begin": 0, "epoch": 1, "end": 2}[where]
    assert before.notes[0] == ("begin", 0) and before.notes[-1] == ("end", n_epochs)
    assert [name for name, _ in before.notes].count("end") == 1
    assert bool(after.notes) == (where != "begin")
    assert (tmp_path / "run.pt").exists() == (n_epochs > 0)


@pytest.mark.parametrize("wrong", ["print", 3, None, Diary])
def test_what_is_no_callback_is_refused_by_its_place(wrong):
    with pytest.raises(TypeError, match=r"callbacks\[1\] is .*; wanted a latent_morph.Callback"):
        run(callbacks=[Diary(), wrong])


@pytest.mark.parametrize(
    "kind", [LatentODEClassifier, LatentODEPointClassifier, LatentODEReconstructor]
)
def test_every_estimator_passes_its_callbacks_on(kind, tmp_path):
    diary = Diary()
    model = kind(**TINY, callbacks=[diary]).fit(*sines(12))
    assert diary.notes == [("begin", 0), ("epoch", 1), ("end", 1)]
    assert model.get_params()["callbacks"] == [diary]
    assert kind.load(model.save(tmp_path / "m")).callbacks is None
    assert clone(model).callbacks[0] is not diary
    assert pickle.loads(pickle.dumps(model)).callbacks[0].notes == diary.notes


def test_dynamics_passes_its_callbacks_on():
    diary = Diary()
    options = DYNAMICS | {"max_epochs": 3, "validation_fraction": 0.25}
    model = DynamicsRegressor(**options, callbacks=[diary]).fit(spirals(8))
    begins = [place for place, note in enumerate(diary.notes) if note == ("begin", 0)]
    assert len(begins) == 2  # chosen, then refitted
    assert diary.notes[-1] == ("end", model.best_epoch_)


# Those that come along


@pytest.mark.parametrize(
    ("options", "figures", "n_epochs"),
    [
        ({}, [1, 2, 3, 2, 2, 9], 5),
        ({"lower_is_better": True}, [5, 4, 4, 4, 1, 1], 4),
        ({"metric": "absent"}, [1, 1, 1, 1, 1, 1], 6),
    ],
)
def test_early_stopping(options, figures, n_epochs):
    settings = replace(QUICK, max_epochs=6)
    _, history = run(
        settings,
        score=lambda n: float(figures[n - 1]),
        callbacks=[EarlyStopping(2, **options)],
    )
    assert len(history.rows) == n_epochs


def test_a_run_that_was_stopped_stays_so_when_resumed(tmp_path):
    settings = replace(QUICK, max_epochs=6, patience=1, checkpoint=tmp_path / "run.pt")
    _, history = run(settings, score=lambda n: -float(n))
    assert len(history.rows) == 2
    model, again = run(replace(settings, resume=True), score=lambda n: -float(n))
    assert len(again.rows) == 2
    _, more = run(replace(settings, resume=True, patience=2), score=lambda n: -float(n))
    assert len(more.rows) == 3


@pytest.mark.parametrize("wrong", [0, 1.5, None])
def test_patience_is_a_count(wrong):
    with pytest.raises((TypeError, ValueError), match="patience must be"):
        EarlyStopping(wrong)


def test_a_checkpoint_of_the_callback_can_be_resumed_from(tmp_path):
    path = tmp_path / "run.pt"
    settings = replace(QUICK, schedule="constant", kl_warmup=0.0)
    whole, _ = run(settings)
    run(replace(settings, max_epochs=2), callbacks=[Checkpoint(path)])
    resumed, history = run(replace(settings, checkpoint=path, resume=True))
    assert len(history.rows) == 4
    assert_equal_weights(whole, resumed)


def test_a_checkpoint_is_written_now_and_then(tmp_path):
    found = []

    class Look(Callback):
        def on_epoch_end(self, training):
            found.append(len(torch.load(path)["rows"]) if path.exists() else 0)

    path = tmp_path / "run.pt"
    run(callbacks=[Checkpoint(path, every=0.0), Look()])
    assert found == [1, 2, 3, 4]
    found.clear()
    path.unlink()
    run(callbacks=[Checkpoint(path), Look()])
    assert found == [0, 0, 0, 0] and len(torch.load(path)["rows"]) == 4


def read_table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_table_has_every_epoch_those_before_an_interruption_too(tmp_path):
    table = tmp_path / "history.csv"
    settings = replace(QUICK, checkpoint=tmp_path / "run.pt")
    with pytest.raises(OSError):
        run(settings, score=float, callbacks=[CSVLog(table), Bomb("epoch")])
    assert [row["epoch"] for row in read_table(table)] == ["1"]
    _, history = run(replace(settings, resume=True), score=float, callbacks=[CSVLog(table)])
    rows = read_table(table)
    assert [float(row["train_loss"]) for row in rows] == [r["train_loss"] for r in history.rows]
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4]
    assert "validation_score" in rows[0]


@pytest.mark.parametrize("kind", [CSVLog, Checkpoint])
def test_a_missing_folder_is_named_before_training(tmp_path, kind):
    diary = Diary()
    with pytest.raises(FileNotFoundError, match=r"absent.file; there is no such folder"):
        run(callbacks=[kind(tmp_path / "absent" / "file"), diary])
    assert diary.notes == []


def test_tensorboard_gets_every_figure(tmp_path):
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


def test_without_tensorboard_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"latent_morph\[tensorboard\]"):
        run(callbacks=[TensorBoardLog(tmp_path)])


# Logging


@contextmanager
def bare_logging():
    """Logging as a fresh interpreter has it; pytest sets it up anew for each phase of a test."""
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


def test_verbose_is_seen_without_setting_up_logging(capsys):
    with bare_logging() as log:
        LatentODEClassifier(**TINY | {"max_epochs": 2}, verbose=1).fit(*sines(12))
        assert log.level == logging.NOTSET
    out, err = capsys.readouterr()
    assert out == "" and [line[:9] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]


def test_without_verbose_nothing_is_shown(capsys):
    with bare_logging():
        LatentODEClassifier(**TINY).fit(*sines(12))
    assert capsys.readouterr() == ("", "")


def test_verbose_goes_where_logging_was_set_up_to_go(capsys):
    stream = io.StringIO()
    with bare_logging():
        logging.getLogger().addHandler(logging.StreamHandler(stream))
        DynamicsRegressor(**DYNAMICS | {"max_epochs": 2}, verbose=True).fit(spirals())
    assert capsys.readouterr() == ("", "")
    assert stream.getvalue().count("epoch ") == 2


def test_a_level_that_somebody_chose_is_kept(capsys):
    with bare_logging() as log:
        log.setLevel(logging.ERROR)
        LatentODEClassifier(**TINY, verbose=1).fit(*sines(12))
        assert log.level == logging.ERROR
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("path", sorted(LIBRARY.rglob("*.py")), ids=lambda path: path.stem)
def test_the_library_prints_nothing(path):
    tree = ast.parse(path.read_text())
    tree.body = [part for part in tree.body if getattr(part, "name", None) != "main"]  # commands
    names = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert "print" not in [name.id for name in names if isinstance(name, ast.Name)]
