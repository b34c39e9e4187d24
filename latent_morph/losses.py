"""What training minimises: negative log-likelihood, KL divergence and cross-entropy, weighted."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from latent_morph.encoders import Encoding
from latent_morph.models.decoders import Emission
from latent_morph.models.dynamics import Rollout
from latent_morph.models.latent_ode import LatentOutput
from latent_morph.series import SeriesBatch


class Loss(NamedTuple):
    """The number to minimise and its parts, unweighted, for the record."""

    total: Tensor
    parts: dict[str, Tensor]


def negative_log_likelihood(emission: Emission, values: Tensor, mask: Tensor) -> Tensor:
    """(N,) mean over the observed values of each series; 0 for a series without any."""
    # Masked before anything can overflow: infinity times zero is not zero.
    scaled = torch.where(mask, values - emission.mean, 0.0) / emission.std
    terms = 0.5 * scaled.square() + emission.std.log() + 0.5 * math.log(2 * math.pi)
    return (terms * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)


def count_values(target: SeriesBatch) -> Tensor:
    """(N,) how many values of each series were observed, at least 1."""
    return target.mask.sum((1, 2)).clamp(min=1)


def kl_from_standard_normal(encoding: Encoding) -> Tensor:
    """(N,) divergence of the posterior over z0 from a standard normal."""
    variance = encoding.std.square()
    return 0.5 * (variance + encoding.mean.square() - 1 - variance.log()).sum(-1)


def cross_entropy(logits: Tensor, labels: Tensor, class_weight: Tensor | None) -> Tensor:
    """(N,) from logits (N, K) with labels (N,), or (N, T, K) with (N, T); -1 is no label.

    Over time points the mean is taken.
    """
    flat = F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), class_weight, reduction="none", ignore_index=-1
    ).view(labels.shape)
    if labels.ndim == 1:
        return flat
    return flat.sum(-1) / (labels >= 0).sum(-1).clamp(min=1)


@dataclass(frozen=True)
class Objective:
    """Weights of the parts; each part is a mean over cases.

    The evidence lower bound of a series with n observed values, divided by n, is
    likelihood - KL / n: that is `reconstruction_weight = kl_weight = 1`. A classifier's weights
    are to be read against 1 for `classification_weight`.
    """

    reconstruction_weight: float = 1.0
    kl_weight: float = 1.0
    classification_weight: float = 1.0

    def __call__(
        self,
        output: LatentOutput,
        target: SeriesBatch,
        labels: Tensor | None = None,
        *,
        kl_share: float = 1.0,
        class_weight: Tensor | None = None,
        case_weight: Tensor | None = None,
        n_values: Tensor | None = None,
    ) -> Loss:
        """The loss of a batch.

        Args:
            output: What the model said, at the times of `target`.
            target: What was there.
            labels: (N,) or (N, T) class codes, -1 for none.
            kl_share: Annealing: the share of `kl_weight` in force.
            class_weight: (K,) factors of the classes.
            case_weight: (N,) factors of the cases, in the parts too; 1 on average keeps the scale
                of the loss.
            n_values: (N,) observed values of each series, if `target` is but a sample of them.
        """
        if n_values is None:
            n_values = count_values(target)
        parts = {
            "nll": negative_log_likelihood(output.emission, target.values, target.mask),
            "kl": kl_from_standard_normal(output.encoding),
        }
        each = (
            self.reconstruction_weight * parts["nll"]
            + self.kl_weight * kl_share * parts["kl"] / n_values
        )
        if labels is not None:
            if output.logits is None:
                raise ValueError("labels were given to a model without a head")
            parts["cross_entropy"] = cross_entropy(output.logits, labels, class_weight)
            each = each + self.classification_weight * parts["cross_entropy"]
        if case_weight is not None:
            each = each * case_weight
            parts = {name: part * case_weight for name, part in parts.items()}
        return Loss(each.mean(), {name: part.detach().mean() for name, part in parts.items()})


class RolloutLoss:
    """The error of roll-outs, an average over values, plus that of the velocities.

    Roll-outs from a trajectory's own start and those from other points of it weigh the same.

    Args:
        loss: "mae" or "mse".
        velocity_weight: Of the error of the velocities against 1 for that of the states.
    """

    def __init__(self, loss: str = "mae", *, velocity_weight: float = 0.0) -> None:
        self.error: Callable[[Tensor], Tensor] = torch.abs if loss == "mae" else torch.square
        self.velocity_weight = velocity_weight

    def __call__(
        self, output: Rollout, *_: object, case_weight: Tensor | None = None, **__: object
    ) -> Loss:
        """The loss of a batch; nothing but the roll-outs and their weights matters.

        Args:
            output: The roll-outs.
            case_weight: (N,) how much each trajectory counts; all alike by default.
        """
        # What is masked is no miss, before it is squared: it may be large.
        error = self.error((output.states - output.target) * output.mask)
        share = output.mask
        if case_weight is not None:
            factor = case_weight.repeat(len(error) // output.n_own).view(-1, 1, 1)
            error, share = factor * error, factor * share
        rest = error.shape[0] - output.n_own
        if not rest:
            parts = {"rollout": _mean(error, share)}
            total = parts["rollout"]
        else:
            sizes = (output.n_own, rest)
            errors, shares = error.split_with_sizes(sizes), share.split_with_sizes(sizes)
            parts = dict(zip(("rollout", "restarts"), map(_mean, errors, shares), strict=True))
            total = 0.5 * (parts["rollout"] + parts["restarts"])
        if output.velocity is not None:
            found, wanted, case = output.velocity
            error = self.error(found - wanted)
            if case_weight is None:
                parts["velocity"] = error.mean()
            else:
                factor = case_weight[case]
                parts["velocity"] = (factor @ error).mean() / factor.sum()
            total = total + self.velocity_weight * parts["velocity"]
        return Loss(total, {name: part.detach() for name, part in parts.items()})


def _mean(error: Tensor, share: Tensor) -> Tensor:
    """Of the errors, each of which counts by its share; zero where none does."""
    count = share.sum(dtype=error.dtype)
    return error.sum() / count.clamp(min=torch.finfo(error.dtype).tiny)
