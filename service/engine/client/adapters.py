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
class _LoadRequest:
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
        self._requests = {name: _LoadRequest(self._frame(name, directory), None) for name, directory in known}

    def want(self, name: str, directory: str) -> LoadAdapter | None:
        """Returns the frame to send to the process; None if it was sent before."""
        if name in self._requests:
            return None
        frame = self._frame(name, directory)
        self._requests[name] = _LoadRequest(frame, asyncio.get_running_loop().create_future())
        return frame

    async def failure_of(self, name: str) -> str:
        """Waits for the answer and returns the reason of a failure, or "". The caller bounds the wait."""
        answered = self._requests[name].answered
        return await asyncio.shield(answered) if answered else ""

    def drop(self, name: str, why: str) -> None:
        request = self._requests.pop(name, None)
        if request is not None:
            _answer(request, why)

    def take(self, message: AdapterLoaded) -> None:
        """Takes the process's answer to a frame."""
        request = self._requests.get(message.name)
        if request is None or request.frame.ticket != message.ticket:
            return
        if message.error:
            _logger.warning("adapter %s could not be loaded: %s", message.name, message.error)
            self.drop(message.name, message.error)
        else:
            _answer(request, "")

    def frames(self) -> list[LoadAdapter]:
        """Returns the frames to send to a new process."""
        return [request.frame for request in self._requests.values()]

    def fail(self, why: str) -> None:
        """Gives every waiting caller this reason, because the engine has ended."""
        for request in self._requests.values():
            _answer(request, why)

    def _frame(self, name: str, directory: str) -> LoadAdapter:
        return LoadAdapter(name, directory, next(self._tickets))


def _answer(request: _LoadRequest, why: str) -> None:
    if request.answered is not None and not request.answered.done():
        request.answered.set_result(why)
