"""Activity says whether the server has work for a client: requests in all versions, and loads. It knows no version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """The event loop owns it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._count = 0
        self._ended_at = clock()
        self._busy = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        return self._busy.is_set()

    @property
    def idle_seconds(self) -> float:
        """Returns for how long there was no work, 0 while there is some."""
        return 0.0 if self._count else self._clock() - self._ended_at

    async def begins(self) -> None:
        """Waits until there is work; returns at once where there is."""
        await self._busy.wait()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Counts work until the block ends."""
        self._count += 1
        self._busy.set()
        try:
            yield
        finally:
            self._count -= 1
            self._ended_at = self._clock()
            if not self._count:
                self._busy.clear()
