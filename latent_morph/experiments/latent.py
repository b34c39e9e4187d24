"""Learners of latent ODEs: reconstruction from few points, and classification."""

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
from torch import Tensor

from latent_morph.checks import check_choice
from latent_morph.diagnostics import Timing, count_field_evaluations, time_integrations, time_parts
from latent_morph.estimators import LatentODEReconstructor
from latent_morph.estimators.classifier import class_logits
from latent_morph.estimators.latent import LatentODEBase
from latent_morph.experiments.classification import (
    Classifications,
    choose_channels,
    compute_metrics,
    draw_confusion,
    draw_example,
)
from latent_morph.experiments.learner import Predictions
from latent_morph.experiments.presets import PAPER_CLASSIFICATION, PRESETS, paper_ode_options
from latent_morph.experiments.problem import Problem
from latent_morph.experiments.trained import Costs, TrainedLearner, check_flow
from latent_morph.series import SeriesBatch

# The closed forms, and the solvers of the paper's tables.
COMPARED_ODES = ("morph", "morph-real", "linear", "euler", "midpoint", "rk4", "dopri5", "dopri8")
TIMED_CASES = 50  # the batch of the paper's timings
DRAWN_CASES = 6
DRAWN_TIMES = 300  # enough for a smooth curve


class Curves(NamedTuple):
    """Reconstructions of some series at many times."""

    times: np.ndarray  # (Q,)
    mean: np.ndarray  # (N, Q, C)
    std: np.ndarray  # (N, Q, C)


class Reconstructions(NamedTuple):
    """Predictions of a reconstructor for the test series."""

    mean: np.ndarray  # (N, T, C) at the times of the targets
    curves: Curves  # of the first few series


class DecodedClassifications(NamedTuple):
    """Predictions of a latent ODE's classifier for the test series."""

    classified: Classifications
    residuals: np.ndarray  # (M,) of the reconstruction, at observed values, in units of the scale
    curves: Curves | None  # of the first series, where it has one label


@dataclass(frozen=True, kw_only=True)
class LatentLearner(TrainedLearner[LatentODEBase, Predictions], abc.ABC):
    """A learner for latent ODEs: presets and timings."""

    paper: Mapping[str, Any]  # parameters of the paper's preset
    paper_field: tuple[int, int]  # units and hidden layers of a solver's network there
    compared_odes: tuple[str, ...] = COMPARED_ODES

    def parameters(self, preset: str, ode: str) -> dict[str, Any]:
        check_choice("preset", preset, PRESETS)
        if preset == "default":
            return dict(self.default)
        params = {**self.paper, "ode_options": paper_ode_options(ode, *self.paper_field)}
        if ode.startswith("morph"):
            # At the paper's 1e-2 a network of 1,500 units diverges in the first steps: the loss of
            # an epoch of Human Activity was 1e12 to 1e13 for three seeds, clipped or not.
            params["learning_rate"] = 1e-3
        return params

    def check_options(self, estimator: LatentODEBase) -> None:
        check_flow(estimator, estimator.latent_dim)
        estimator._new_encoder(1)

    def measure(self, estimator: LatentODEBase, problem: Problem) -> Costs:
        batch, times = timed_query(estimator, problem)
        return Costs(
            len(batch),
            time_parts(estimator.model_, batch, times),
            count_field_evaluations(estimator.model_, batch, times),
        )

    def time_odes(
        self, estimators: Mapping[str, LatentODEBase], problem: Problem
    ) -> dict[str, Timing]:
        batch, times = timed_query(next(iter(estimators.values())), problem)
        models = {ode: estimator.model_ for ode, estimator in estimators.items()}
        return time_integrations(models, batch, times)


def timed_query(estimator: LatentODEBase, problem: Problem) -> tuple[SeriesBatch, Tensor]:
    """Returns scaled test series and (N, Q) query times, for timings."""
    inputs, scaler = problem.test_X[:TIMED_CASES], estimator.scaler_
    weight = next(estimator.model_.parameters())
    batch = scaler.transform(inputs).trim().to(weight.device, weight.dtype)
    if not isinstance(problem.test_y, SeriesBatch):
        return batch, batch.times
    targets = problem.test_y[:TIMED_CASES]
    return batch, scaler.scale_times(targets.times, inputs.times[:, 0]).to(weight.device)


