"""Docstrings are complete: type, default and meaning per parameter, and all public names."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

import latent_morph
from latent_morph import estimators

ESTIMATORS = [getattr(estimators, name) for name in estimators.__all__]
# Adapters need libraries that are extras; they have tests of their own.
EXTRAS = {"latent_morph.integrations.aeon", "latent_morph.integrations.sktime"}
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(latent_morph.__path__, "latent_morph.")
    if module.name not in EXTRAS
]


def entries(doc, section):
    """Names of a numpydoc section with their type lines and texts."""
    match = re.search(rf"^{section}\n-+\n(.*?)(?=^\w[\w ]*\n---|\Z)", doc, re.M | re.S)
    assert match, f"no section {section}"
    parts = re.split(r"^(?=\S)", match[1], flags=re.M)
    result = {}
    for part in filter(str.strip, parts):
        head, *text = part.splitlines()
        names, _, kind = head.partition(" : ")
        for name in names.split(", "):
            result[name] = (kind.strip(), " ".join(" ".join(text).split()))
    return result


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_docstring_parameters_have_type_default_and_meaning(estimator):
    documented = entries(inspect.getdoc(estimator), "Parameters")
    parameters = inspect.signature(estimator).parameters
    assert list(documented) == list(parameters), "the same parameters in the same order"
    for name, parameter in parameters.items():
        kind, meaning = documented[name]
        type_, _, default = kind.rpartition(", default=")
        assert type_, f"{name} lacks a type or a default: {kind!r}"
        assert ast.literal_eval(default) == parameter.default, name
        assert len(meaning) > 10 and meaning.endswith("."), name


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_docstring_attributes_match_fitted_estimator(estimator):
    import numpy as np

    times = np.linspace(0, 1, 5)
    X = [(times, np.stack([times + i, times], 1)) for i in range(4)]
    arguments = {"y": [0, 1, 0, 1]} if hasattr(estimator, "predict_proba") else {}
    quick = {"max_epochs": 1} if "max_epochs" in inspect.signature(estimator).parameters else {}
    fitted = estimator(**quick).fit(X, **arguments)
    learned = {name for name in vars(fitted) if name.endswith("_") and name[0] != "_"}
    documented = entries(inspect.getdoc(estimator), "Attributes")
    always = {name for name, entry in documented.items() if "Absent without one" not in entry[1]}
    assert learned == always


def test_docstring_of_shared_parameters_agrees():
    """Except for defaults, the latent ODE estimators describe a shared parameter alike."""
    first, *others = (
        entries(inspect.getdoc(cls), "Parameters")
        for cls in ESTIMATORS
        if issubclass(cls, estimators.latent.LatentODEBase)
    )
    for other in others:
        for name in first.keys() & other.keys() - {"kl_weight", "validation_fraction"}:
            assert first[name][1] == other[name][1], name
            assert first[name][0].split(", default=")[0] == other[name][0].split(", default=")[0]


def public(module):
    """Public functions and classes defined in the module, and what their classes define."""
    for name, thing in vars(module).items():
        if name.startswith("_") or getattr(thing, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(thing):
            yield name, thing
        elif inspect.isclass(thing):
            yield name, thing
            for inner, member in vars(thing).items():
                if isinstance(member, (classmethod, staticmethod)):
                    member = member.__func__
                if inner.startswith("_") or not (
                    inspect.isfunction(member) or isinstance(member, property)
                ):
                    continue
                yield f"{name}.{inner}", getattr(thing, inner)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_docstring_of_every_public_name_exists(module):
    assert module.__doc__
    missing = [name for name, thing in public(module) if not inspect.getdoc(thing)]
    assert missing == []


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda cls: cls.__name__)
def test_docstring_of_methods_names_every_argument(estimator):
    """Docstrings of our own methods mention every argument."""
    for name, method in inspect.getmembers(estimator, inspect.isroutine):
        module = getattr(method, "__module__", "") or ""
        if name.startswith("_") or not module.startswith("latent_morph"):
            continue
        documented = inspect.getdoc(method)
        for parameter in inspect.signature(method).parameters:
            if parameter in ("self", "cls"):
                continue
            assert re.search(rf"\b{parameter}\b", documented), (
                f"{name} does not mention {parameter}"
            )
