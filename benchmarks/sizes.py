"""Time and validation score of the INN by size and activation."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from benchmarks.models import SETTINGS, Setting, load_problem, make_query
from benchmarks.rows import Row, make_timing_rows
from latent_morph.diagnostics import time_interleaved
from latent_morph.experiments.registry import TASKS, get_learner

TITLE = "Sizes of the INN: time of an integration, and validation score after equal epochs"

# The first is the compact preset, to which times are relative.
INNS: dict[str, dict[str, Any]] = {
    "2 x 16 silu": {"blocks": 2, "width": 16},
    "1 x 32 silu": {"blocks": 1, "width": 32},
    "2 x 32 silu": {"blocks": 2, "width": 32},
    "4 x 16 silu": {"blocks": 4, "width": 16},
    "4 x 64 silu": {"blocks": 4, "width": 64},
    "2 x 16 tanh": {"blocks": 2, "width": 16, "activation": "tanh"},
    "2 x 16 gelu": {"blocks": 2, "width": 16, "activation": "gelu"},
}
SEEDS = (0, 1)
EPOCHS = {"periodic 100": 40, "activity": 4}


def run(*, short: bool, only: str | None = None) -> list[Row]:
    """Times integrations relative to the compact preset; test sets are not used."""
    rows: list[Row] = []
    for task, epochs in EPOCHS.items():
        if only not in (None, task):
            continue
        setting = SETTINGS[task]
        models = {
            name: [
                _fit(setting, options, epochs=2 if short else epochs, seed=seed)
                for seed in (SEEDS[:1] if short else SEEDS)
            ]
            for name, options in INNS.items()
        }
        calls = {name: _make_step(fitted[0], setting) for name, fitted in models.items()}
        timings = time_interleaved(calls, repeats=5 if short else 20)
        metric = TASKS[setting.dataset].metric
        sign = -1 if metric == "mse" else 1
        scores = {
            name: sign * fmean(model.history_[-1]["validation_score"] for model in fitted)
            for name, fitted in models.items()
        }
        reference = next(iter(timings.values())).median_ms
        task_rows = make_timing_rows(task, timings, epochs=2 if short else epochs)
        for row in task_rows:
            row["ratio_to_morph"] = row["median_ms"] / reference
            row[f"validation_{metric}"] = scores[row["candidate"]]
        rows += task_rows
    return rows


def _make_step(model: Any, setting: Setting) -> Callable[[], Any]:  # noqa: ANN401
    """Makes a forward and backward pass, as in training."""
    _, z0, times = make_query(model, setting)
    return lambda: model.model_.flow(z0, times).sum().backward()


def _fit(
    setting: Setting,
    options: dict[str, Any],
    *,
    epochs: int,
    seed: int,
) -> Any:  # noqa: ANN401
    data = load_problem(setting.dataset, setting.n_times, None)
    params = get_learner(setting.dataset).parameters("default", "morph") | {
        "ode": "morph",
        "ode_options": {"inn": options},
        "max_epochs": epochs,
        "random_state": seed,
    }
    return get_learner(setting.dataset).estimator(**params).fit(data.train_X, data.train_y)
