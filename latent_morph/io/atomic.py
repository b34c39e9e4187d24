"""Atomic writing: a file is replaced as a whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]


@contextmanager
def atomic_path(path: AnyPath) -> Iterator[Path]:
    """Yields an empty temporary file beside `path`, which replaces it if the block succeeds.

    On any exception, KeyboardInterrupt included, the temporary file is removed and `path` is left
    unchanged. The temporary name keeps the suffix, from which some writers infer the format.

    Args:
        path: The file to write. Its folder must exist.

    Raises:
        OSError: The folder does not exist or is not writable; `filename` is `path`.
    """
    target = Path(path)
    temporary = target.parent / f".part-{secrets.token_hex(8)}{target.suffix}"
    try:
        try:
            # tempfile would create it with mode 0600; with 0666 the umask applies as usual.
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except OSError as error:
            error.filename = str(target)  # the caller does not know the temporary name
            raise
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())  # else a power failure may keep the new name without the data
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_bytes_atomic(path: AnyPath, data: bytes) -> Path:
    """Writes `data` to `path` atomically and returns the path."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)
