"""MorphFlow: a base flow seen through a bijection, so its trajectories need no solver."""

import math
from typing import final

import torch
from torch import Tensor

from latent_morph.bijections import Anchored, Bijection
from latent_morph.checks import check_positive
from latent_morph.flows.base import Flow, at_pairs
from latent_morph.flows.dense import dense_curve
from latent_morph.flows.linear import LinearFlow, as_trajectory, flattened

# Interpolation did not pay with fewer times than this, or where the network has no more to do: in
# bytes of its weights, counted once for each point.
_FEW_TIMES, _LITTLE_WORK = 200, 40_000_000


@final
class MorphFlow(Flow):
    """z(t) = warp(x(t)) where x follows `base` from warp^-1(z0).

    With a `LinearFlow` as base this is a closed form whose cost is per query, not per unit of
    time. The base may also be a solver on a small network, for chaotic or stiff systems. The
    bijection's Jacobian appears in `field` alone, never along a trajectory.

    Args:
        base: The simple dynamics.
        warp: The bijection, from base coordinates to latent ones.
        goal: (D,) the point where the equilibrium sits exactly; needs a linear base, whose
            equilibrium is the origin. By default the equilibrium is wherever the warp puts it.
        dense_output: On long grids, evaluate at fewer times and interpolate, with an error of at
            most this share of the trajectory's largest absolute value; needs a linear base. Exact
            by default, and wherever interpolation would not pay.
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
                    f"goal needs a LinearFlow as base, whose equilibrium is known; "
                    f"got {type(base).__name__}"
                )
            warp = Anchored(warp, goal)
        if dense_output is not None:
            check_positive("dense_output", dense_output)
            if not isinstance(base, LinearFlow):
                raise ValueError(
                    f"dense_output needs a LinearFlow as base, got {type(base).__name__}"
                )
        self.dense_output = dense_output
        self.base = base
        self.warp = warp
        self._work_a_point = sum(weight.numel() for weight in warp.parameters())

    def equilibrium(self) -> Tensor:
        """(D,) where the velocity is zero: the image of the linear base's origin."""
        if not isinstance(self.base, LinearFlow):
            raise ValueError(f"the equilibrium of a {type(self.base).__name__} base is not known")
        if isinstance(self.warp, Anchored):
            return self.warp.goal.clone()
        return self.warp(next(self.base.parameters()).new_zeros(self.latent_dim))

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        base = self.base
        if not isinstance(base, LinearFlow):
            return self.warp(base._trajectory(self.warp.inverse(z0), elapsed))
        starts, times = flattened(z0, elapsed)
        if self.dense_output is None or not self._interpolates(z0, elapsed):
            states = self.warp.conjugated(starts.mT, base.after(times))
            return as_trajectory(states, z0, elapsed)
        starts, on_columns = self.warp.both_ways(starts)
        span = float(elapsed.max() - elapsed.min())
        dense = dense_curve(
            lambda x, t: as_trajectory(on_columns(base.after(t)(x.mT)), x, t),
            starts,
            times,
            tolerance=self.dense_output,
            panels=1 + int(1.5 * base.fastest() * span / math.pi),  # a third of a turn in each
        )
        return dense.reshape(*z0.shape[:-1], *dense.shape[1:])

    def _interpolates(self, z0: Tensor, elapsed: Tensor) -> bool:
        """Whether dense output is wanted and may pay: the search for panels is not free."""
        if self.dense_output is None:
            return False
        n_times, n_series = elapsed.shape[-1], z0[..., 0].numel()
        work = n_series * n_times * self._work_a_point * z0.element_size()
        return n_times >= _FEW_TIMES and work > _LITTLE_WORK

    def _part(self, z0: Tensor, elapsed: Tensor, wanted: Tensor) -> Tensor:
        base = self.base
        if self._interpolates(z0, elapsed) or not isinstance(base, LinearFlow):
            return super()._part(z0, elapsed, wanted)
        starts = flattened(z0, elapsed)[0].mT
        return at_pairs(
            lambda series, times: self.warp.conjugated(starts, base.after(times, series)),
            elapsed,
            wanted,
        )

    def _velocity(self, z: Tensor) -> Tensor:
        x, on_columns = self.warp.both_ways(z.reshape(-1, self.latent_dim))
        velocity = self.base._velocity(x)
        return torch.func.jvp(on_columns, (x.mT,), (velocity.mT,))[1].mT.view(z.shape)
