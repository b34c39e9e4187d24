"""SolverFlow: any vector field integrated by torchdiffeq; the only file that imports it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from latent_morph.checks import check_choice, check_count, check_positive
from latent_morph.flows.base import Flow

# How each of torchdiffeq's methods chooses its steps. Written down, since importing torchdiffeq
# imports scipy, half a second that nobody should pay for a list; a test compares the two.
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
Failure = Callable[[str], "IntegrationError"]


class IntegrationError(RuntimeError):
    """A solver gave up, or left the finite numbers."""


@final
class SolverFlow(Flow):
    """Integrates z' = field(z) with a torchdiffeq method.

    A solver wants one sorted grid for the whole batch. Here repeated, unsorted, ragged and
    two-sided times are legal: the union of all times is solved once and each series reads off its
    own. Where each series asks for a single time of its own, no union is needed: time is stretched
    so that all of them travel from 0 to 1 together.

    Args:
        field: (..., D) to (..., D): a module, a flow's `field`, or any function. Parameters are
            found if it is a module or a module's method.
        latent_dim: D.
        method: A name from `METHODS`.
        rtol: Relative tolerance of adaptive methods.
        atol: Absolute tolerance of adaptive methods.
        step_size: Longest step of a fixed-step method. By default these step from one queried time
            to the next, as in the paper, whatever the gap.
        adjoint: Gradients by a second integration instead of a recorded one: memory does not grow
            with the number of steps. `"scipy_solver"` records nothing and always uses it.
        max_steps: An adaptive method that needs more between two queried times gives up;
            `"scipy_solver"`, which counts no steps, after 10 field evaluations for each of them.

    Attributes:
        field_evaluations: How often the field was evaluated since the flow was made; yours to
            set back to 0.
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
            self._owner = owner  # registers the parameters behind a bound method

    def _velocity(self, z: Tensor) -> Tensor:
        self.field_evaluations += 1
        return self._dynamics(z)

    def _trajectory(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        if elapsed.ndim > 1 and elapsed.shape[-1] == 1:
            return self._arrivals(z0, elapsed)
        return self._union_path(z0, elapsed)

    def _arrivals(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """One time a series: dz/ds = dt f(z) for s from 0 to 1, with dt a number a series."""
        span = float(elapsed.abs().max())
        unit = torch.stack([elapsed.new_zeros(()), elapsed.new_ones(())])
        path = self._solve(lambda s, z: elapsed * self._velocity(z), z0, unit, span)
        return path[1].unsqueeze(-2)

    def _union_path(self, z0: Tensor, elapsed: Tensor) -> Tensor:
        """Every time anybody asks for, solved outwards from 0 on each side, then read off."""
        asked, where = torch.unique(elapsed, return_inverse=True)
        # Times that differ by rounding alone, as scaled time stamps do, are one time.
        close = 4 * torch.finfo(elapsed.dtype).eps * asked.abs().max()
        past, future = _distinct(-asked.flip(0), close), _distinct(asked, close)
        path = self._solve(self._autonomous, z0, future, 1.0)
        if len(past) > 1:
            before = self._solve(self._autonomous, z0, -past, 1.0)
            path = torch.cat([before[1:].flip(0), path])
        path = path.movedim(0, -2)
        grid = torch.cat([-past[1:].flip(0), future])
        rows = (torch.searchsorted(grid, asked + close, right=True) - 1)[where]
        if rows.ndim == 1:
            return path.index_select(-2, rows)
        rows = rows.expand(*z0.shape[:-1], -1)
        return path.take_along_dim(rows.unsqueeze(-1), dim=-2)

    def _autonomous(self, t: Tensor, z: Tensor) -> Tensor:
        return self._velocity(z)

    def _solve(
        self, rhs: Callable[[Tensor, Tensor], Tensor], z0: Tensor, grid: Tensor, unit: float
    ) -> Tensor:
        """(T, ..., D) along the strictly monotone `grid`, whose unit lasts `unit` of real time."""
        if len(grid) == 1:
            return z0.unsqueeze(0)
        from torchdiffeq import odeint, odeint_adjoint  # imports scipy: see METHODS

        settings: dict[str, Any] = {
            "method": self.method,
            "rtol": self.rtol,
            "atol": self.atol,
            "options": self._options(unit),
        }
        if METHODS[self.method] == "scipy":
            rhs = self._limited(rhs, grid, unit)
        failure = partial(self._failure, grid, unit)
        with _in_words(failure):
            if self.adjoint and torch.is_grad_enabled():
                learned = tuple(p for p in self.parameters() if p.requires_grad)
                path = _Adjoint.apply(
                    partial(odeint_adjoint, rhs, t=grid, adjoint_params=learned, **settings),
                    failure,
                    z0,
                    *learned,
                )
            else:
                path = odeint(rhs, z0, grid, **settings)
        if len(path) != len(grid) or not torch.isfinite(path).all():
            raise failure("the state left the finite numbers")
        return path

    def _limited(
        self, rhs: Callable[[Tensor, Tensor], Tensor], grid: Tensor, unit: float
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """`rhs` that gives up in time: scipy's LSODA shrinks its step for ever at a blow-up."""
        limit = self.field_evaluations + 10 * self.max_steps

        def limited(t: Tensor, z: Tensor) -> Tensor:
            if self.field_evaluations >= limit:
                raise self._failure(grid, unit, f"more than {10 * self.max_steps} evaluations")
            return rhs(t, z)

        return limited

    def _options(self, unit: float) -> dict[str, Any]:
        stepping = METHODS[self.method]
        if stepping == "adaptive":
            return {"max_num_steps": self.max_steps}
        if stepping == "scipy":
            return {}
        step = None if self.step_size is None else self.step_size / max(unit, 1e-30)
        if stepping == "fixed":
            return {"grid_constructor": lambda f, y, t: _subdivided(t, step)}
        # Adams formulas are right for equal steps only, so outputs between steps are interpolated.
        return {"grid_constructor": lambda f, y, t: _even(t, step), "interp": "cubic"}

    def _failure(self, grid: Tensor, unit: float, reason: str) -> IntegrationError:
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
def _in_words(failure: Failure) -> Iterator[None]:
    """torchdiffeq reports underflow and too many steps by assertions."""
    try:
        yield
    except AssertionError as reason:
        raise failure(str(reason)) from reason


class _Adjoint(torch.autograd.Function):
    """torchdiffeq's adjoint method, whose second integration fails in words as the first does."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any,  # noqa: ANN401
        solve: Callable[..., Tensor],
        failure: Failure,
        z0: Tensor,
        *learned: Tensor,
    ) -> Tensor:
        start = z0.detach().requires_grad_()
        with torch.enable_grad():
            path = solve(y0=start)
        ctx.failure, ctx.path, ctx.inputs = failure, path, (start, *learned)
        return path.detach()

    @staticmethod
    def backward(ctx: Any, grad_path: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401, D102
        with _in_words(ctx.failure):
            gradients = torch.autograd.grad(
                ctx.path, ctx.inputs, grad_path, retain_graph=True, allow_unused=True
            )
        if grad_path.isfinite().all() and not all(
            g.isfinite().all() for g in gradients if g is not None
        ):
            raise ctx.failure("the gradient left the finite numbers on the way back")
        return None, None, *gradients


def _distinct(times: Tensor, close: Tensor) -> Tensor:
    """0 and the sorted `times` after it, each further than `close` from the one before it."""
    later = torch.cat([times.new_zeros(1), times[times > close]])
    return later[torch.cat([later.new_ones(1, dtype=torch.bool), later.diff() > close])]


def _subdivided(grid: Tensor, step: float | None) -> Tensor:
    """`grid` with each interval cut into equal steps no longer than `step`; every output is hit.

    torchdiffeq's own step_size lays one even grid and interpolates linearly between its points,
    which costs a high-order method its order.
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


def _even(grid: Tensor, step: float | None) -> Tensor:
    """Equal steps over the span of `grid`: no longer than `step`, or as many as it has gaps."""
    span = abs(float(grid[-1] - grid[0]))
    n_steps = len(grid) - 1 if step is None else max(1, int(-(-span // step)))
    even = torch.linspace(0.0, 1.0, n_steps + 1).to(grid) * (grid[-1] - grid[0]) + grid[0]
    even[-1] = grid[-1]
    return even
