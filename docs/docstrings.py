"""A Griffe extension: docstrings that mkdocstrings would not read correctly from the source."""

import importlib
import inspect
import re
from typing import Any

import griffe

# Docstrings of estimators get their shared parameters when the estimators are imported.
COMPLETED_ON_IMPORT = "latent_morph.estimators."
# A section Returns describes one value, on as many lines as it takes.
GOOGLE = {"returns_multiple_items": False, "returns_named_value": False}


class Docstrings(griffe.Extension):
    """Takes the docstrings of estimators as `help` shows them, and parses numpydoc as such.

    The option `docstring_style` of a page reaches only the object that its directive names, and
    `force_inspection` only works for the whole package.
    """

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:  # noqa: ANN401
        """Runs on every object of the package."""
        if obj.docstring is None:
            return
        if obj.is_class and obj.path.startswith(COMPLETED_ON_IMPORT):
            imported = importlib.import_module(obj.module.path)
            obj.docstring.value = inspect.getdoc(getattr(imported, obj.name)) or ""
        # The sections of numpydoc are underlined; everything else is in Google style.
        if re.search(r"^-{3,}$", obj.docstring.value, re.MULTILINE):
            obj.docstring.parser = griffe.Parser.numpy
        else:
            obj.docstring.parser_options = GOOGLE
