"""The benchmarks run, on less than they are made for, and their rows have what readers expect."""

import json

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import epoch, growth, integration, memory, models, roofline, sizes
from benchmarks.rows import as_markdown, timed_rows
from latent_morph.diagnostics import Timing

KEYS = {"task", "candidate", "mean_ms", "std_ms", "ratio_to_morph", "threads"}


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
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def barely_trained(setting, candidate, *, seconds, n_cases=None):
    return models.trained(setting, candidate, seconds=0.2, n_cases=n_cases)


def a_little_activity(dataset, n_times, n_cases):
    return models.TASKS[dataset].load(models.Request(source="synthetic", n_cases=100))


@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_every_benchmark(name, less, tmp_path, capsys):
    files = {kind: tmp_path / f"out.{kind}" for kind in ("json", "md", "png")}
    words = [name, "--short", "--json", str(files["json"]), "--plot", str(files["png"])]
    assert command.main([*words, "--markdown", str(files["md"])]) == 0
    rows = json.loads(files["json"].read_text())
    assert rows and all(row.keys() >= KEYS for row in rows)
    assert all(row["mean_ms"] > 0 and row["threads"] == 1 for row in rows)
    if name in ("integration", "growth", "epoch", "roofline"):
        ratios = [row["ratio_to_morph"] for row in rows if row["candidate"] == "morph"]
        assert ratios == pytest.approx([1.0] * len(ratios))
    if name == "integration":
        evaluations = {row["candidate"]: row["field_evaluations"] for row in rows}
        assert evaluations == {"morph": None, "euler": 99}
    assert rows[0]["candidate"] in capsys.readouterr().out
    assert f"python -m benchmarks {name} --short" in files["md"].read_text()
    assert files["png"].stat().st_size > 1000


def test_ratios_and_tables():
    timings = {"morph": Timing(2.0, 0.1), "rk4": Timing(50.0, 3.0)}
    rows = timed_rows("a task", timings, size=7, field_evaluations={"rk4": 40})
    assert [row["ratio_to_morph"] for row in rows] == [1.0, 25.0]
    assert [row["field_evaluations"] for row in rows] == [None, 40] and rows[1]["size"] == 7
    assert "| a task | rk4 | 50 | 3 | 25 |" in as_markdown(rows)


def test_peak_memory_sees_what_a_call_holds():
    peak = memory.peak_above(lambda: torch.ones(50_000_000 // 4))
    assert peak is None or 40 < peak < 80


def test_refuses_no_threads(capsys):
    assert command.main(["growth", "--threads", "0"]) == 2
    assert "--threads must be at least 1, got 0" in capsys.readouterr().err
