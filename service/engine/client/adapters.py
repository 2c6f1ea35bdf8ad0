"""`Adapters` lists the adapters that an engine process must have, and the callers that wait for a load.

It lives in the event loop and sends nothing itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from service.engine.protocol.messages import AdapterLoaded, LoadAdapter

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Wanted:
    """An adapter that must be loaded. `answered` becomes the reason of a failure, or "" after a load. It is None for an
    adapter of the first process's configuration."""

    frame: LoadAdapter
    answered: asyncio.Future[str] | None


class Adapters:
    """Holds adapters by name. The process may get several orders for one name, so its answers carry the order's
    ticket."""

    def __init__(self, known: Iterable[tuple[str, str]]) -> None:
        """`known` holds (name, directory) of the adapters that the first process loads before it is ready."""
        self._tickets = itertools.count()
        self._wanted = {name: _Wanted(self._frame(name, directory), None) for name, directory in known}

    def want(self, name: str, directory: str) -> LoadAdapter | None:
        """Returns the frame to send to the process; None if it was sent before."""
        if name in self._wanted:
            return None
        frame = self._frame(name, directory)
        self._wanted[name] = _Wanted(frame, asyncio.get_running_loop().create_future())
        return frame

    async def there(self, name: str) -> str:
        """Waits for the answer and returns the reason of a failure, or "". The caller bounds the wait."""
        answered = self._wanted[name].answered
        return await asyncio.shield(answered) if answered else ""

    def drop(self, name: str, why: str) -> None:
        wanted = self._wanted.pop(name, None)
        if wanted is not None:
            _answer(wanted, why)

    def take(self, message: AdapterLoaded) -> None:
        """Takes the process's answer to a frame."""
        wanted = self._wanted.get(message.name)
        if wanted is None or wanted.frame.ticket != message.ticket:
            return
        if message.error:
            _logger.warning("adapter %s could not be loaded: %s", message.name, message.error)
            self.drop(message.name, message.error)
        else:
            _answer(wanted, "")

    def frames(self) -> list[LoadAdapter]:
        """Returns the frames to send to a new process."""
        return [wanted.frame for wanted in self._wanted.values()]

    def fail(self, why: str) -> None:
        """Gives every waiting caller this reason, because the engine has ended."""
        for wanted in self._wanted.values():
            _answer(wanted, why)

    def _frame(self, name: str, directory: str) -> LoadAdapter:
        return LoadAdapter(name, directory, next(self._tickets))


def _answer(wanted: _Wanted, why: str) -> None:
    if wanted.answered is not None and not wanted.answered.done():
        wanted.answered.set_result(why)