@final
@dataclass(frozen=True, kw_only=True)
class ReconstructionLearner(LatentLearner[Reconstructions]):
    """Series to be reconstructed at the times of `test_y` from the points of `test_X`."""

    estimator: type[LatentODEBase] = LatentODEReconstructor
    paper_field: tuple[int, int] = (100, 2)

    def predict(self, estimator: LatentODEBase, problem: Problem) -> Reconstructions:
        inputs, targets = problem.test_X, problem.test_y
        return Reconstructions(
            mean=estimator.reconstruct(inputs, targets.times.numpy(), n_samples=0),
            curves=_decode(estimator, inputs[:DRAWN_CASES], targets[:DRAWN_CASES]),
        )

    def metrics(self, predictions: Reconstructions, problem: Problem) -> dict[str, float]:
        error = predictions.mean - problem.test_y.values.numpy()
        return {"mse": float(np.square(error[problem.test_y.mask.numpy()]).mean())}

    def figures(
        self, predictions: Reconstructions, problem: Problem, estimator: LatentODEBase
    ) -> dict[str, Any]:
        from latent_morph import plots

        curves = predictions.curves
        observed = problem.test_X[:DRAWN_CASES].to_ragged()
        truth = problem.test_y[:DRAWN_CASES].to_ragged()
        cases = [
            {
                "times": curves.times,
                "mean": mean[:, 0],
                "std": std[:, 0],
                "observed": (inputs[0], inputs[1][:, 0]),
                "truth": (target[0], target[1][:, 0]),
            }
            for inputs, target, mean, std in zip(
                observed, truth, curves.mean, curves.std, strict=True
            )
        ]
        return {
            **super().figures(predictions, problem, estimator),
            "reconstructions": plots.plot_reconstructions(cases),
        }


@final
@dataclass(frozen=True, kw_only=True)
class LatentClassificationLearner(LatentLearner[DecodedClassifications]):
    """Series with one label each, or with one label per time point."""

    paper: Mapping[str, Any] = field(default_factory=PAPER_CLASSIFICATION.copy)
    paper_field: tuple[int, int] = (500, 3)

    def validation_metric(self, estimator: Any) -> str:  # noqa: ANN401
        return estimator.monitor

    def predict(self, estimator: LatentODEBase, problem: Problem) -> DecodedClassifications:
        X = problem.test_X
        probabilities, residuals = [], []
        # One pass for both; `predict_proba` and `reconstruct` would encode the series twice.
        for chosen, output in estimator._outputs(estimator._validate_fitted(X)):
            part = estimator._scale(X[chosen]).trim()
            probabilities.append(class_logits(output).softmax(-1).cpu().numpy())
            residuals.append((output.emission.mean.cpu() - part.values)[part.mask].numpy())
        return DecodedClassifications(
            classified=Classifications(estimator.classes_, np.concatenate(probabilities)),
            residuals=np.concatenate(residuals),
            curves=_decode(estimator, X[0], X[0]) if np.ndim(problem.test_y) == 1 else None,
        )

    def metrics(self, predictions: DecodedClassifications, problem: Problem) -> dict[str, float]:
        mse = float(np.square(predictions.residuals).mean())
        return compute_metrics(predictions.classified, problem) | {"mse": mse}

    def figures(
        self, predictions: DecodedClassifications, problem: Problem, estimator: LatentODEBase
    ) -> dict[str, Any]:
        classified, curves = predictions.classified, predictions.curves
        return {
            **super().figures(predictions, problem, estimator),
            "confusion": draw_confusion(classified, problem),
            "example": draw_example(classified, problem)
            if curves is None
            else _draw_curves(classified, curves, problem),
        }


def _draw_curves(classified: Classifications, curves: Curves, problem: Problem) -> Any:  # noqa: ANN401
    """Draws the reconstruction of the first series, in the channel most often observed."""
    from latent_morph import plots

    times, values = problem.test_X[0].to_ragged()[0]
    (channel,) = choose_channels(values, 1)
    rows = ~np.isnan(values[:, channel])
    axes = plots.plot_reconstruction(
        curves.times,
        curves.mean[0, :, channel],
        curves.std[0, :, channel],
        observed=(times[rows], values[rows, channel]),
        channel_name=problem.channel_names[channel],
    )
    truth, label = (problem.class_names[y[0]] for y in (problem.test_y, classified.labels))
    title = f"class {truth}, predicted {label}"
    axes.set_title(title, loc="right", fontsize=10)  # the legend is at the left
    return axes


def _decode(estimator: LatentODEBase, inputs: SeriesBatch, span: SeriesBatch) -> Curves:
    """Reconstructs series at many times between the first and the last of `span`."""
    times = np.linspace(float(span.times.min()), float(span.times.max()), DRAWN_TIMES)
    return Curves(times, *estimator.reconstruct(inputs, times, return_std=True))
