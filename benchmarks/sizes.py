"""The INN's sizes and activation against what they cost and what they score, on validation."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from benchmarks.models import SETTINGS, Setting, problem, query
from benchmarks.rows import Row, timed_rows
from latent_morph.diagnostics import interleaved
from latent_morph.experiments.presets import preset_parameters
from latent_morph.experiments.tasks import TASKS

TITLE = "Sizes of the INN: time of an integration, and validation score after equal epochs"

# The first is the compact preset, to which ratios are.
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
    """Ratios are to the compact preset. The test sets are not touched."""
    rows: list[Row] = []
    for task, epochs in EPOCHS.items():
        if only not in (None, task):
            continue
        setting = SETTINGS[task]
        models = {
            name: [
                _fitted(setting, options, epochs=2 if short else epochs, seed=seed)
                for seed in (SEEDS[:1] if short else SEEDS)
            ]
            for name, options in INNS.items()
        }
        calls = {name: _step(fitted[0], setting) for name, fitted in models.items()}
        timings = interleaved(calls, repeats=5 if short else 20)
        metric = TASKS[setting.dataset].metric
        sign = -1 if metric == "mse" else 1
        shown = {
            name: sign * fmean(model.history_[-1]["validation_score"] for model in fitted)
            for name, fitted in models.items()
        }
        reference = next(iter(timings.values())).median_ms
        found = timed_rows(task, timings, epochs=2 if short else epochs)
        for row in found:
            row["ratio_to_morph"] = row["median_ms"] / reference
            row[f"validation_{metric}"] = shown[row["candidate"]]
        rows += found
    return rows


def _step(model: Any, setting: Setting) -> Callable[[], Any]:  # noqa: ANN401
    """Forward and backward, which is what training pays for."""
    _, z0, times = query(model, setting)
    return lambda: model.model_.flow(z0, times).sum().backward()


def _fitted(
    setting: Setting,
    options: dict[str, Any],
    *,
    epochs: int,
    seed: int,
) -> Any:  # noqa: ANN401
    data = problem(setting.dataset, setting.n_times, None)
    params = preset_parameters(setting.dataset, "default", "morph") | {
        "ode": "morph",
        "ode_options": {"inn": options},
        "max_epochs": epochs,
        "random_state": seed,
    }
    return TASKS[setting.dataset].estimator(**params).fit(data.train_X, data.train_y)
