"""What training minimises: negative log-likelihood, KL divergence and cross-entropy, weighted."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from latent_morph.decoders import Emission
from latent_morph.encoders import Encoding
from latent_morph.models import LatentOutput
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
