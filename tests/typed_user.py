"""A user's own script, held to `mypy --strict` by test_typing.py; it is not run."""

from pathlib import Path
from typing import assert_type

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from latent_morph import (
    FLOWS,
    DynamicsRegressor,
    Flow,
    LatentODEClassifier,
    LatentODEPointClassifier,
    LatentODEReconstructor,
    SeriesBatch,
    as_series,
    from_long,
    plots,
)


def recipe(latent_dim: int) -> Flow:
    """What an estimator takes in place of a name."""
    return FLOWS["morph"](latent_dim, stable=True)


def main() -> None:
    """Everything a user calls."""
    table = pd.DataFrame(
        {"patient": [1, 1, 2], "hour": [0.0, 1.5, 0.3], "pulse": [70.0, 72.0, 80.0]}
    )
    batch = from_long(table, id="patient", time="hour")
    assert_type(batch, SeriesBatch)
    assert_type(batch[0], SeriesBatch)
    assert_type(as_series(np.zeros((2, 3))), SeriesBatch)
    assert_type(batch.to_ragged(), list[tuple[np.ndarray, np.ndarray]])

    classifier = LatentODEClassifier(ode="morph", ode_options={"seed": 0}, patience=5)
    assert_type(classifier.fit(batch, ["ill", "well"]), LatentODEClassifier)
    assert_type(classifier.predict(batch), np.ndarray)
    assert_type(classifier.predict_proba(batch), np.ndarray)
    assert_type(classifier.score(batch, ["ill", "well"]), float)
    assert_type(classifier.reconstruct(batch), np.ndarray)
    assert_type(classifier.reconstruct(batch, [0.5], return_std=False), np.ndarray)
    mean, std = classifier.reconstruct(batch, times=[0.5, 1.0], return_std=True)
    assert_type(mean, np.ndarray)
    assert_type(std, np.ndarray)
    assert_type(classifier.latent_trajectory(batch, times=[0.5]), np.ndarray)
    assert_type(classifier.save("model.safetensors"), Path)
    assert_type(LatentODEClassifier.load("model.safetensors"), LatentODEClassifier)
    assert_type(classifier.best_epoch_, int)
    assert_type(classifier.classes_, np.ndarray)

    points = LatentODEPointClassifier(class_weight="balanced").fit(batch, [["a", "b"], ["a"]])
    assert_type(points, LatentODEPointClassifier)
    assert_type(points.predict(batch), np.ndarray | list[np.ndarray])
    assert_type(points.predict_proba(batch, times=[0.5]), np.ndarray)
    assert_type(points.predict(batch, np.array([0.5])), np.ndarray)
    assert_type(points.score(batch, [["a", "b"], ["a"]]), float)

    model = LatentODEReconstructor(keep=0.5).fit(batch)
    assert_type(model, LatentODEReconstructor)
    assert_type(model.transform(batch), np.ndarray)
    assert_type(model.predict(batch, [2.0]), np.ndarray)
    assert_type(model.forecast(batch, ahead=[1.0, 2.0]), np.ndarray)
    assert_type(model.forecast(batch, [1.0], return_std=True), tuple[np.ndarray, np.ndarray])
    assert_type(model.sample(3, [0.0, 1.0], random_state=0), np.ndarray)
    assert_type(model.score(batch), float)

    motion = DynamicsRegressor(stable=True, goal=[0.0, 0.0]).fit([np.zeros((5, 2))])
    assert_type(motion, DynamicsRegressor)
    assert_type(motion.predict([1.0, 2.0], times=[0.0, 1.0]), np.ndarray)
    assert_type(motion.vector_field([[1.0, 2.0]]), np.ndarray)
    assert_type(motion.equilibrium_, np.ndarray | None)

    flow = FLOWS["dopri5"](4, rtol=1e-3)
    assert_type(flow, Flow)
    assert_type(flow.field(torch.zeros(4)), torch.Tensor)

    LatentODEReconstructor(ode=recipe)

    assert_type(plots.plot_vector_field(motion, [np.zeros((5, 2))]), Axes)
    assert_type(plots.plot_series(points, batch), np.ndarray)
    assert_type(plots.save_figure(plots.plot_history(model.history_), "curves.png"), Path)
