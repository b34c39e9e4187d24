"""The abstract bijection, its laws, and the ways to build one from another."""

import abc
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.by_hand import ByHand, Kept, wants_plain
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

    def both_ways(self, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The inverse of `y` (N, dim), and `on_columns`, sharing what depends on no point.

        That function is good as long as the weights stay as they are.
        """
        return self.inverse(y), self.on_columns

    def conjugated(self, y: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """What `inner` does before the bijection, as seen behind it: there, through it, and back.

        Args:
            y: (dim, N) points as columns.
            inner: Points as columns (dim, N) to others (dim, M).

        Returns:
            (dim, M).
        """
        x, on_columns = self.both_ways(y.mT)
        return on_columns(inner(x.mT))

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
    """A bijection entered where it leads to `goal`: the origin goes there, whatever it learns.

    That is x -> entered(x + c) with c = entered^-1(goal). To move the image instead would do as
    well, but then the origin would need a pass of its own before anything else can be mapped; c is
    one more point of passes that are made anyway. Where the bijection leads far away, c is far
    from the origin, and so many digits of x + c are lost. The goal is met to the last digit where
    no gradients are recorded, and to rounding where they are.
    """

    goal: Tensor

    def __init__(self, entered: Bijection, goal: Tensor) -> None:
        super().__init__(entered.dim)
        check_finite("goal", check_state("goal", goal, entered.dim))
        if goal.ndim != 1:
            raise ValueError(
                f"goal must be one point ({entered.dim},), got shape {tuple(goal.shape)}"
            )
        self.entered = entered
        self.register_buffer("goal", goal.detach().clone())

    def both_ways(self, y: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """See `Bijection.both_ways`."""
        x, on_columns = self.entered.both_ways(torch.cat([y, self.goal.unsqueeze(0)]))
        others, center = x.split_with_sizes((y.shape[0], 1))
        return others - center, partial(self._around, center.mT, on_columns)

    def conjugated(self, y: Tensor, inner: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Bijection.conjugated`."""
        # What is asked first is asked for compilers: they do not follow functions by hand.
        if wants_plain() or not torch.is_grad_enabled() or not isinstance(inner, ByHand):
            return super().conjugated(y, inner)
        return self.entered.conjugated(
            torch.cat([y, self.goal.unsqueeze(1)], dim=1), _around_last(inner)
        )

    def on_columns(self, x: Tensor) -> Tensor:
        """See `Bijection.on_columns`."""
        center, on_columns = self.entered.both_ways(self.goal.unsqueeze(0))
        return self._around(center.mT, on_columns, x)

    def _around(self, center: Tensor, on_columns: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`on_columns`, given the column that leads to the goal, and the entered map's own."""
        columns = x.reshape(self.dim, -1) + center
        if torch.is_grad_enabled():  # to learn, nobody needs the last digit
            return on_columns(columns).view(x.shape)
        image = on_columns(torch.cat([columns, center], dim=1))
        image, end = image.split_with_sizes((columns.shape[1], 1), dim=1)
        # The last column is the goal but for rounding, which is taken off all of them.
        return (image + (self.goal.unsqueeze(1) - end)).view(x.shape)

    def _forward(self, x: Tensor) -> Tensor:
        return self.on_columns(x.movedim(-1, 0)).movedim(0, -1)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.both_ways(y.reshape(-1, self.dim))[0].view(y.shape)


def _around_last(inner: ByHand) -> ByHand:
    """`inner` on all columns but the last, with that one as the origin."""

    def run(x: Tensor, kept: Kept | None) -> Tensor:
        others, center = _apart(x)
        return inner.run(others - center, kept) + center

    def gradients(g: Tensor, kept: Kept) -> list[Tensor]:
        g_others, *g_weights = inner.gradients(g, kept)
        g_center = g.sum(1, keepdim=True) - g_others.sum(1, keepdim=True)
        return [torch.cat([g_others, g_center], dim=1), *g_weights]

    def plain(x: Tensor, *weights: Tensor) -> Tensor:
        others, center = _apart(x)
        return inner.plain(others - center, *weights) + center

    return ByHand(run, gradients, plain, inner.weights)


def _apart(x: Tensor) -> Sequence[Tensor]:
    """All columns but the last, and the last."""
    return x.split_with_sizes((x.shape[1] - 1, 1), dim=1)
