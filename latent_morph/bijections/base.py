"""Bijection, the abstract base of invertible maps, and combinations of bijections."""

import abc
from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_count, check_finite, check_state


class Bijection(nn.Module, abc.ABC):
    """A smooth invertible map of R^dim onto itself, over any leading axes.

    Laws:
        inverse   inverse(forward(x)) is x, and forward(inverse(y)) is y
        pointwise points are mapped independently of each other, whatever the batch axes

    There is no log-determinant, since trajectories do not need one.

    To add a bijection, write `_forward` and `_inverse`; they are called with checked arguments.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = check_count("dim", dim)

    @final  # type: ignore[misc]  # nn.Module declares an attribute of that name
    def forward(self, x: Tensor) -> Tensor:
        """Maps `x` (..., dim) to (..., dim)."""
        return self._forward(check_state("x", x, self.dim))

    @final
    def inverse(self, y: Tensor) -> Tensor:
        """Maps `y` (..., dim) to its preimage (..., dim)."""
        return self._inverse(check_state("y", y, self.dim))

    def inverse_and_forward(self, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Returns the inverse of `y` (..., dim), and the forward map.

        The two may share work that depends on the weights alone, so that the map is valid only
        until the weights change.
        """
        return self.inverse(y), self

    @abc.abstractmethod
    def _forward(self, x: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _inverse(self, y: Tensor) -> Tensor: ...


@final
class Composed(Bijection):
    """A composition of bijections: `Composed(f, g)(x)` is `g(f(x))`."""

    def __init__(self, *parts: Bijection) -> None:
        if not parts:
            raise ValueError("parts must be at least one bijection, got none")
        dims = [part.dim for part in parts]
        if len(set(dims)) > 1:
            raise ValueError(f"parts must have the same dim, got {dims}")
        super().__init__(dims[0])
        self.parts = nn.ModuleList(parts)

    def _forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(list(self.parts)):
            y = part.inverse(y)  # type: ignore[operator]  # ModuleList forgets its element type
        return y


@final
class Inverted(Bijection):
    """The inverse of a bijection."""

    def __init__(self, bijection: Bijection) -> None:
        super().__init__(bijection.dim)
        self.bijection = bijection

    def _forward(self, x: Tensor) -> Tensor:
        return self.bijection.inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.bijection(y)


@final
class Anchored(Bijection):
    """A bijection f shifted so that the origin is mapped to `goal`, whatever the weights of f.

    The map is x -> f(x + c) with c = f^-1(goal). Shifting the image, f(x) - f(0) + goal, would be
    as good, but c is only one more point of an inverse pass that is needed anyway. Due to
    rounding, f(c) is not exactly the goal; the difference is subtracted from every image.
    """

    goal: Tensor

    def __init__(self, bijection: Bijection, goal: Tensor) -> None:
        super().__init__(bijection.dim)
        check_finite("goal", check_state("goal", goal, bijection.dim))
        if goal.ndim != 1:
            raise ValueError(
                f"goal must be one point ({bijection.dim},), got shape {tuple(goal.shape)}"
            )
        self.bijection = bijection
        self.register_buffer("goal", goal.detach().clone())

    def inverse_and_forward(self, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """See `Bijection.inverse_and_forward`; c is computed once for both."""
        points = torch.cat([y.reshape(-1, self.dim), self.goal.unsqueeze(0)])
        x, forward = self.bijection.inverse_and_forward(points)
        center = x[-1]
        return (x[:-1] - center).view(y.shape), partial(self._shift_and_map, forward, center)

    def _forward(self, x: Tensor) -> Tensor:
        return self._shift_and_map(self.bijection, self.bijection.inverse(self.goal), x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.inverse_and_forward(y)[0]

    def _shift_and_map(
        self, forward: Callable[[Tensor], Tensor], center: Tensor, x: Tensor
    ) -> Tensor:
        # As columns, the layout of `CouplingINN`. The last one, the origin, is shifted to c.
        columns = x.movedim(-1, 0).reshape(self.dim, -1)
        columns = torch.cat([columns, columns.new_zeros(self.dim, 1)], dim=1)
        image = forward(columns.mT + center)
        rounding = (self.goal - image[-1]).detach()
        return (image[:-1] + rounding).view(x.shape)
