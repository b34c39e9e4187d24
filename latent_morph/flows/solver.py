"""SolverFlow: any vector field integrated by torchdiffeq; the only file that imports it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.flows.base import Flow

# How each of torchdiffeq's methods chooses its steps. The list is not read from torchdiffeq, since
# importing that imports scipy, which takes half a second; a test compares the two.
METHODS: dict[str, str] = {
    "euler": "fixed",
    "midpoint": "fixed",
    "heun2": "fixed",
    "heun3": "fixed",
    "rk4": "fixed",
    "explicit_adams": "multistep",
    "implicit_adams": "multistep",
    "adaptive_heun": "adaptive",
    "fehlberg2": "adaptive",
    "bosh3": "adaptive",
    "dopri5": "adaptive",
    "dopri8": "adaptive",
    "scipy_solver": "scipy",
}

Field = Callable[[Tensor], Tensor]
ErrorFactory = Callable[[str], "IntegrationError"]


class IntegrationError(RuntimeError):
    """A solver failed, or its state was not finite."""


@final
class SolverFlow(Flow):
    """Integrates z' = field(z) with a torchdiffeq method.

    torchdiffeq needs one sorted grid for the whole batch. Here times may be repeated, unsorted,
    different per series, and on both sides of the start: the union of all times is solved once,
    and each series takes its own rows. If there is a single time per series, time is rescaled per
    series instead, so that all are solved from 0 to 1.

    Args:
        field: (..., D) to (..., D): a module, a flow's `field`, or any function. Its parameters
            are registered if it is a module or a module's method.
        latent_dim: D.
        method: A name from `METHODS`.
        rtol: Relative tolerance of adaptive methods.
        atol: Absolute tolerance of adaptive methods.
        step_size: Longest step of a fixed-step method. By default one step leads from each queried
            time to the next, as in the paper.
        adjoint: Compute gradients by the adjoint method, whose memory does not grow with the
            number of steps. `"scipy_solver"` always uses it.
        max_steps: Most steps of an adaptive method between two queried times; `"scipy_solver"` may
            evaluate the field 10 times as often in all. More raise an `IntegrationError`.

    Attributes:
        field_evaluations: Number of evaluations of the field so far; may be reset to 0.
    """

    def __init__(
        self,
        field: Field,
        latent_dim: int,
        *,
        method: str = "dopri5",
        rtol: float = 1e-5,
        atol: float = 1e-5,
        step_size: float | None = None,
        adjoint: bool = False,
        max_steps: int = 10_000,
    ) -> None:
        super().__init__(latent_dim)
        if not callable(field):
            raise TypeError(f"field must be callable, got {type(field).__name__}")
        self.method = check_choice("method", method, METHODS)
        self.rtol = check_positive("rtol", rtol)
        self.atol = check_positive("atol", atol)
        self.max_steps = check_count("max_steps", max_steps)
        if step_size is not None:
            check_positive("step_size", step_size)
            if METHODS[method] in ("adaptive", "scipy"):
                raise ValueError(
                    f"step_size must be None for {method!r}, which adapts its own, got {step_size}"
                )
        self.step_size = step_size
        self.adjoint = adjoint or method == "scipy_solver"
        self.field_evaluations = 0
        self._dynamics = field
        owner = getattr(field, "__self__", None)
        if isinstance(owner, nn.Module):
            self._owner = owner  # registers the parameters of a bound method's module

    def _velocity(self, z: Tensor) -> Tensor:
        self.field_evaluations += 1
        return self._dynamics(z)

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        if elapsed.ndim > 1 and elapsed.shape[-1] == 1:
            return self._solve_single_times(z0, elapsed)
        return self._solve_union(z0, elapsed)

    def _solve_single_times(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """Solves dz/ds = T f(z) for s from 0 to 1, where T is the one time of each series."""
        span = float(elapsed.abs().max())
        grid = elapsed.new_tensor([0.0, 1.0])
        path = self._solve(lambda s, z: elapsed * self._velocity(z), z0, grid, span)
        return path[1].unsqueeze(-2)

    def _solve_union(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """Solves from 0 to the union of all times, on each side, and takes each series' rows."""
        times, index = torch.unique(elapsed, return_inverse=True)
        # Times that differ by rounding alone, as scaled time stamps do, are one time.
        tolerance = 4 * torch.finfo(elapsed.dtype).eps * times.abs().max()
        past = _deduplicate_times(-times.flip(0), tolerance)
        future = _deduplicate_times(times, tolerance)
        path = self._solve(self._rhs, z0, future, 1.0)
        if len(past) > 1:
            past_path = self._solve(self._rhs, z0, -past, 1.0)
            path = torch.cat([past_path[1:].flip(0), path])
        path = path.movedim(0, -2)
        grid = torch.cat([-past[1:].flip(0), future])
        rows = (torch.searchsorted(grid, times + tolerance, right=True) - 1)[index]
        if rows.ndim == 1:
            return path.index_select(-2, rows)
        rows = rows.expand(*z0.shape[:-1], -1)
        return path.take_along_dim(rows.unsqueeze(-1), dim=-2)

    def _rhs(self, t: Tensor, z: Tensor) -> Tensor:
        return self._velocity(z)

    def _solve(
        self, rhs: Callable[[Tensor, Tensor], Tensor], z0: Tensor, grid: Tensor, unit: float
    ) -> Tensor:
        """Returns (T, ..., D) on the strictly monotone `grid`, in multiples of the time `unit`."""
        if len(grid) == 1:
            return z0.unsqueeze(0)
        from torchdiffeq import odeint, odeint_adjoint  # imports scipy: see METHODS

        settings: dict[str, Any] = {
            "method": self.method,
            "rtol": self.rtol,
            "atol": self.atol,
            "options": self._make_options(unit),
        }
        if METHODS[self.method] == "scipy":
            rhs = self._limit_evaluations(rhs, grid, unit)
        make_error = partial(self._make_error, grid, unit)
        with _convert_assertions(make_error):
            if self.adjoint and torch.is_grad_enabled():
                parameters = tuple(p for p in self.parameters() if p.requires_grad)
                path = _Adjoint.apply(
                    partial(odeint_adjoint, rhs, t=grid, adjoint_params=parameters, **settings),
                    make_error,
                    z0,
                    *parameters,
                )
            else:
                path = odeint(rhs, z0, grid, **settings)
        if len(path) != len(grid) or not torch.isfinite(path).all():
            raise make_error("the state is not finite")
        return path

    def _limit_evaluations(
        self, rhs: Callable[[Tensor, Tensor], Tensor], grid: Tensor, unit: float
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Returns `rhs` with a limit, since LSODA never stops where a solution diverges."""
        limit = self.field_evaluations + 10 * self.max_steps

        def limited_rhs(t: Tensor, z: Tensor) -> Tensor:
            if self.field_evaluations >= limit:
                raise self._make_error(grid, unit, f"more than {10 * self.max_steps} evaluations")
            return rhs(t, z)

        return limited_rhs

    def _make_options(self, unit: float) -> dict[str, Any]:
        stepping = METHODS[self.method]
        if stepping == "adaptive":
            return {"max_num_steps": self.max_steps}
        if stepping == "scipy":
            return {}
        step = None if self.step_size is None else self.step_size / max(unit, 1e-30)
        if stepping == "fixed":
            return {"grid_constructor": lambda f, y, t: _subdivide_grid(t, step)}
        # Adams methods need equal steps, so that outputs between steps are interpolated.
        return {"grid_constructor": lambda f, y, t: _make_even_grid(t, step), "interp": "cubic"}

    def _make_error(self, grid: Tensor, unit: float, reason: str) -> IntegrationError:
        first, last = float(grid[0]) * unit, float(grid[-1]) * unit
        advice = (
            "a smaller step_size"
            if METHODS[self.method] in ("fixed", "multistep")
            else "larger rtol and atol, or a fixed-step method such as 'rk4'"
        )
        return IntegrationError(
            f"{self.method} failed between t = {first:g} and t = {last:g}: {reason}. "
            f"Try {advice}, a shorter interval, or a closed form such as 'morph'."
        )


@contextmanager
def _convert_assertions(make_error: ErrorFactory) -> Iterator[None]:
    """Raises torchdiffeq's assertions, about underflow or too many steps, as errors of ours."""
    try:
        yield
    except AssertionError as problem:
        raise make_error(str(problem)) from problem


class _Adjoint(torch.autograd.Function):
    """torchdiffeq's adjoint method, with an `IntegrationError` if the backward solution fails."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        solve: Callable[..., Tensor],
        make_error: ErrorFactory,
        z0: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        start = z0.detach().requires_grad_()
        with torch.enable_grad():
            path = solve(y0=start)
        ctx.make_error, ctx.path, ctx.inputs = make_error, path, (start, *parameters)
        return path.detach()

    @staticmethod
    def backward(ctx: Any, grad_path: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        with _convert_assertions(ctx.make_error):
            gradients = torch.autograd.grad(
                ctx.path, ctx.inputs, grad_path, retain_graph=True, allow_unused=True
            )
        if grad_path.isfinite().all() and not all(
            g.isfinite().all() for g in gradients if g is not None
        ):
            raise ctx.make_error("the gradient of the backward pass is not finite")
        return None, None, *gradients


def _deduplicate_times(times: Tensor, tolerance: Tensor) -> Tensor:
    """Returns 0 and the positive of the sorted `times`, without those within `tolerance`."""
    grid = torch.cat([times.new_zeros(1), times[times > tolerance]])
    return grid[torch.cat([grid.new_ones(1, dtype=torch.bool), grid.diff() > tolerance])]


def _subdivide_grid(grid: Tensor, step: float | None) -> Tensor:
    """Returns `grid` with each interval divided into equal steps no longer than `step`.

    torchdiffeq's own step_size makes one even grid and interpolates linearly between its points,
    which reduces the order of a high-order method.
    """
    if step is None:
        return grid
    gaps = grid.diff()
    pieces = (gaps.abs() / step - 1e-6).ceil().clamp(min=1).long()
    interval = torch.repeat_interleave(torch.arange(len(gaps), device=grid.device), pieces)
    position = (
        torch.arange(len(interval), device=grid.device) - (pieces.cumsum(0) - pieces)[interval]
    )
    inner = grid[interval] + position / pieces[interval] * gaps[interval]
    return torch.cat([inner, grid[-1:]])


def _make_even_grid(grid: Tensor, step: float | None) -> Tensor:
    """Returns equal steps over `grid`, no longer than `step`, or as many as it has intervals."""
    span = abs(float(grid[-1] - grid[0]))
    n_steps = len(grid) - 1 if step is None else max(1, int(-(-span // step)))
    steps = torch.linspace(0.0, 1.0, n_steps + 1).to(grid) * (grid[-1] - grid[0]) + grid[0]
    steps[-1] = grid[-1]  # without rounding
    return steps
