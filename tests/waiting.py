"""A test waits for what it wants, never for a time: `until` in coroutines, `block_until` elsewhere.

The bound ends a wait that is lost. It is long, because a machine with other work takes its time.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

import psutil

SECONDS = 60.0


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the product offers as a state only, not as an event."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


def block_until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait for the work of a thread or of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; a process that nobody has waited for yet has ended."""
    return [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
