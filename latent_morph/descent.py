"""Descent: an optimiser that has all weights of a model in one vector, and so takes few steps."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
}
_FUSED = ("adamw", "adam")
# The C library on Linux hands free memory back to the system, and the next step of training asks
# for it again, page by page. It keeps as much as the largest block it has seen freed, twice over,
# if that had no more than 32 MiB.
_LARGEST_KEPT = 31 * 2**20


@final
class Descent:
    """Moves the weights of `model` down the gradient of a loss, in place.

    A small model is dozens of small tensors, and to visit each of them costs more than to compute
    with it. While a descent lasts, weights are windows on one vector and their gradients on
    another, so that one operation zeroes, measures, clips or moves them all. The weights keep
    their identity; `release` gives them memory of their own again. Somebody may give a weight
    other memory in the meantime, as `zero_grad` or `to` do: its values are then taken over.

    Weights that do not require gradients stay as they are. One that the loss does not depend on
    has a gradient of zero, and decays.

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
        torch.empty(_LARGEST_KEPT, dtype=torch.uint8, device="cpu")  # and freed
        self._longest = gradient_clip
        weights = list(model.parameters())
        kinds = dict.fromkeys((weight.device, weight.dtype) for weight in weights)
        groups = [[w for w in weights if (w.device, w.dtype) == kind] for kind in kinds]
        self._vectors = [
            nn.Parameter(torch.cat([weight.detach().flatten() for weight in group]))
            for group in groups
        ]
        self._gradients = [torch.zeros_like(vector) for vector in self._vectors]
        for vector, gradient in zip(self._vectors, self._gradients, strict=True):
            vector.grad = gradient
        fused = optimizer in _FUSED and {device.type for device, _ in kinds} <= {"cpu", "cuda"}
        self._optimiser = OPTIMIZERS[optimizer](
            self._vectors,
            lr=learning_rate,
            weight_decay=weight_decay,
            **({"fused": True} if fused else {}),
        )
        self._windows = [
            window
            for group, vector, gradient in zip(groups, self._vectors, self._gradients, strict=True)
            for window in _windows(group, vector.detach(), gradient)
        ]
        for window in self._windows:
            window.open()

    def gradient(self, loss: Tensor) -> Tensor:
        """Computes the gradient of `loss`, clips it, and returns how long it was before.

        The loss must have been computed with the weights as they are since the last `move`.
        """
        for window in self._windows:
            window.open()
        for gradient in self._gradients:
            gradient.zero_()
        loss.backward()
        lengths = [torch.linalg.vector_norm(gradient) for gradient in self._gradients]
        length = lengths[0]
        if len(lengths) > 1:
            length = torch.linalg.vector_norm(torch.stack([one.to(length) for one in lengths]))
        if self._longest is not None:
            share = self._longest / (float(length) + 1e-6)  # as `clip_grad_norm_` has it
            for gradient in () if share >= 1 else self._gradients:  # also if it is no number
                gradient.mul_(share)
        return length

    def move(self, learning_rate: float | None = None) -> None:
        """A step along the last gradient."""
        if learning_rate is not None:
            for group in self._optimiser.param_groups:
                group["lr"] = learning_rate
        still = [window for window in self._windows if not window.weight.requires_grad]
        before = [window.value.clone() for window in still]
        # Without what torch wraps around it for profilers and hooks, which takes as long again.
        with torch.no_grad():
            inspect.unwrap(type(self._optimiser).step)(self._optimiser)
        for window, value in zip(still, before, strict=True):
            window.value.copy_(value)
        self._tell_autograd()

    def weights(self) -> list[Tensor]:
        """A copy of the vectors."""
        for window in self._windows:
            window.open()
        return [vector.detach().clone() for vector in self._vectors]

    def set_weights(self, weights: Sequence[Tensor]) -> None:
        """Takes what `weights` gave."""
        for window in self._windows:
            window.open()
        with torch.no_grad():
            for vector, value in zip(self._vectors, weights, strict=True):
                vector.copy_(value)
        self._tell_autograd()

    def _tell_autograd(self) -> None:
        """Windows count their own changes, and these went past them."""
        for window in self._windows:
            torch.autograd.graph.increment_version(window.weight)

    def release(self) -> None:
        """Ends the descent: weights are ordinary tensors without gradients."""
        for window in self._windows:
            window.weight.data = window.weight.data.clone()
            window.weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's."""
        return self._optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` back."""
        self._optimiser.load_state_dict(state)


class _Window(NamedTuple):
    """A weight, and its parts of the vector and of the vector's gradient."""

    weight: nn.Parameter
    value: Tensor
    gradient: Tensor

    def open(self) -> None:
        """Lets the weight look at the vector, which takes what the weight has."""
        weight = self.weight
        if weight.data_ptr() != self.value.data_ptr():
            self.value.copy_(weight.data)
            weight.data = self.value
        if weight.requires_grad and (
            weight.grad is None or weight.grad.data_ptr() != self.gradient.data_ptr()
        ):
            weight.grad = self.gradient.detach()  # whose memory `to` may change, but not ours


def _windows(
    weights: Sequence[nn.Parameter], vector: Tensor, gradient: Tensor
) -> Iterator[_Window]:
    sizes = [weight.numel() for weight in weights]
    for weight, value, part in zip(
        weights, vector.split(sizes), gradient.split(sizes), strict=True
    ):
        yield _Window(weight, value.view(weight.shape), part.view(weight.shape))
