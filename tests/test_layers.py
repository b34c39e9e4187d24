"""Imports point one way, and each heavy library is imported in one file."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "latent_morph"

# Lowest first. A module may import from its own layer and from those above it in this list.
LAYERS = [
    {"checks", "seeding"},
    {"nn", "recurrence", "registry", "series"},
    {"io"},
    {"bijections"},
    {"flows"},
    {"filters"},
    {"encoders"},
    {"models"},
    {"losses"},
    {"training"},
    {"datasets"},
    {"diagnostics"},
    {"estimators"},
    {"plots"},
    {"experiments", "integrations"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# The numerical core knows nothing of data containers.
NEVER_SEE_SERIES = {"nn", "recurrence", "bijections", "flows", "filters"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_layers_imports_point_down(path):
    here = part(path)
    assert here in RANK, f"{here} has no layer: give it one"
    for name in imported(path):
        root, *rest = name.split(".")
        if root != "latent_morph":
            continue
        there = rest[0]
        assert RANK[there] <= RANK[here], f"{path} imports {name}, which is above it"
        assert there == here or RANK[there] < RANK[here] or there in ("checks", "seeding"), name
        assert not (there == "series" and here in NEVER_SEE_SERIES), f"{path} imports series"


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("FrEIA", "bijections/freia.py"),
        ("torchdiffeq", "flows/solver.py"),
        ("aeon", "integrations/aeon.py"),
        ("sktime", "integrations/sktime.py"),
    ],
)
def test_layers_one_module_per_library(library, home):
    homes = [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if any(name.split(".")[0] == library for name in imported(path))
    ]
    assert homes == [home]
