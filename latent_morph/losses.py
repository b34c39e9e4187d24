"""Losses of latent ODEs and of roll-outs of learned dynamics.

The training loop takes any callable `(model, examples, step) -> Loss`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from latent_morph.encoders import Encoding
from latent_morph.models.decoders import Emission
from latent_morph.models.dynamics import (
    DynamicsModel,
    Rollout,
    Starts,
    first_complete,
    random_rows,
    starts_at,
)
from latent_morph.models.latent_ode import LatentODE, LatentOutput
from latent_morph.models.linear_fit import finite_differences
from latent_morph.series import Examples, SeriesBatch, subsample


class Loss(NamedTuple):
    """The total to minimize, and its parts, without their weights, for the history."""

    total: Tensor
    parts: dict[str, Tensor]


class Step(NamedTuple):
    """The state of training that a loss may depend on.

    Attributes:
        progress: From 0 at the start to 1 at the end, for annealing.
        generator: Source of noise.
        random: Source of random choices.
    """

    progress: float
    generator: torch.Generator | None
    random: np.random.RandomState


class LossFunction(Protocol):
    """A loss for `latent_morph.training.train`."""

    def __call__(self, model: Any, examples: Examples, step: Step) -> Loss:  # noqa: ANN401
        """Returns the loss of `model` on a batch of training examples."""


# The latent ODE


def negative_log_likelihood(emission: Emission, values: Tensor, mask: Tensor) -> Tensor:
    """Returns (N,) the mean over the observed values of each series, 0 if it has none."""
    # Masked first, since an overflow would remain: infinity times zero is NaN.
    scaled = torch.where(mask, values - emission.mean, 0.0) / emission.std
    terms = 0.5 * scaled.square() + emission.std.log() + 0.5 * math.log(2 * math.pi)
    return (terms * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)


def count_values(target: SeriesBatch) -> Tensor:
    """Returns (N,) the number of observed values of each series, at least 1."""
    return target.mask.sum((1, 2)).clamp(min=1)


def kl_from_standard_normal(encoding: Encoding) -> Tensor:
    """Returns (N,) the divergence of the posterior over z0 from a standard normal."""
    variance = encoding.std.square()
    return 0.5 * (variance + encoding.mean.square() - 1 - variance.log()).sum(-1)


def cross_entropy(logits: Tensor, labels: Tensor, class_weight: Tensor | None) -> Tensor:
    """Returns (N,), from logits (N, K) and labels (N,), or from (N, T, K) and (N, T).

    A label of -1 is missing. The loss of a series is the mean over its labeled time points.
    """
    flat = F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), class_weight, reduction="none", ignore_index=-1
    ).view(labels.shape)
    if labels.ndim == 1:
        return flat
    return flat.sum(-1) / (labels >= 0).sum(-1).clamp(min=1)


@dataclass(frozen=True)
class LatentODELoss:
    """Negative log-likelihood, KL divergence and cross-entropy, each a mean over cases.

    The evidence lower bound of a series with n observed values, divided by n, is
    likelihood - KL / n, which is `reconstruction_weight = kl_weight = 1`.

    Attributes:
        reconstruction_weight: Weight of the negative log-likelihood.
        kl_weight: Weight of the divergence per observed value.
        classification_weight: Weight of the cross-entropy.
        kl_warmup: Fraction of training over which the weight of the divergence rises from 0.
        sample_z0: Draw z0 from its posterior instead of taking the posterior's mean.
        keep: Fraction of the rows that the encoder is given, drawn in every step; None gives all.
        target_points: Compare with at most so many random rows if the target differs from the
            inputs; None compares with all.
        class_weight: (K,) weights of the classes.
    """

    reconstruction_weight: float = 1.0
    kl_weight: float = 1.0
    classification_weight: float = 1.0
    kl_warmup: float = 0.0
    sample_z0: bool = True
    keep: float | None = None
    target_points: int | None = None
    class_weight: Tensor | None = None

    def __call__(self, model: LatentODE, examples: Examples, step: Step) -> Loss:
        """Returns the loss of a batch of training examples."""
        inputs, target = examples.inputs, examples.target
        if self.keep is not None:
            target = inputs if target is None else target
            inputs = subsample(inputs, self.keep, step.random)
        n_values = count_values(inputs if target is None else target)
        query_times, query_mask = None, None
        if target is not None:
            target = subsample(target, 1.0, step.random, max_rows=self.target_points)
            query_times, query_mask = target.times, target.present
        output = model(
            inputs,
            query_times,
            static=examples.static,
            query_mask=query_mask,
            sample=self.sample_z0,
            generator=step.generator,
        )
        return self.evaluate(
            output,
            inputs if target is None else target,
            examples.labels,
            kl_factor=min(1.0, step.progress / self.kl_warmup) if self.kl_warmup > 0 else 1.0,
            weight=examples.weight,
            n_values=n_values,
        )

    def evaluate(
        self,
        output: LatentOutput,
        target: SeriesBatch,
        labels: Tensor | None = None,
        *,
        kl_factor: float = 1.0,
        weight: Tensor | None = None,
        n_values: Tensor | None = None,
    ) -> Loss:
        """Returns the loss of an output.

        Args:
            output: The model's output at the times of `target`.
            target: The observations.
            labels: (N,) or (N, T) class codes, -1 for none.
            kl_factor: Factor of `kl_weight`, for annealing.
            weight: (N,) weights of the cases, of mean 1, applied to the parts too.
            n_values: (N,) observed values of each series, if `target` is a sample of them.
        """
        if n_values is None:
            n_values = count_values(target)
        parts = {
            "nll": negative_log_likelihood(output.emission, target.values, target.mask),
            "kl": kl_from_standard_normal(output.encoding),
        }
        total = (
            self.reconstruction_weight * parts["nll"]
            + self.kl_weight * kl_factor * parts["kl"] / n_values
        )
        if labels is not None:
            if output.logits is None:
                raise ValueError("labels must be None for a model without a head, got labels")
            parts["cross_entropy"] = cross_entropy(output.logits, labels, self.class_weight)
            total = total + self.classification_weight * parts["cross_entropy"]
        if weight is not None:
            total = total * weight
            parts = {name: part * weight for name, part in parts.items()}
        return Loss(total.mean(), {name: part.detach().mean() for name, part in parts.items()})


# Learned dynamics

ERRORS: dict[str, Callable[[Tensor], Tensor]] = {"mae": torch.abs, "mse": torch.square}


@dataclass(frozen=True)
class RolloutLoss:
    """The mean error of roll-outs, plus that of the velocities.

    Trajectories are rolled out from their own starts and from random rows, with equal weight in
    total. Each row of a trajectory is the start of the rest of it, which a model that appends
    zeros has to learn; without that it does not generalize to new starts.

    Attributes:
        error: "mae" or "mse".
        velocity_weight: Weight of the error of the field against finite differences of the data.
        restarts: Number of random starts per trajectory and step.
        start_noise: Standard deviation of the noise on starts, in scaled units.
        start_spread: Standard deviation of shifts of roll-outs, in scaled units: the start is
            shifted, and its target by an amount that fades to zero at the end.
        spread_fade: After a fraction s of the time, (1 - s) to this power remains of a shift.
    """

    error: str = "mae"
    velocity_weight: float = 0.0
    restarts: int = 0
    start_noise: float = 0.0
    start_spread: float = 0.0
    spread_fade: float = 1.0

    def __call__(self, model: DynamicsModel, examples: Examples, step: Step) -> Loss:
        """Returns the loss of a batch of training trajectories."""
        rollout = model.follow(self.draw_starts(examples.inputs, step.generator))
        loss = self.evaluate(rollout, len(examples), examples.weight)
        if not self.velocity_weight:
            return loss
        states, velocity, case = finite_differences(examples.inputs)
        weight = torch.ones_like(velocity)
        if examples.weight is not None:
            weight = weight * examples.weight[case].unsqueeze(-1)
        error = _weighted_mean(weight * ERRORS[self.error](model.field(states) - velocity), weight)
        return Loss(
            loss.total + self.velocity_weight * error,
            loss.parts | {"velocity": error.detach()},
        )

    def draw_starts(self, batch: SeriesBatch, generator: torch.Generator | None) -> Starts:
        """Returns the trajectories' own starts, then random ones, with noise and shifts."""
        row = first_complete(batch)
        if self.restarts:
            row = torch.cat([row, random_rows(batch, self.restarts, generator)])
        starts = starts_at(batch, row)
        states, target = starts.states, starts.target
        if self.start_noise:
            states = states + self.start_noise * _noise_like(states, generator)
        if self.start_spread:
            shift = self.start_spread * _noise_like(states, generator)
            states = states + shift
            fraction = starts.elapsed / starts.elapsed[:, -1:].clamp(min=1e-12)
            remaining = (1 - fraction).clamp(0, 1).pow(self.spread_fade).to(shift)
            target = torch.addcmul(target, remaining.unsqueeze(-1), shift.unsqueeze(1))
        return starts._replace(states=states, target=target)

    def evaluate(self, rollout: Rollout, n_own: int, weight: Tensor | None = None) -> Loss:
        """Returns the loss of roll-outs.

        Args:
            rollout: The roll-outs; the first `n_own` start where their trajectories do.
            n_own: Number of trajectories.
            weight: (n_own,) weight of each trajectory; 1 by default.
        """
        # Masked before it is squared, which could overflow.
        error = ERRORS[self.error]((rollout.states - rollout.target) * rollout.mask)
        weights = rollout.mask
        if weight is not None:
            factor = weight.repeat(len(error) // n_own).view(-1, 1, 1)
            error, weights = factor * error, factor * weights
        parts = {"rollout": _weighted_mean(error[:n_own], weights[:n_own])}
        total = parts["rollout"]
        if len(error) > n_own:
            parts["restarts"] = _weighted_mean(error[n_own:], weights[n_own:])
            total = (total + parts["restarts"]) / 2
        return Loss(total, {name: part.detach() for name, part in parts.items()})


def _weighted_mean(weighted: Tensor, weights: Tensor) -> Tensor:
    """Returns the mean of errors multiplied by their weights already; 0 if all weights are 0."""
    total = weights.sum(dtype=weighted.dtype)
    return weighted.sum() / total.clamp(min=torch.finfo(weighted.dtype).tiny)


def _noise_like(states: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(states.shape, generator=generator, device=states.device).to(states)
