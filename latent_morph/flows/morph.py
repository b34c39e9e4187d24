"""MorphFlow: a base flow mapped by a bijection; with a linear base it needs no solver."""

import math
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from latent_morph.bijections import Anchored, Bijection
from latent_morph.checks import check_positive
from latent_morph.flows.base import Flow, evaluate_masked
from latent_morph.flows.dense import dense_curve
from latent_morph.flows.linear import LinearFlow

# Below either, interpolation was not faster. Work is the size of the weights in bytes, times the
# number of points.
_MIN_TIMES, _MIN_WORK = 200, 40_000_000


@final
class MorphFlow(Flow):
    """z(t) = warp(x(t)) where x follows `base` from warp^-1(z0).

    With a `LinearFlow` as base this is a closed form, whose cost depends on the number of queries
    and not on the time between them. The base may also be a `SolverFlow` with a small network, for
    chaotic or stiff systems. Only `field` needs the bijection's Jacobian.

    Args:
        base: The flow in base coordinates.
        warp: The bijection from base coordinates to latent ones.
        goal: (D,) the exact place of the equilibrium; requires a linear base, whose own
            equilibrium is the origin. By default the equilibrium is the image of the origin.
        dense_output: On long grids, evaluate at fewer times and interpolate, with an error of at
            most this fraction of the trajectory's largest absolute value; requires a linear base.
            By default, and where interpolation would not be faster, trajectories are exact.
    """

    def __init__(
        self,
        base: Flow,
        warp: Bijection,
        *,
        goal: Tensor | None = None,
        dense_output: float | None = None,
    ) -> None:
        super().__init__(base.latent_dim)
        if warp.dim != base.latent_dim:
            raise ValueError(f"warp must have dim {base.latent_dim} as base has, got {warp.dim}")
        if goal is not None:
            if not isinstance(base, LinearFlow):
                raise ValueError(
                    f"base must be a LinearFlow for a goal, got {type(base).__name__}"
                )
            warp = Anchored(warp, goal)
        if dense_output is not None:
            check_positive("dense_output", dense_output)
            if not isinstance(base, LinearFlow):
                raise ValueError(
                    f"base must be a LinearFlow for dense_output, got {type(base).__name__}"
                )
        self.dense_output = dense_output
        self.base = base
        self.warp = warp
        self._n_weights = sum(weight.numel() for weight in warp.parameters())

    def equilibrium(self) -> Tensor:
        """Returns the (D,) state of zero velocity: the image of the linear base's origin."""
        if not isinstance(self.base, LinearFlow):
            raise ValueError(
                f"base must be a LinearFlow for an equilibrium, got {type(self.base).__name__}"
            )
        if isinstance(self.warp, Anchored):
            return self.warp.goal.clone()
        return self.warp(next(self.base.parameters()).new_zeros(self.latent_dim))

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        x0, forward = self.warp.inverse_and_forward(z0)
        if self._should_interpolate(z0, elapsed):
            return self._dense_trajectory(x0, forward, elapsed)
        return forward(self.base._trajectory(x0, elapsed))

    def _masked_trajectory(self, z0: Tensor, elapsed: Tensor, query_mask: Tensor) -> Tensor:
        base = self.base
        if not isinstance(base, LinearFlow) or self._should_interpolate(z0, elapsed):
            return super()._masked_trajectory(z0, elapsed, query_mask)
        x0, forward = self.warp.inverse_and_forward(z0)
        basis = base.basis()
        modes = basis.to_modes(x0).reshape(-1, self.latent_dim).mT
        return evaluate_masked(
            lambda series, times: forward(
                basis.from_modes(base.propagate(modes[:, series].mT, times))
            ),
            elapsed,
            query_mask,
        )

    def _dense_trajectory(
        self, x0: Tensor, forward: Callable[[Tensor], Tensor], elapsed: Tensor
    ) -> Tensor:
        """Evaluates at Chebyshev nodes and interpolates; x0 (..., D) in base coordinates."""
        assert isinstance(self.base, LinearFlow) and self.dense_output is not None
        if elapsed.ndim > 1:
            elapsed = elapsed.expand(*x0.shape[:-1], -1).reshape(-1, elapsed.shape[-1])
        span = float(elapsed.max() - elapsed.min())
        path = dense_curve(
            lambda x, t: forward(self.base._trajectory(x, t)),
            x0.reshape(-1, self.latent_dim),
            elapsed,
            tolerance=self.dense_output,
            # Each panel spans a third of the shortest period.
            panels=1 + int(1.5 * self.base.max_rate() * span / math.pi),
        )
        return path.reshape(*x0.shape[:-1], *path.shape[1:])

    def _should_interpolate(self, z0: Tensor, elapsed: Tensor) -> bool:
        """Returns whether dense output was requested and is likely to be faster."""
        if self.dense_output is None:
            return False
        n_times, n_series = elapsed.shape[-1], z0[..., 0].numel()
        work = n_series * n_times * self._n_weights * z0.element_size()
        return n_times >= _MIN_TIMES and work > _MIN_WORK

    def _velocity(self, z: Tensor) -> Tensor:
        x, forward = self.warp.inverse_and_forward(z)
        return torch.func.jvp(forward, (x,), (self.base._velocity(x),))[1]
