"""Every page of the documentation holds: its code runs, its links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
# The reference is made of docstrings, which run as doctests of their modules.
WITH_CODE = [page for page in PAGES if "```" in page.read_text()]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs_and_says_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for what pages write
    # Without its fences, on lines of the same numbers, a page is a doctest.
    text = re.sub(r"^```.*$", "", page.read_text(), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    report = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    failed, tried = runner.run(examples, out=report.append)
    assert tried and not failed, "".join(report)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_all_code_is_tested(page):
    for kind, code in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S):
        assert kind == "python" and code.startswith(">>>"), code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_and_pictures_exist(page):
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


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [page.name for page in PAGES if f"({page.name})" not in index] == ["index.md"]
    scripts = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert [name for name in scripts if f"`examples/{name}`" not in index] == []


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text() for page in [*PAGES, ROOT / "README.md"])
    for picture in (ROOT / "docs").glob("*.png"):
        assert f"{picture.name})" in text, f"{picture.name} is shown nowhere"
        assert picture.stat().st_size < 200_000
