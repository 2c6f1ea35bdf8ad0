"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

AGAIN_SECONDS: Final = 0.05


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel and await all of them; their results and errors are dropped.

    Asked again until they end: `asyncio.wait_for` before Python 3.12 loses a cancellation that comes together with the
    result it waits for (python/cpython#86296), and a task that goes on then may wait for whoever awaits it here.
    """
    every = tuple(tasks)
    left = {task for task in every if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
    for task in every:
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not log it as lost
