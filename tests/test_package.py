"""`import latent_morph`: its public names, and which libraries it does not load."""

import subprocess
import sys

import pytest

import latent_morph


def test_package_public_names_resolve():
    for name in latent_morph.__all__:
        assert getattr(latent_morph, name) is not None
        assert name in dir(latent_morph)


def test_package_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'latent_morph' has no attribute 'Flows'"):
        latent_morph.Flows  # noqa: B018


def test_package_all_matches_homes():
    assert sorted(latent_morph.__all__) == sorted(latent_morph._HOMES)


@pytest.mark.parametrize("statement", ["import latent_morph", "from latent_morph import FLOWS"])
def test_package_import_loads_no_heavy_library(statement):
    """Each of these would add a large part of the time that torch takes to import."""
    heavy = ["FrEIA", "torchdiffeq", "scipy", "sklearn", "pandas", "matplotlib"]
    code = f"import sys; {statement}; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("name", ["morf", "dopri", "", None])
def test_flows_registry_unknown_name_lists_known_names(name):
    with pytest.raises(ValueError, match="ode must be one of morph, morph-real, .*got"):
        latent_morph.FLOWS[name]
