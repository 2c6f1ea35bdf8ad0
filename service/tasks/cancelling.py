"""This module cancels tasks and makes sure that they end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

AGAIN_SECONDS: Final = 0.05


async def cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels and awaits all tasks; drops their results and errors.

    It cancels again until they end: `asyncio.wait_for` before Python 3.12 loses a cancellation that comes together with
    the result it waits for (python/cpython#86296). A task that then goes on may wait for the task that awaits it here.
    """
    every = tuple(tasks)
    left = {task for task in every if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
    for task in every:
        if not task.cancelled():
            task.exception()  # read, so that asyncio does not log it as never retrieved
