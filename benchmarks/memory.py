"""Peak memory of a call, as the operating system sees it."""

import contextlib
import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_above(call: Callable[[], Any]) -> float | None:
    """Megabytes that `call` needs at its height above what was held before; None if not Linux."""
    if not _RESET.exists():
        return None
    gc.collect()
    _return_free_memory()
    _RESET.write_text("5")  # the high-water mark starts anew from here
    before = _kilobytes("VmRSS")
    call()
    return max(0.0, (_kilobytes("VmHWM") - before) / 1024)


def _return_free_memory() -> None:
    """Memory that the allocator keeps for later would hide what a call takes from it."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has this
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _kilobytes(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise OSError(f"{_STATUS} has no {name}")
