"""Descent: an optimiser that has all weights of a model in one vector, and so takes few steps."""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
}
_FUSED = ("adamw", "adam")


@final
class Descent:
    """Moves the weights of `model` down the gradient of a loss, in place.

    A small model is dozens of small tensors, and to visit each of them costs more than to compute
    with it. While a descent lasts, weights are windows on one vector and their gradients on
    another, so that one operation zeroes, measures, clips or moves them all. The weights keep
    their identity; `release` gives them memory of their own again.

    Args:
        model: What to train.
        optimizer: A name from `OPTIMIZERS`.
        learning_rate: Its learning rate, unless `move` is told another.
        weight_decay: Its weight decay.
        gradient_clip: Longest gradient, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        optimizer: str = "adamw",
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        gradient_clip: float | None = None,
    ) -> None:
        check_choice("optimizer", optimizer, OPTIMIZERS)
        self._longest = gradient_clip
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        kinds = dict.fromkeys((weight.device, weight.dtype) for weight in self._weights)
        joined = [
            _joined([w for w in self._weights if (w.device, w.dtype) == kind]) for kind in kinds
        ]
        self._vectors = [vector for vector, _ in joined]
        self._gradients = [gradient for _, gradient in joined]
        fused = optimizer in _FUSED and {device.type for device, _ in kinds} <= {"cpu", "cuda"}
        self.optimiser = OPTIMIZERS[optimizer](
            self._vectors,
            lr=learning_rate,
            weight_decay=weight_decay,
            **({"fused": True} if fused else {}),
        )

    def gradient(self, loss: Tensor) -> Tensor:
        """Computes the gradient of `loss`, clips it, and returns how long it was before."""
        for gradient in self._gradients:
            gradient.zero_()
        loss.backward()
        lengths = [torch.linalg.vector_norm(gradient) for gradient in self._gradients]
        length = lengths[0]
        if len(lengths) > 1:
            length = torch.linalg.vector_norm(torch.stack([one.to(length) for one in lengths]))
        if self._longest is not None:
            factor = (self._longest / (length + 1e-6)).clamp(max=1.0)
            for gradient in self._gradients:
                gradient.mul_(factor.to(gradient))
        return length

    def move(self, learning_rate: float | None = None) -> None:
        """A step along the last gradient."""
        if learning_rate is not None:
            for group in self.optimiser.param_groups:
                group["lr"] = learning_rate
        self.optimiser.step()

    def weights(self) -> list[Tensor]:
        """A copy of the vectors."""
        return [vector.detach().clone() for vector in self._vectors]

    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Takes what `weights` gave."""
        with torch.no_grad():
            for vector, value in zip(self._vectors, weights, strict=True):
                vector.copy_(value)

    def release(self) -> None:
        """Ends the descent: weights are ordinary tensors without gradients."""
        for weight in self._weights:
            weight.data = weight.data.clone()
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's."""
        return self.optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` back."""
        self.optimiser.load_state_dict(state)


def _joined(weights: list[nn.Parameter]) -> tuple[nn.Parameter, Tensor]:
    """One vector and its gradient; `weights` become windows on them."""
    vector = nn.Parameter(torch.cat([weight.detach().flatten() for weight in weights]))
    vector.grad = gradient = torch.zeros_like(vector)
    sizes = [weight.numel() for weight in weights]
    for weight, value, part in zip(
        weights, vector.detach().split(sizes), gradient.split(sizes), strict=True
    ):
        weight.data = value.view(weight.shape)
        weight.grad = part.view(weight.shape)
    return vector, gradient
