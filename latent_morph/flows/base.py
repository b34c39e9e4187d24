"""The seam: everything that moves a latent state through time implements `Flow`."""

import abc
import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_count, check_finite, check_state


class Flow(nn.Module, abc.ABC):
    """Carries a latent state through time, autonomously.

    Laws:
        start    flow(z, [t0]) is z
        compose  flow(flow(z, s), t) is flow(z, s + t)
        order    permuting the times permutes the rows; a repeated time repeats its row
        tangent  d/dt flow(z, t) is field(flow(z, t))
        wanted   rows that are not wanted are zero, and change no other row

    Closed forms keep them to rounding, solvers to their tolerance. Times are data: no gradient
    flows into them. Any leading axes are batch axes.

    To add a flow, write `_trajectory` and `_velocity`; they are called with checked arguments.
    """

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        self.latent_dim = check_count("latent_dim", latent_dim)

    @final  # type: ignore[misc]  # nn.Module declares an attribute of that name
    def forward(
        self,
        z0: Tensor,
        times: Tensor,
        *,
        t0: float | Tensor = 0.0,
        wanted: Tensor | None = None,
    ) -> Tensor:
        """Follows the flow from `z0` at time `t0` to each of `times`.

        Args:
            z0: (..., D) states at `t0`.
            times: (T,) shared by all series, or (..., T) with one row a series, where the leading
                axes broadcast against those of `z0`. In any order, repeated, on both sides of
                `t0`, or none at all.
            t0: One number, or (...) with one a series.
            wanted: Which of the (..., T) rows to compute, a boolean of the shape of `times` or one
                that broadcasts to (..., T). By default all; the others come back as zeros. Series
                padded to a common length cost no more than their own rows.

        Returns:
            (..., T, D): row k is the state at `times[..., k]`.
        """
        check_finite("z0", check_state("z0", z0, self.latent_dim))
        elapsed = elapsed_times(z0, times, t0)
        shape = (*z0.shape[:-1], elapsed.shape[-1], self.latent_dim)
        if 0 in shape:
            return z0.new_zeros(shape)
        if wanted is None:
            return self._trajectory(z0, elapsed)
        rows = _wanted_rows(wanted, torch.Size(shape[:-1]))
        return self._trajectory(z0, elapsed) if rows.all() else self._part(z0, elapsed, rows)

    @final
    def field(self, z: Tensor) -> Tensor:
        """The velocity dz/dt at each state: (..., D) to (..., D)."""
        return self._velocity(check_state("z", z, self.latent_dim))

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """For walking through gaps known in advance: `step(k, z)` flows `z` for `gaps[k]`.

        Equal to `flow(z, gaps[k].unsqueeze(-1)).squeeze(-2)`, but what depends on the gaps alone
        may be computed for all of them at once.

        Args:
            gaps: (K, ...) elapsed times; each `gaps[k]` has the batch axes of the states.
        """
        return lambda k, z: self(z, gaps[k].unsqueeze(-1)).squeeze(-2)

    def _part(self, z0: Tensor, elapsed: Tensor, wanted: Tensor) -> Tensor:
        """`_trajectory` in the rows `wanted` (..., T), not all of them, and zeros elsewhere."""
        # Staying where one is needs no integration.
        path = self._trajectory(z0, torch.where(wanted, elapsed, 0.0))
        return torch.where(wanted.unsqueeze(-1), path, 0.0)

    @abc.abstractmethod
    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """`forward` on checked arguments: z0 (..., D), elapsed (T,) or broadcasting (..., T)."""

    @abc.abstractmethod
    def _velocity(self, z: Tensor) -> Tensor:
        """`field` on a checked argument."""


def elapsed_times(z0: Tensor, times: Tensor, t0: float | Tensor) -> Tensor:
    """Checks the query and returns `times - t0` in the dtype of `z0`: (T,) or (..., T).

    The difference is taken before the cast, so that seconds since 1970 survive a float32 state.
    """
    if not isinstance(times, Tensor):
        raise TypeError(f"times must be a torch.Tensor, got {type(times).__name__}")
    if times.is_complex() or times.dtype is torch.bool:
        raise TypeError(f"times must be real numbers, got dtype {times.dtype}")
    if times.ndim == 0:
        raise ValueError("times must have a time axis, (T,) or (..., T), got a scalar")
    check_finite("times", times)
    batch = z0.shape[:-1]
    _check_broadcast("times", times.shape, times.shape[:-1], batch)
    if isinstance(t0, Tensor):
        if t0.is_complex():
            raise TypeError(f"t0 must be real, got dtype {t0.dtype}")
        _check_broadcast("t0", t0.shape, t0.shape, batch)
        start = check_finite("t0", t0 if t0.ndim == 0 else t0.unsqueeze(-1))
    elif t0 == 0:
        return times.detach().to(z0, copy=True)  # the caller may go on with theirs
    else:
        start = torch.as_tensor(t0, dtype=torch.float64)
        if not math.isfinite(t0):
            check_finite("t0", start)  # to say so in the same words
    return (times.detach() - start.detach()).to(z0)


def _wanted_rows(wanted: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(wanted, Tensor) or wanted.dtype is not torch.bool:
        kind = wanted.dtype if isinstance(wanted, Tensor) else type(wanted).__name__
        raise TypeError(f"wanted must be a boolean tensor, got {kind}")
    _check_broadcast("wanted", wanted.shape, wanted.shape, shape)
    return wanted.expand(shape)


def at_pairs(
    points: Callable[[Tensor, Tensor], Tensor], elapsed: Tensor, wanted: Tensor
) -> Tensor:
    """A closed form evaluated at the pairs of series and time that are wanted, and only there.

    Args:
        points: Series (M,), counted through all batch axes, and times (M,) to states (D, M).
        elapsed: (T,) or broadcasting (..., T).
        wanted: (..., T).

    Returns:
        (..., T, D), zero where nothing is wanted.
    """
    row = wanted.flatten().nonzero().squeeze(1)
    series = row.div(wanted.shape[-1], rounding_mode="floor")
    found = points(series, elapsed.expand(wanted.shape).flatten()[row]).mT
    whole = found.new_zeros(wanted.numel(), found.shape[1])
    return whole.index_copy(0, row, found).view(*wanted.shape, -1)


def _check_broadcast(name: str, came: torch.Size, axes: torch.Size, batch: torch.Size) -> None:
    """Raises unless `axes` broadcast to `batch` without enlarging it."""
    fits = len(axes) <= len(batch) and all(
        a in (1, b) for a, b in zip(reversed(axes), reversed(batch), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} of shape {tuple(came)} does not fit {tuple(batch)}, the batch axes of z0"
            f"{' and the times' if name == 'wanted' else ''}: "
            f"its leading axes must be absent or broadcast to them"
        )
