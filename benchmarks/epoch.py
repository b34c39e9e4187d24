"""Seconds for an epoch of Human Activity, and for a prediction pass, by encoder and ODE."""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.models import problem
from benchmarks.rows import Row
from latent_morph.descent import Descent
from latent_morph.diagnostics import Timing
from latent_morph.estimators.base import LatentODEBase
from latent_morph.experiments.presets import preset_parameters
from latent_morph.experiments.tasks import TASKS
from latent_morph.losses import Objective
from latent_morph.models import LatentODE, LatentOutput
from latent_morph.series import SeriesBatch

TITLE = "An epoch of Human Activity, from batches of it"

# Encoder + ODE; the last ones are the paper's architecture at its sizes.
CANDIDATES: dict[str, dict[str, Any]] = {
    "morph": {"preset": "default", "ode": "morph"},
    "morph + linear": {"preset": "default", "ode": "linear"},
    "morph + rk4": {"preset": "default", "ode": "rk4"},
    "morph + dopri5": {"preset": "default", "ode": "dopri5"},
    "gru-ode + morph": {"preset": "default", "ode": "morph", "encoder": "gru-ode"},
    "gru-ode + dopri5": {"preset": "default", "ode": "dopri5", "encoder": "gru-ode"},
    "paper: gru-ode + morph": {"preset": "paper", "ode": "morph"},
    "paper: gru-ode + dopri5": {"preset": "paper", "ode": "dopri5"},
}
IN_A_ROW = 4
PARTS = ("encoder", "integration", "decoder_and_loss", "backward", "optimiser")


def run(*, short: bool) -> list[Row]:
    """Steps of all candidates in turn, after some training of each."""
    data = problem("activity", 100, None)
    warmup, repeats = (3.0, 3) if short else (20.0, 10)
    stages = {
        name: _Stage(spec, data.train_X, data.train_y, warmup) for name, spec in CANDIDATES.items()
    }
    for stage in stages.values():
        stage.turn()
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in stages}
    for _ in range(repeats):
        for name, stage in stages.items():
            taken[name] += stage.turn()
    reference = _timing(taken["morph"]).median_ms * stages["morph"].n_batches
    rows: list[Row] = []
    for name, stage in stages.items():
        timing = _timing(taken[name])
        epoch_ms = timing.median_ms * stage.n_batches
        parts = {
            f"{part}_ms": float(1e3 * np.mean([one[part] for one in taken[name]]))
            for part in PARTS
        }
        rows.append(
            {
                "task": f"activity epoch ({data.source})",
                "candidate": name,
                **timing._asdict(),
                "ratio_to_morph": epoch_ms / reference,
                "threads": torch.get_num_threads(),
                "batch": stage.batch_size,
                "epoch_s": epoch_ms / 1e3,
                "prediction_pass_s": float(
                    np.mean([one["prediction"] for one in taken[name]]) * stage.n_batches
                ),
                **parts,
            }
        )
    return rows


def _timing(steps: list[dict[str, float]]) -> Timing:
    return Timing.of([1e3 * sum(step[part] for part in PARTS) for step in steps])


class _Stage:
    """A model that has been trained for a while, one of its batches, and its optimiser."""

    def __init__(
        self, spec: dict[str, Any], X: SeriesBatch, y: np.ndarray, seconds: float
    ) -> None:
        params = preset_parameters("activity", spec["preset"], spec["ode"])
        params |= {key: value for key, value in spec.items() if key != "preset"}
        estimator: LatentODEBase = TASKS["activity"].estimator(
            **params, budget=seconds, validation_fraction=0.0, random_state=0
        )
        estimator.fit(X, y)
        self.model: LatentODE = estimator.model_
        self.objective: Objective = estimator._objective()
        self.batch_size: int = estimator.batch_size
        self.n_batches = -(-len(X) // self.batch_size)
        self.batch = estimator._scale(X[: self.batch_size]).trim()
        codes = np.searchsorted(estimator.classes_, y[: self.batch_size])
        self.labels = torch.from_numpy(codes)
        self.descent = Descent(self.model, learning_rate=1e-5, gradient_clip=1.0)

    def turn(self) -> list[dict[str, float]]:
        """Some steps and predictions in a row, as in an epoch.

        The first of a turn finds the caches that another candidate left, and is not counted.
        """
        self.step()
        steps = [self.step() for _ in range(IN_A_ROW)]
        self.predict()
        return [step | {"prediction": self.predict()} for step in steps]

    def step(self) -> dict[str, float]:
        """One step of training, part by part, in seconds."""
        model, batch = self.model.train(), self.batch
        assert model.head is not None
        clock = [time.perf_counter()]
        encoding = model.encoder(batch)
        z0 = encoding.mean + encoding.std * torch.randn_like(encoding.std)
        clock.append(time.perf_counter())
        trajectory = model.flow(z0, batch.times, wanted=batch.present)
        clock.append(time.perf_counter())
        logits = model.head(trajectory, encoding.states, batch.present)
        output = LatentOutput(encoding, z0, trajectory, model.decoder(trajectory), logits)
        loss = self.objective(output, batch, self.labels).total
        clock.append(time.perf_counter())
        self.descent.gradient(loss)
        clock.append(time.perf_counter())
        self.descent.move()
        clock.append(time.perf_counter())
        return dict(zip(PARTS, np.diff(clock).tolist(), strict=True))

    @torch.inference_mode()
    def predict(self) -> float:
        """Seconds for the class probabilities of the batch."""
        begin = time.perf_counter()
        self.model.eval()(self.batch)
        return time.perf_counter() - begin
