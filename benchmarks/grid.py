"""Long comparisons in small pieces: what has been carried out once is read back the next time."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latent_morph.io.records import read_json, write_json

Record = dict[str, Any]


def recorded(path: Path, asked: Record, carry_out: Callable[[], Record]) -> Record:
    """What `carry_out` found, from the file `path` if it has been there before.

    Args:
        path: The record's file, written when everything it tells of has been done.
        asked: All that the result hangs on; it is written along.
        carry_out: Does the work.

    Raises:
        ValueError: The file is of something else that was asked: it would not be a rerun.
    """
    asked = json.loads(json.dumps(asked))  # as it comes back from a file
    if path.exists():
        record = read_json(path)
        if record.get("asked") != asked:
            raise ValueError(
                f"{path} was made with other settings, {record.get('asked')}; wanted {asked}. "
                f"Move it away, or name another folder with --records."
            )
        return record
    path.parent.mkdir(parents=True, exist_ok=True)
    print(f"{path.stem} ...", file=sys.stderr, flush=True)
    record = {"asked": asked, **carry_out()}
    write_json(path, record)
    return record
