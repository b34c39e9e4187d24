"""The abstract bijection, its laws, and the ways to build one from another."""

import abc
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_count, check_finite, check_state


class Bijection(nn.Module, abc.ABC):
    """A smooth invertible map of R^dim onto itself, over any leading axes.

    Laws:
        inverse   inverse(forward(x)) is x, and forward(inverse(y)) is y
        pointwise rows do not see each other: any batch axes, same answer

    There is no log-determinant: trajectories never need one.
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
        """Maps `y` (..., dim) back to the (..., dim) it came from."""
        return self._inverse(check_state("y", y, self.dim))

    def on_columns(self, x: Tensor) -> Tensor:
        """`forward` with the coordinates as first axis: (dim, ...) to (dim, ...)."""
        return self._forward(x.movedim(0, -1)).movedim(-1, 0)

    def both_ways(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """`inverse` and `on_columns` for use in a row, sharing what depends on no point."""
        return self.inverse, self.on_columns

    @abc.abstractmethod
    def _forward(self, x: Tensor) -> Tensor: ...

    @abc.abstractmethod
    def _inverse(self, y: Tensor) -> Tensor: ...


@final
class Composed(Bijection):
    """Several bijections one after the other: `Composed(f, g)(x)` is `g(f(x))`."""

    def __init__(self, *parts: Bijection) -> None:
        if not parts:
            raise ValueError("Composed needs at least one bijection, got none")
        dims = [part.dim for part in parts]
        if len(set(dims)) > 1:
            raise ValueError(f"parts must agree in dim, got {dims}")
        super().__init__(dims[0])
        self.parts = nn.ModuleList(parts)

    def _forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def on_columns(self, x: Tensor) -> Tensor:
        """See `Bijection.on_columns`."""
        for part in self.parts:
            x = part.on_columns(x)  # type: ignore[operator]  # ModuleList forgets its element type
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        for part in reversed(list(self.parts)):
            y = part.inverse(y)  # type: ignore[operator]  # ModuleList forgets its element type
        return y


@final
class Inverted(Bijection):
    """A bijection run the other way."""

    def __init__(self, inner: Bijection) -> None:
        super().__init__(inner.dim)
        self.inner = inner

    def _forward(self, x: Tensor) -> Tensor:
        return self.inner.inverse(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.inner(y)


@final
class Anchored(Bijection):
    """A bijection moved so that the origin goes to `goal`, whatever the inner map learns."""

    goal: Tensor

    def __init__(self, inner: Bijection, goal: Tensor) -> None:
        super().__init__(inner.dim)
        check_finite("goal", check_state("goal", goal, inner.dim))
        if goal.ndim != 1:
            raise ValueError(
                f"goal must be one point ({inner.dim},), got shape {tuple(goal.shape)}"
            )
        self.inner = inner
        self.register_buffer("goal", goal.detach().clone())

    def both_ways(self) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
        """See `Bijection.both_ways`: the image of the origin is computed once."""
        origin = self._image_of_origin()

        def on_columns(x: Tensor) -> Tensor:
            goal, start = (p.view(-1, *[1] * (x.ndim - 1)) for p in (self.goal, origin))
            # The difference first: at the origin it is zero, and the sum the goal to the bit.
            return goal + (self.inner.on_columns(x) - start)

        return lambda y: self.inner.inverse(y - self.goal + origin), on_columns

    def on_columns(self, x: Tensor) -> Tensor:
        """See `Bijection.on_columns`."""
        return self.both_ways()[1](x)

    def _image_of_origin(self) -> Tensor:
        return self.inner(torch.zeros_like(self.goal))

    def _forward(self, x: Tensor) -> Tensor:
        return self.goal + (self.inner(x) - self._image_of_origin())

    def _inverse(self, y: Tensor) -> Tensor:
        return self.both_ways()[0](y)
