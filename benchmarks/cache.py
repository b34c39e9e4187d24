"""A cache of long runs: a run whose record exists is not repeated."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latent_morph.io.records import read_json, write_json

# The key "asked" of a record holds its settings: existing records have that name.
Record = dict[str, Any]


def run_cached(path: Path, settings: Record, run: Callable[[], Record]) -> Record:
    """Returns the record of `run`, from `path` if it exists.

    Args:
        path: File of the record, written when the run is complete.
        settings: Everything that the result depends on; part of the record.
        run: Computes the results.

    Raises:
        ValueError: The record has other settings.
    """
    settings = json.loads(json.dumps(settings))  # in the form that is read from a file
    if path.exists():
        record = read_json(path)
        if record.get("asked") != settings:
            raise ValueError(
                f"{path} must be a record of settings {settings}, got {record.get('asked')}. "
                f"Move it away, or pass another folder by --records."
            )
        return record
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{path.stem} ...", file=sys.stderr, flush=True)
    record = {"asked": settings, **run()}
    write_json(path, record)
    return record
