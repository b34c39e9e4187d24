"""The documentation: the guide's code runs, links have targets, the reference is complete."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import latent_morph

ROOT = Path(__file__).parent.parent
GUIDE = sorted((ROOT / "docs").glob("*.md"))
# The reference is made from docstrings, which run as doctests of their modules.
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))
WITH_CODE = [page for page in GUIDE if "```" in page.read_text()]
# What the pages of the reference show: `::: latent_morph.flows`, a module or an object.
SHOWN = {
    name
    for page in REFERENCE
    for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_docs_code_runs_with_shown_output(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what pages write
    # Without its fences, on lines of the same numbers, a page is a doctest.
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    failed, tried = runner.run(examples, out=report.append)
    assert tried and not failed, "".join(report)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_docs_code_blocks_are_doctests(page):
    for kind, code in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S):
        assert kind == "python" and code.startswith(">>>"), code


@pytest.mark.parametrize("page", [*GUIDE, *REFERENCE], ids=lambda page: page.stem)
def test_docs_links_and_pictures_exist(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        path, _, place = target.partition("#")
        there = page.parent / path if path else page
        assert there.exists(), target
        if place:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert place in anchors, target


def is_module(name):
    path = ROOT / name.replace(".", "/")
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


@pytest.mark.parametrize("name", latent_morph.__all__)
def test_docs_reference_has_public_name(name):
    public = getattr(latent_morph, name)
    modules = [importlib.import_module(shown) for shown in SHOWN if is_module(shown)]
    homes = [module for module in modules if name in getattr(module, "__all__", ())]
    assert any(getattr(home, name) is public for home in homes), f"no page shows {name}"
    if not callable(public):  # data have no docstring, and are shown only where they are named
        assert any(f"{home.__name__}.{name}" in SHOWN for home in homes)


def test_docs_reference_shows_every_package_with_public_names():
    packages = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "latent_morph").glob("*/__init__.py")
        if "__all__" in path.read_text()
    }
    assert packages - SHOWN == set()


def test_docs_index_lists_every_page_and_example():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in GUIDE if f"({page.name})" not in index] == ["index.md"]
    scripts = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert [name for name in scripts if f"`examples/{name}`" not in index] == []


def test_docs_pictures_are_small_and_shown():
    text = "".join(page.read_text() for page in [*GUIDE, ROOT / "README.md"])
    for picture in (ROOT / "docs").glob("*.png"):
        assert f"{picture.name})" in text, f"{picture.name} is shown nowhere"
        assert picture.stat().st_size < 200_000
