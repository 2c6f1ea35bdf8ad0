"""The memory of the server's process: what lives as long as the process is never scanned again, and what a peak leaves
goes back to the system."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

FULL_COLLECTIONS: Final = 100
"""Collections of the middle generation before one of all; Python's default is 10."""
MMAP_THRESHOLD, ARENA_MAX = -3, -8
"""Names of mallopt(3)."""
LARGE_BYTES: Final = 128 << 10
ARENAS: Final = 2


def return_peaks() -> None:
    """Has glibc give back what a peak has left; elsewhere it does nothing. Called before there are threads.

    Two arenas in place of eight a core: each keeps its own free pages, and a thread of each connection to the database
    has one. Large pieces always lie alone: a threshold that is not set rises to the largest piece that was ever freed,
    and then they lie between others. Together they held 6 to 15 MiB in the first half hour of load, and hold 1 to 6."""
    try:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    except (OSError, TypeError):  # there is no C library to ask
        return
    if mallopt is not None:
        mallopt(ARENA_MAX, ARENAS)
        mallopt(MMAP_THRESHOLD, LARGE_BYTES)


def spare_collections() -> None:
    """Never scans again what lives as long as the process, and all of the rest seldom: a full collection held the event
    loop for 0.2 s under load, and found nothing. Young garbage is collected as ever."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, FULL_COLLECTIONS)
