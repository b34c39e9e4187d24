"""Heartbeats of which few have a label: with and without a start from those that have none."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, f1_score
from sklearn.model_selection import train_test_split

from benchmarks.cache import Record, run_cached
from benchmarks.rows import Row
from latent_morph import FilterBankClassifier, LatentODEClassifier, LatentODEReconstructor
from latent_morph.datasets import fetch_ecg
from latent_morph.series import SeriesBatch

TITLE = "Few labels, many series"
RECORDS = Path("runs/few_labels")
SEEDS = 3
FRACTIONS = (0.05, 0.2, 1.0)
N_BEATS = 5000  # for training and for testing each
# Labels are passed over about as often, however many there are.
PRETRAINING_EPOCHS, EPOCHS, MAX_EPOCHS = 15, 20, 100
SIZES: dict[str, Any] = {"encoder_options": {"pool": 4, "dropout": 0.1}}
PRETRAINED = "latent ODE, pretrained"
METRICS = ("accuracy", "macro F1")


def run(*, short: bool, seeds: int | None = None, records: Path | None = None) -> list[Row]:
    """Makes one row per fraction of labels and metric, with means over seeds.

    Seconds are of a processor. Those of the pretraining, which is the same for all fractions of a
    seed, are in the column "pretraining s".
    """
    found: dict[float, list[Record]] = {fraction: [] for fraction in FRACTIONS}
    n_beats = 200 if short else N_BEATS
    for seed in range(1 if short else seeds or SEEDS):
        settings = {"n_beats": n_beats, "seed": seed, "short": short}
        path = (records or RECORDS) / f"{n_beats}_beats-seed_{seed}.json"

        def evaluate(seed: int = seed) -> Record:
            return {"fractions": _measure(n_beats, seed, short)}

        record = run_cached(path, settings, evaluate)
        for fraction in FRACTIONS:
            found[fraction].append(record["fractions"][f"{fraction:g}"])
    rows: list[Row] = []
    for fraction, results in found.items():
        for metric in METRICS:
            row: Row = {"task": "ecg", "labels": f"{fraction:.0%}", "metric": metric}
            for name in results[0]["scores"]:
                scores = [result["scores"][name][metric] for result in results]
                row[name] = float(np.mean(scores))
                row[f"{name} std"] = float(np.std(scores))
            for name in results[0]["seconds"]:
                row[f"{name} s"] = float(np.mean([each["seconds"][name] for each in results]))
            rows.append(row)
    return rows


def _measure(n_beats: int, seed: int, short: bool) -> dict[str, Record]:
    """Fits all methods with each fraction of the labels."""
    X, y = _draw_beats("train", n_beats, seed)
    test_X, test_y = _draw_beats("test", n_beats, seed)
    start = time.process_time()
    source = LatentODEReconstructor(
        **SIZES, max_epochs=1 if short else PRETRAINING_EPOCHS, random_state=seed
    ).fit(X)
    pretraining = time.process_time() - start
    answer = {}
    for fraction in FRACTIONS:
        labelled = np.arange(len(y))
        if fraction < 1:
            labelled, _ = train_test_split(
                labelled, train_size=fraction, stratify=y, random_state=seed
            )
        epochs = 1 if short else min(MAX_EPOCHS, round(EPOCHS / fraction))
        scratch = LatentODEClassifier(**SIZES, max_epochs=epochs, random_state=seed)
        models = {
            "latent ODE": scratch,
            PRETRAINED: LatentODEClassifier(**scratch.get_params() | {"init": source}),
            "filter bank": FilterBankClassifier(random_state=seed),
        }
        scores, seconds = {}, {"pretraining": pretraining}
        for name, model in models.items():
            print(f"seed {seed}, {fraction:.0%} of the labels, {name} ...", file=sys.stderr)
            start = time.process_time()
            predicted = model.fit(X[labelled], y[labelled]).predict(test_X)
            seconds[name] = time.process_time() - start
            scores[name] = {
                "accuracy": float(accuracy_score(test_y, predicted)),
                "macro F1": float(f1_score(test_y, predicted, average="macro")),
            }
        answer[f"{fraction:g}"] = {"scores": scores, "seconds": seconds}
    return answer


def _draw_beats(subset: str, n_beats: int, seed: int) -> tuple[SeriesBatch, np.ndarray]:
    """Draws beats at random, with the classes in their proportions."""
    X, y = fetch_ecg(subset=subset, download_if_missing=False, return_X_y=True)
    chosen, _ = train_test_split(
        np.arange(len(y)), train_size=n_beats, stratify=y, random_state=seed
    )
    return X[chosen].trim(), y[chosen]
