"""The memory of the server's process: what lives as long as the process is never scanned again, and pages that a peak
has left go back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable
from typing import Final

FULL_COLLECTIONS: Final = 100
"""Collections of the middle generation before one of all; Python's default is 10."""
RELEASE_MEMORY: Final = "release_memory"
_RELEASE_SECONDS: Final = 60.0


def spare_collections() -> None:
    """Never scans again what lives as long as the process, and all of the rest seldom: a full collection held the event
    loop for 0.2 s under load, and found nothing. Young garbage is collected as ever."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTIONS)


async def release() -> None:
    """Gives free pages back after a while. A task calls it again and again."""
    await asyncio.sleep(_RELEASE_SECONDS)
    await asyncio.to_thread(release_now)


def release_now() -> None:
    """Gives pages that no allocation uses back to the system: the C library keeps those between two that stay, some
    10 MiB behind an hour of load. Only glibc can; it takes milliseconds, in which other threads go on."""
    if (trim := _trim()) is not None:
        trim(0)


def _trim() -> Callable[[int], object] | None:
    try:
        found: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except (OSError, TypeError):  # there is no C library to ask
        return None
    return found
