"""Seconds per epoch of Human Activity, and per prediction pass, by encoder and ODE."""

import time
from typing import Any

import numpy as np
import torch

from benchmarks.models import load_problem
from benchmarks.rows import Row
from latent_morph.diagnostics import Timing
from latent_morph.estimators.latent import LatentODEBase
from latent_morph.experiments.presets import override
from latent_morph.experiments.registry import get_learner
from latent_morph.losses import LatentODELoss
from latent_morph.models import LatentODE, LatentOutput
from latent_morph.series import SeriesBatch
from latent_morph.training import make_optimizer

TITLE = "An epoch of Human Activity, from batches of it"

# Encoder + ODE; the last two have the paper's architecture and sizes.
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
N_STEPS = 4  # per round
PARTS = ("encoder", "integration", "decoder_and_loss", "backward", "optimizer")


def run(*, short: bool) -> list[Row]:
    """Times training steps of all candidates in turn, after some training of each."""
    data = load_problem("activity", 100, None)
    warmup, repeats = (3.0, 3) if short else (20.0, 10)
    candidates = {
        name: _Candidate(spec, data.train_X, data.train_y, warmup)
        for name, spec in CANDIDATES.items()
    }
    for candidate in candidates.values():
        candidate.run_round()
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, candidate in candidates.items():
            samples[name] += candidate.run_round()
    reference = _summarise(samples["morph"]).median_ms * candidates["morph"].n_batches
    rows: list[Row] = []
    for name, candidate in candidates.items():
        timing = _summarise(samples[name])
        epoch_ms = timing.median_ms * candidate.n_batches
        parts = {
            f"{part}_ms": float(1e3 * np.mean([sample[part] for sample in samples[name]]))
            for part in PARTS
        }
        rows.append(
            {
                "task": f"activity epoch ({data.source})",
                "candidate": name,
                **timing._asdict(),
                "ratio_to_morph": epoch_ms / reference,
                "threads": torch.get_num_threads(),
                "batch": candidate.batch_size,
                "epoch_s": epoch_ms / 1e3,
                "prediction_pass_s": float(
                    np.mean([sample["prediction"] for sample in samples[name]])
                    * candidate.n_batches
                ),
                **parts,
            }
        )
    return rows


def _summarise(steps: list[dict[str, float]]) -> Timing:
    return Timing.from_samples([1e3 * sum(step[part] for part in PARTS) for step in steps])


class _Candidate:
    """A briefly trained model, one batch, and an optimiser."""

    def __init__(
        self, spec: dict[str, Any], X: SeriesBatch, y: np.ndarray, seconds: float
    ) -> None:
        given = {key: value for key, value in spec.items() if key != "preset"}
        params = override(get_learner("activity").parameters(spec["preset"], spec["ode"]), given)
        params["n_members"] = 1  # members are trained one after the other
        estimator: LatentODEBase = get_learner("activity").estimator(
            **params, budget=seconds, validation_fraction=0.0, random_state=0
        )
        estimator.fit(X, y)
        self.model: LatentODE = estimator.model_
        self.loss: LatentODELoss = estimator._loss(None)
        self.batch_size: int = estimator.batch_size
        self.n_batches = -(-len(X) // self.batch_size)
        self.batch = estimator._scale(X[: self.batch_size]).trim()
        codes = np.searchsorted(estimator.classes_, y[: self.batch_size])
        self.labels = torch.from_numpy(codes)
        self.optimizer = make_optimizer(self.model, "adamw", learning_rate=1e-5, weight_decay=0.01)

    def run_round(self) -> list[dict[str, float]]:
        """Times consecutive steps and predictions, as in an epoch.

        The first step of a round starts with the caches of another candidate and is not counted.
        """
        self.step()
        steps = [self.step() for _ in range(N_STEPS)]
        self.predict()
        return [step | {"prediction": self.predict()} for step in steps]

    def step(self) -> dict[str, float]:
        """Times the parts of one training step, in seconds."""
        model, batch = self.model.train(), self.batch
        assert model.head is not None
        clock = [time.perf_counter()]
        encoding = model.encoder(batch)
        z0 = encoding.mean + encoding.std * torch.randn_like(encoding.std)
        clock.append(time.perf_counter())
        trajectory = model.flow(z0, batch.times, query_mask=batch.present)
        clock.append(time.perf_counter())
        summary = None
        if model.summary is not None:
            summary = model.summary(batch.values, batch.times, batch.mask)
        logits = model.head(trajectory, encoding.states, batch.present, summary)
        output = LatentOutput(encoding, z0, trajectory, model.decoder(trajectory), logits)
        loss = self.loss.evaluate(output, batch, self.labels).total
        clock.append(time.perf_counter())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        clock.append(time.perf_counter())
        self.optimizer.step()
        clock.append(time.perf_counter())
        return dict(zip(PARTS, np.diff(clock).tolist(), strict=True))

    @torch.inference_mode()
    def predict(self) -> float:
        """Times the prediction of the batch, in seconds."""
        begin = time.perf_counter()
        self.model.eval()(self.batch)
        return time.perf_counter() - begin
