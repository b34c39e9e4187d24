"""Every command and code block of the README runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
COMMANDS = [line for kind, text in BLOCKS if kind == "bash" for line in text.splitlines() if line]

# Short versions of commands, so that the suite does not run itself or train for minutes.
SMALL = ["--quick", "--n-cases", "40", "--source", "synthetic"]
SHORT = ["--budget", "3"]  # of training
REPLACEMENTS = {
    "make run": ["make", "run", f"ARGS={' '.join(SMALL + SHORT)} --out {{out}}"],
    "make test": ["make", "test", "ARGS=--collect-only -q tests/test_readme.py"],
}


def test_readme_has_blocks_and_commands_under_test():
    assert {kind for kind, _ in BLOCKS} == {"bash", "python"}
    assert set(REPLACEMENTS) <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_commands_run(command, tmp_path):
    if command in REPLACEMENTS:
        if shutil.which("make") is None:
            pytest.skip("needs make")
        words = [word.format(out=tmp_path) for word in REPLACEMENTS[command]]
    else:
        program, *rest = command.split()
        assert program == "python", f"no rule for {command!r}"
        if rest[:2] == ["-m", "benchmarks"]:
            words = [sys.executable, *rest, "--task", "periodic 100", "--json", "rows.json"]
            run(words, tmp_path, PYTHONPATH=str(ROOT))
            assert (tmp_path / "rows.json").exists()
            return
        fewer = ["--n-times", "50"] if "--n-times" in rest else []
        budget = [] if "filter-bank" in rest else SHORT
        words = [sys.executable, *rest, *SMALL, *budget, *fewer, "--out", str(tmp_path)]
    run(words, ROOT)


def run(words, folder, **environment):
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_readme_python_blocks_run(code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example shows something"


def test_readme_links_and_pictures_exist():
    prose = re.sub(r"```.*?```", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", prose):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
