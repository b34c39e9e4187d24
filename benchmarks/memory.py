"""Peak memory of a call, as reported by the operating system."""

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_above(call: Callable[[], Any]) -> float | None:
    """Peak memory of `call` in megabytes above that held before it; None if not Linux."""
    if not _RESET.exists():
        return None
    gc.collect()
    _return_free_memory()
    _RESET.write_text("5")  # resets the high-water mark
    before = _read_kilobytes("VmRSS")
    call()
    return max(0.0, (_read_kilobytes("VmHWM") - before) / 1024)


def _return_free_memory() -> None:
    """Returns free memory of the allocator, which would hide allocations of a call."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has this
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _read_kilobytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} must have the entry {name}, got none")
