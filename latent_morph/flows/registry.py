"""FLOWS: the name of every ODE, and the recipe that builds it for a latent dimension.

A recipe is a function `(latent_dim, **options) -> Flow`. To add one, write it and give it a line
in `FLOWS`; estimators, the command line and the tests of the laws pick it up from there.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from latent_morph.bijections.inn import resolve_inn
from latent_morph.checks import check_choice, check_count
from latent_morph.flows.base import Flow
from latent_morph.flows.linear import LinearFlow
from latent_morph.flows.morph import MorphFlow
from latent_morph.flows.solver import METHODS, SolverFlow
from latent_morph.nn import mlp
from latent_morph.registry import Registry
from latent_morph.seeding import seeded

FlowRecipe = Callable[..., Flow]


def morph(
    latent_dim: int,
    *,
    spectrum: str = "complex",
    eigenvectors: str = "learned",
    stable: bool = False,
    horizon: float = 1.0,
    inn: str | Mapping[str, Any] = "compact",
    goal: Sequence[float] | torch.Tensor | None = None,
    dense_output: float | None = None,
    seed: int | None = None,
) -> MorphFlow:
    """Builds a linear ODE mapped by an invertible network: a closed form.

    `inn` is the name of a preset or a mapping of options of `make_inn`. `goal` and `dense_output`
    are those of `MorphFlow`, the other options those of `LinearFlow`. `seed` makes the initial
    network reproducible.
    """
    base = LinearFlow(
        latent_dim, spectrum=spectrum, eigenvectors=eigenvectors, stable=stable, horizon=horizon
    )
    with seeded(seed):
        warp = resolve_inn(inn, latent_dim)
    point = None if goal is None else torch.as_tensor(goal, dtype=torch.get_default_dtype())
    return MorphFlow(base, warp, goal=point, dense_output=dense_output)


def morph_neural(
    latent_dim: int,
    *,
    units: int = 30,
    layers: int = 3,
    activation: str = "tanh",
    method: str = "euler",
    inn: str | Mapping[str, Any] = "compact",
    seed: int | None = None,
    **solver_options: Any,  # noqa: ANN401
) -> MorphFlow:
    """Builds a small neural ODE mapped by an invertible network, for chaotic or stiff systems.

    The defaults are the paper's: three hidden layers of 30 units, and Euler steps from one
    queried time to the next. `solver_options` are those of `SolverFlow`.
    """
    with seeded(seed):
        base = solver(
            latent_dim,
            method=method,
            units=units,
            layers=layers,
            activation=activation,
            **solver_options,
        )
        return MorphFlow(base, resolve_inn(inn, latent_dim))


def solver(
    latent_dim: int,
    *,
    method: str,
    units: int = 100,
    layers: int = 2,
    activation: str = "tanh",
    seed: int | None = None,
    **solver_options: Any,  # noqa: ANN401
) -> SolverFlow:
    """Builds a neural ODE that is integrated by the torchdiffeq method of that name.

    `solver_options` are those of `SolverFlow`: rtol, atol, step_size, adjoint, max_steps.
    """
    check_count("latent_dim", latent_dim)
    with seeded(seed):
        field = mlp(latent_dim, latent_dim, width=units, depth=layers, activation=activation)
    return SolverFlow(field, latent_dim, method=method, **solver_options)


FLOWS: Registry[FlowRecipe] = Registry(
    "ode",
    {
        "morph": morph,
        "morph-real": partial(morph, spectrum="real"),
        "morph-stable": partial(morph, stable=True),
        "morph-neural": morph_neural,
        "linear": LinearFlow,
        **{name: partial(solver, method=name) for name in METHODS},
    },
)


def register(name: str, recipe: FlowRecipe) -> None:
    """Makes `recipe` available to every estimator and to the command line as `ode=name`.

    Args:
        name: A new name.
        recipe: `(latent_dim, **options) -> Flow`; users pass the options as `ode_options`.
    """
    FLOWS.register(name, recipe)


def resolve_flow(
    ode: str | FlowRecipe, options: Mapping[str, Any] | None, *, name: str = "ode"
) -> Callable[[int], Flow]:
    """Returns a function that builds the flow for a dimension.

    Args:
        ode: A name from `FLOWS`, or a recipe.
        options: Options of the recipe.
        name: Name of the caller's parameter, for errors.
    """
    recipe = FLOWS[check_choice(name, ode, FLOWS)] if isinstance(ode, str) else ode
    return partial(recipe, **(options or {}))
