"""Memory is promised to loads: what a load takes counts from its check to its end, so that two loads at once do not get
the same bytes. A load waits for what is being freed. The module knows sizes; no files and no engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from service.errors import Unavailable
from service.host import available_memory


class Memory:
    """The event loop owns it."""

    def __init__(self) -> None:
        self._promised = 0
        self._freeing = 0
        self._line = asyncio.Lock()
        self._end = asyncio.Event()

    @asynccontextmanager
    async def promised(self, reference: str, needed: int) -> AsyncIterator[None]:
        """Keeps `needed` bytes for the version until the block ends. Where only earlier loads, or versions that are
        being unloaded, stand in its way it waits for their ends, in order: a load takes less or more than was promised.
        Raises Unavailable where the version does not fit beside the memory in use: otherwise the kernel would choose a
        process to kill."""
        async with self._line:
            while needed > available_memory() - self._promised:
                waits_for_others = self._promised or self._freeing
                if not waits_for_others or needed > available_memory() + self._freeing:
                    raise _too_large(reference, needed)
                self._end.clear()
                await self._end.wait()
            self._promised += needed
        try:
            yield
        finally:
            self._promised -= needed
            self._end.set()

    @contextmanager
    def freeing(self, freed: int) -> Iterator[None]:
        """Within the block a version is being unloaded that takes about so many bytes."""
        self._freeing += freed
        try:
            yield
        finally:
            self._freeing -= freed
            self._end.set()


def _too_large(reference: str, needed: int) -> Unavailable:
    free = available_memory()
    return Unavailable(
        f"{reference} needs about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free: unload another version first",
        needed_bytes=needed,
        free_bytes=free,
    )
