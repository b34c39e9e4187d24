"""Writes docs/api.md from the docstrings of everything public.

python docs/reference.py
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD = """# Reference

Made from the docstrings by `python docs/reference.py`; the [guide](index.md) goes by task.
"""
# Modules in the order of the page, and what of them is public; None for their `__all__`.
MODULES: dict[str, list[str] | None] = {
    "latent_morph": None,
    "latent_morph.plots": None,
    "latent_morph.datasets": None,
    "latent_morph.bijections": None,
    "latent_morph.encoders": None,
    "latent_morph.decoders": ["Decoder", "PointHead", "SeriesHead"],
    "latent_morph.models": ["LatentODE", "LatentOutput"],
    "latent_morph.scaling": ["SeriesScaler"],
    "latent_morph.export": ["series_inputs"],
    "latent_morph.diagnostics": ["Timing", "interleaved", "time_parts", "evaluations_in"],
}
# Headings of sections in either style of docstring, and what follows them.
NUMPYDOC = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.M)
GOOGLE = re.compile(r"^(Args|Returns|Raises|Attributes|Laws):\n", re.M)


def page() -> str:
    """The whole page, as Markdown."""
    parts = [HEAD]
    contents = []
    for name, chosen in MODULES.items():
        module = importlib.import_module(name)
        names = sorted(module.__all__ if chosen is None else chosen, key=str.lower)
        contents.append(f"- [`{name}`](#{name.replace('.', '')}): {', '.join(map(code, names))}")
        parts.append(f"## {name}\n\n{summary(module)}\n")
        for item in names:
            parts.append(entry(item, getattr(module, item)))
    return "\n".join([parts[0], "\n".join(contents) + "\n", *parts[1:]])


def code(text: str) -> str:
    """`text` in a code span."""
    return f"`{text}`"


def summary(thing: Any) -> str:  # noqa: ANN401
    """The first line of a docstring."""
    return (inspect.getdoc(thing) or "").split("\n")[0]


def entry(name: str, thing: Any) -> str:  # noqa: ANN401
    """A class with its methods, a function, or a constant."""
    if inspect.isclass(thing):
        parts = [f"### {name}\n"]
        if not issubclass(thing, Exception):
            parts.append(signature(name, thing))
        parts.append(markdown(inspect.getdoc(thing) or ""))
        for inner, member in methods(thing):
            if isinstance(member, property):
                parts.append(f"#### {name}.{inner}\n")
            else:
                parts.append(f"#### {name}.{inner}\n\n{signature(inner, member)}")
            parts.append(markdown(inspect.getdoc(member) or ""))
        return "\n".join(parts)
    if inspect.isfunction(thing):
        return "\n".join(
            [f"### {name}\n", signature(name, thing), markdown(inspect.getdoc(thing) or "")]
        )
    shown = ", ".join(map(code, thing))  # a table of names, or of colours
    return f"### {name}\n\n{shown}\n"


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of the class and of bases that have no entry themselves."""
    seen: set[str] = set()
    for base in cls.__mro__:
        told = base is not cls and base.__name__ in ("Flow", "Bijection", "Encoder")
        if told or not base.__module__.startswith("latent_morph"):
            continue
        for name, member in vars(base).items():
            routine = inspect.isfunction(member) or isinstance(member, (classmethod, property))
            if name.startswith("_") or name in seen or not routine:
                continue
            seen.add(name)
            yield name, member if isinstance(member, property) else getattr(cls, name)


def signature(name: str, thing: Any) -> str:  # noqa: ANN401
    """How it is called, in a block of code; many parameters are left to their table."""
    found = inspect.signature(thing)
    parameters = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    if len(parameters) > 12:
        call = f"{name}(*, {words(parameters[0])}, ...)"
    else:
        listed = found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
        texts = []
        for part in listed.parameters.values():
            if part.kind is part.KEYWORD_ONLY and "*" not in texts:
                texts.append("*")
            texts.append(words(part))
        call = f"{name}({', '.join(texts)})"
        if len(call) > 96:
            call = f"{name}(\n    " + ",\n    ".join(texts) + ",\n)"
    returned = found.return_annotation
    if not inspect.isclass(thing) and returned not in (inspect.Signature.empty, None, "None"):
        call += f" -> {kind(returned)}"
    return f"```python\n{call}\n```\n"


def words(parameter: inspect.Parameter) -> str:
    """A parameter as it stands in a signature, its types without their modules."""
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = star + parameter.name
    typed = parameter.annotation is not inspect.Parameter.empty
    if typed:
        text += f": {kind(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        equals = " = " if typed else "="
        text += f"{equals}{parameter.default!r}".replace("'", '"')
    return text


def kind(annotation: Any) -> str:  # noqa: ANN401
    """A type without the modules it comes from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text).replace("'", "")


def markdown(doc: str) -> str:
    """A docstring with its sections as lists and its examples as code."""
    marked = NUMPYDOC.sub(lambda m: f"\0{m[1]}\n", doc)
    marked = GOOGLE.sub(lambda m: f"\0{m[1]}:\n", marked)
    intro, *sections = marked.split("\0")
    parts = [fenced(intro.strip())]
    for section in sections:
        title, _, body = section.partition("\n")
        parts.append(section_text(title, body))
    return "\n\n".join(filter(None, parts)) + "\n"


def section_text(title: str, body: str) -> str:
    """One section: entries as a list, examples and laws as code."""
    google = title.endswith(":")
    title = {"Args": "Parameters"}.get(title.rstrip(":"), title.rstrip(":"))
    rest = ""
    if google:  # what is indented belongs to it, what follows is text again
        split = re.search(r"^(?=\S)", body, re.M)
        if split:
            body, rest = body[: split.start()], body[split.start() :]
        body = textwrap.dedent(body)
    body = body.strip("\n")
    if title == "Examples":
        text = fenced(body)
    elif title == "Laws":
        text = f"```text\n{body.rstrip()}\n```"
    else:
        text = "\n".join(listed(body, google, title))
    return "\n\n".join(filter(None, [f"**{title}**", text, fenced(rest.strip())]))


def listed(body: str, google: bool, title: str) -> Iterator[str]:
    """The entries of a section, one bullet each."""
    for block in filter(str.strip, re.split(r"^(?=\S)", body, flags=re.M)):
        head, _, text = block.partition("\n")
        text = bullets(text)
        if google and title == "Returns":
            yield f"- {' '.join(block.split())}"
        elif google:
            name, _, first = head.partition(": ")
            yield f"- `{name}`: {first}{' ' if text[:1].strip() else ''}{text}"
        else:
            name, _, type_ = head.partition(" : ")
            yield f"- `{name}`{f' ({type_})' if type_ else ''}{f': {text}' if text else ''}"


def bullets(text: str) -> str:
    """The lines of an entry as one, but for bullets among them."""
    parts = re.split(r"^\s*- ", text, flags=re.M)
    return "\n  - ".join(" ".join(part.split()) for part in parts)


def fenced(text: str) -> str:
    """Text whose examples stand in blocks of code."""
    blocks = [
        f"```python\n{block}\n```" if block.startswith(">>>") else block
        for block in re.split(r"\n\n+", text)
    ]
    return "\n\n".join(blocks)


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(page())
