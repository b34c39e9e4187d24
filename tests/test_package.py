"""What `import latent_morph` gives, and what it does not cost."""

import subprocess
import sys

import pytest

import latent_morph


def test_public_names_resolve():
    for name in latent_morph.__all__:
        assert getattr(latent_morph, name) is not None
        assert name in dir(latent_morph)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'latent_morph' has no attribute 'Flows'"):
        latent_morph.Flows  # noqa: B018


def test_all_and_homes_agree():
    assert sorted(latent_morph.__all__) == sorted(latent_morph._HOMES)


@pytest.mark.parametrize("statement", ["import latent_morph", "from latent_morph import FLOWS"])
def test_import_waits_for_no_heavy_library(statement):
    """Half of torch's own import time at most: so nothing that itself takes as long."""
    heavy = ["FrEIA", "torchdiffeq", "scipy", "sklearn", "pandas", "matplotlib"]
    code = f"import sys; {statement}; print([m for m in {heavy} if m in sys.modules])"
    seen = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert seen.strip() == "[]"


@pytest.mark.parametrize("name", ["morf", "dopri", "", None])
def test_unknown_flow_lists_the_known(name):
    with pytest.raises(ValueError, match="ode must be one of morph, morph-real, .*got"):
        latent_morph.FLOWS[name]
