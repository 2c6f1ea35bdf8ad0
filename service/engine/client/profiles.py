"""`Profiles` holds the profile that an engine process is making, and the caller that waits for its end.

It lives in the event loop and sends nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import Profile, Profiled
from service.errors import Conflict


class Profiles:
    """One profile at a time."""

    def __init__(self) -> None:
        self._id = ""
        self._ended: asyncio.Future[Profiled] | None = None

    @contextmanager
    def run(self, order: Profile) -> Iterator[asyncio.Future[Profiled]]:
        """Yields the end of the profile that `order` asks for. Raises Conflict while another one runs."""
        if self._ended is not None:
            raise Conflict("Another profile of this engine runs; wait for its end")
        self._id, self._ended = order.id, asyncio.get_running_loop().create_future()
        try:
            yield self._ended
        finally:
            self._ended = None

    def take(self, frame: Profiled) -> None:
        """Takes the process's answer. Drops that of a profile that nobody waits for any more."""
        if self._ended is not None and not self._ended.done() and frame.id == self._id:
            self._ended.set_result(frame)

    def fail(self, why: str) -> None:
        """Ends the profile with EngineFailed, because the process has ended."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(EngineFailed(why))
