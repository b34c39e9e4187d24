"""Registry: recipes by name; errors list the known names."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from latent_morph.checks import check_choice

Recipe = TypeVar("Recipe", bound=Callable[..., Any])


class Registry(dict[str, Recipe], Generic[Recipe]):
    """A dict from names to recipes, whose error for an unknown name lists the known ones.

    Args:
        kind: Name of the estimators' parameter that selects a recipe.
        recipes: The initial recipes.
    """

    def __init__(self, kind: str, recipes: Mapping[str, Recipe]) -> None:
        super().__init__(recipes)
        self.kind = kind

    def __missing__(self, name: str) -> Recipe:
        return self[check_choice(self.kind, name, self)]  # raises

    def register(self, name: str, recipe: Recipe) -> None:
        """Adds a recipe under a new name."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be a non-empty string, got {name!r}")
        if not callable(recipe):
            raise TypeError(f"recipe must be callable, got {type(recipe).__name__}")
        if name in self:
            raise ValueError(f"name must be new, got {name!r}, which is a known {self.kind}")
        self[name] = recipe
