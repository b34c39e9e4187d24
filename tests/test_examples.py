"""Every example runs and writes a picture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_writes_picture(script, tmp_path):
    done = subprocess.run(
        [sys.executable, script, "--max-epochs", "3", "--out", tmp_path],
        env=os.environ | {"PYTHONPATH": str(ROOT)},  # this checkout, whatever is installed
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("*.png")), done.stdout
