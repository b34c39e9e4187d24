"""A typed user script passes `mypy --strict`, and one with mistakes does not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MISTAKEN = """\
from latent_morph import DynamicsRegressor, LatentODEClassifier
LatentODEClassifier(max_epochs="many")
LatentODEClassifier(epochs=3)
label: str = DynamicsRegressor().predict([0.0, 1.0])
"""


@pytest.mark.slow
def test_typing_of_user_script_passes_and_mistakes_are_found(tmp_path):
    pytest.importorskip("mypy")
    mistaken = tmp_path / "mistaken.py"
    mistaken.write_text(MISTAKEN)
    # A user's settings, not ours. As for an installed package, errors inside it are not shown,
    # nor is it an error that pandas comes without types.
    settings = ["--strict", "--follow-imports=silent", "--disable-error-code=import-untyped"]
    # One process for both, and a cache apart from that of `make lint`, whose settings differ.
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", *settings]
        + ["--cache-dir", ".mypy_cache/user", "tests/typed_user.py", str(mistaken)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not done.stderr
    for line, kind in ((2, "[arg-type]"), (3, "[call-arg]"), (4, "[assignment]")):
        assert any(f"mistaken.py:{line}: " in error and kind in error for error in errors)
    assert [error for error in errors if "mistaken.py" not in error] == []
