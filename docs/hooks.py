"""Hooks of MkDocs: pages from outside docs/, and formulas that need no script.

Pages link to files outside docs/ by their path in the repository, `../results/README.md`, which
works on a code host. The site has these files as if docs/ were the root of the repository.
"""

import html
import posixpath
import re
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE_DOCS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/*.md",
    "data/README.md",
    "results/README.md",
    "results/*.json",
    "results/*.png",
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files from outside docs/."""
    for pattern in OUTSIDE_DOCS:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Changes links that leave docs/ to where `on_files` puts their targets."""
    folder = posixpath.dirname(page.file.src_uri)

    def redirect(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if not target.startswith("../"):
            return link[0]
        return f"]({posixpath.relpath(target.removeprefix('../'), folder or '.')}{link[2] or ''})"

    return re.sub(r"\]\((\.\./[^)#\s]*)(#[^)\s]*)?\)", redirect, markdown)


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Converts TeX, as pymdownx.arithmatex marks it, to MathML, which browsers render."""

    def to_mathml(formula: re.Match[str]) -> str:
        display = "block" if formula[1] == "[" else "inline"
        mathml = convert(html.unescape(formula[2]), display=display)
        # The converter makes an identifier of \sim, which is an operator and has space around it.
        return mathml.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")

    marked = r'<(?:span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</(?:span|div)>'
    return re.sub(marked, to_mathml, content, flags=re.DOTALL)
