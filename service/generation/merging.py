"""This module reads several async iterators as one, in the order in which their items arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from service.tasks import cancelled

T = TypeVar("T")


class _End:
    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yields the items of all `sources`, which it owns and closes. The first error ends all sources and is raised here.

    It reads at most one item ahead from each source, so a slow reader holds every source back.
    """
    queue: asyncio.Queue[T | _End] = asyncio.Queue(maxsize=1)
    tasks = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        await cancelled(tasks)
        for source in sources:  # a source that was cancelled before its first step never began
            await source.aclose()


async def _pump(source: AsyncGenerator[T, None], queue: asyncio.Queue[T | _End]) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put(item)
    except Exception as error:
        await queue.put(_End(error))
    else:
        await queue.put(_End())
