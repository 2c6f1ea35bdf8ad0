"""Memory is promised to loads: what a load takes counts from its check to its end, so that two loads at once do not get
the same bytes. It knows sizes; no files and no engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import Unavailable
from service.host import available_memory


class Memory:
    """The event loop owns it."""

    def __init__(self) -> None:
        self._promised = 0
        self._line = asyncio.Lock()
        self._end = asyncio.Event()

    @asynccontextmanager
    async def promised(self, reference: str, needed: int) -> AsyncIterator[None]:
        """Keeps `needed` bytes for the version until the block ends. Where only earlier loads stand in its way it waits
        for their ends, in order: a load takes less or more than was promised. Raises Unavailable where the version does
        not fit beside the memory in use: otherwise the kernel would choose a process to kill."""
        async with self._line:
            while needed > available_memory() - self._promised:
                if not self._promised or needed > available_memory():
                    raise _too_large(reference, needed)
                self._end.clear()
                await self._end.wait()
            self._promised += needed
        try:
            yield
        finally:
            self._promised -= needed
            self._end.set()


def _too_large(reference: str, needed: int) -> Unavailable:
    free = available_memory()
    return Unavailable(
        f"{reference} needs about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: unload another version first",
        needed_bytes=needed,
        free_bytes=free,
    )
