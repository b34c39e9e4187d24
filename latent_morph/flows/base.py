"""Flow, the abstract base of everything that moves a latent state through time."""

import abc
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_count, check_finite, check_state


class Flow(nn.Module, abc.ABC):
    """An autonomous flow of latent states.

    Laws:
        start    flow(z, [t0]) is z
        compose  flow(flow(z, s), t) is flow(z, s + t)
        order    permuting the times permutes the rows; a repeated time repeats its row
        tangent  d/dt flow(z, t) is field(flow(z, t))
        mask     rows that are not queried are zero, and change no other row

    Closed forms satisfy them up to rounding, solvers up to their tolerance. Times receive no
    gradient. All leading axes are batch axes.

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
        query_mask: Tensor | None = None,
    ) -> Tensor:
        """Returns the states at `times` of trajectories that start in `z0` at time `t0`.

        Args:
            z0: (..., D) states at `t0`.
            times: (T,) shared by all series, or (..., T) with one row per series, where the
                leading axes broadcast against those of `z0`. They may be unsorted, repeated, on
                both sides of `t0`, and T may be 0.
            t0: One number, or (...) with one per series.
            query_mask: Boolean, broadcast to (..., T): which rows to compute, all by default. The
                others are zero. Closed forms then spend nothing on the padding of short series.

        Returns:
            (..., T, D): row k is the state at `times[..., k]`.
        """
        check_finite("z0", check_state("z0", z0, self.latent_dim))
        elapsed = elapsed_times(z0, times, t0)
        shape = (*z0.shape[:-1], elapsed.shape[-1], self.latent_dim)
        if 0 in shape:
            return z0.new_zeros(shape)
        if query_mask is None:
            return self._trajectory(z0, elapsed)
        rows = _check_query_mask(query_mask, torch.Size(shape[:-1]))
        if rows.all():
            return self._trajectory(z0, elapsed)
        return self._masked_trajectory(z0, elapsed, rows)

    @final
    def field(self, z: Tensor) -> Tensor:
        """Returns the velocity dz/dt at each state: (..., D) to (..., D)."""
        return self._velocity(check_state("z", z, self.latent_dim))

    def stepper(self, gaps: Tensor) -> Callable[[int, Tensor], Tensor]:
        """Returns a function `step(k, z)` that moves `z` by the elapsed time `gaps[k]`.

        The result equals `flow(z, gaps[k].unsqueeze(-1)).squeeze(-2)`. Subclasses may compute what
        depends on the gaps alone for all of them at once.

        Args:
            gaps: (K, ...) elapsed times; each `gaps[k]` has the batch axes of the states.
        """
        return lambda k, z: self(z, gaps[k].unsqueeze(-1)).squeeze(-2)

    def _masked_trajectory(self, z0: Tensor, elapsed: Tensor, query_mask: Tensor) -> Tensor:
        """`_trajectory` in the rows of `query_mask` (..., T), and zeros elsewhere."""
        # An elapsed time of zero costs a solver nothing.
        path = self._trajectory(z0, torch.where(query_mask, elapsed, 0.0))
        return torch.where(query_mask.unsqueeze(-1), path, 0.0)

    @abc.abstractmethod
    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """`forward` on checked arguments: z0 (..., D), elapsed (T,) or broadcasting (..., T)."""

    @abc.abstractmethod
    def _velocity(self, z: Tensor) -> Tensor:
        """`field` on a checked argument."""


def elapsed_times(z0: Tensor, times: Tensor, t0: float | Tensor) -> Tensor:
    """Checks the query and returns `times - t0` in the dtype of `z0`: (T,) or (..., T).

    The difference is taken before the cast, so that epoch seconds keep their fractions with a
    float32 state.
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
        return times.detach().to(z0, copy=True)  # a copy: the caller may modify `times`
    else:
        start = check_finite("t0", torch.as_tensor(t0, dtype=torch.float64))
    return (times.detach() - start.detach()).to(z0)


def _check_query_mask(query_mask: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(query_mask, Tensor) or query_mask.dtype is not torch.bool:
        kind = query_mask.dtype if isinstance(query_mask, Tensor) else type(query_mask).__name__
        raise TypeError(f"query_mask must be a boolean tensor, got {kind}")
    _check_broadcast("query_mask", query_mask.shape, query_mask.shape, shape)
    return query_mask.expand(shape)


def evaluate_masked(
    evaluate: Callable[[Tensor, Tensor], Tensor], elapsed: Tensor, query_mask: Tensor
) -> Tensor:
    """Evaluates a closed form only at the queried pairs of series and time.

    Args:
        evaluate: Function of series (M,), as indices into the flattened batch axes, and of times
            (M,) that returns states (M, D).
        elapsed: (T,) or broadcasting (..., T).
        query_mask: (..., T).

    Returns:
        (..., T, D), zero in rows that are not queried.
    """
    row = query_mask.flatten().nonzero().squeeze(1)
    series = row.div(query_mask.shape[-1], rounding_mode="floor")
    states = evaluate(series, elapsed.expand(query_mask.shape).flatten()[row])
    trajectory = states.new_zeros(query_mask.numel(), states.shape[1])
    return trajectory.index_copy(0, row, states).view(*query_mask.shape, -1)


def _check_broadcast(name: str, shape: torch.Size, axes: torch.Size, batch: torch.Size) -> None:
    """Raises unless `axes` broadcast to `batch` without enlarging it."""
    is_valid = len(axes) <= len(batch) and all(
        a in (1, b) for a, b in zip(reversed(axes), reversed(batch), strict=False)
    )
    if not is_valid:
        target = "(..., T) of z0 and the times" if name == "query_mask" else "the batch axes of z0"
        raise ValueError(
            f"{name} must have leading axes that are absent or broadcast to {tuple(batch)}, "
            f"{target}, got shape {tuple(shape)}"
        )
