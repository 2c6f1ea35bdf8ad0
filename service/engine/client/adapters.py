"""`Adapters` lists the adapters that an engine process must have, and the callers that wait for a load.

An adapter that no process has had, and that cannot be loaded, is dropped. One that a process has had is wanted until it
is dropped by name: a restarted process that cannot load it is told to try again, after longer and longer pauses.
`Adapters` lives in the event loop and sends nothing itself.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass

from service.engine.client.restart_policy import DEFAULT_POLICY, Backoff, RestartPolicy
from service.engine.protocol.messages import AdapterLoaded, LoadAdapter

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _LoadRequest:
    """An adapter that must be loaded. `answered` becomes the reason of a failure, or "" after a load. It is None for an
    adapter of the first process's configuration."""

    frame: LoadAdapter
    answered: asyncio.Future[str] | None
    backoff: Backoff
    failure: str = ""
    """Why the process does not have it, although one before had."""
    retry_at: float = math.inf

    @property
    def was_loaded(self) -> bool:
        return self.answered is None or (self.answered.done() and not self.answered.result())


class Adapters:
    """Holds adapters by name. The process may get several orders for one name, so its answers carry the order's
    ticket."""

    def __init__(self, known: Iterable[tuple[str, str]], policy: RestartPolicy = DEFAULT_POLICY) -> None:
        """`known` holds (name, directory) of the adapters that the first process loads before it is ready."""
        self._tickets = itertools.count()
        self._policy = policy
        self._requests = {name: self._request(name, directory, None) for name, directory in known}

    def want(self, name: str, directory: str) -> LoadAdapter | None:
        """Returns the frame to send to the process; None if it was sent before."""
        if name in self._requests:
            return None
        request = self._requests[name] = self._request(name, directory, asyncio.get_running_loop().create_future())
        return request.frame

    async def failure_of(self, name: str) -> str:
        """Waits for the answer and returns the reason of a failure, or "". The caller bounds the wait."""
        answered = self._requests[name].answered
        return await asyncio.shield(answered) if answered else ""

    def lacks(self, name: str) -> str:
        """Returns why the process does not have an adapter that one before had; "" for any other adapter."""
        request = self._requests.get(name)
        return request.failure if request else ""

    def drop(self, name: str, why: str) -> None:
        request = self._requests.pop(name, None)
        if request is not None:
            _answer(request, why)

    def take(self, message: AdapterLoaded, now: float) -> None:
        """Takes the process's answer to a frame."""
        request = self._requests.get(message.name)
        if request is None or request.frame.ticket != message.ticket:
            return
        if not message.error:
            request.failure = ""
            request.backoff = Backoff(self._policy)
            _answer(request, "")
        elif request.was_loaded:
            request.failure = message.error
            request.backoff.died()
            request.retry_at = now + request.backoff.seconds
            words = "adapter %s could not be loaded again, next try in %.1f s: %s"
            _logger.warning(words, message.name, request.backoff.seconds, message.error)
        else:
            _logger.warning("adapter %s could not be loaded: %s", message.name, message.error)
            self.drop(message.name, message.error)

    def frames(self) -> list[LoadAdapter]:
        """Returns the frames to send to a new process, which has not failed yet."""
        for request in self._requests.values():
            request.failure, request.retry_at = "", math.inf
        return [request.frame for request in self._requests.values()]

    def due(self, now: float) -> list[LoadAdapter]:
        """Returns the frames to send again to the process, whose last try has failed."""
        due = [request for request in self._requests.values() if request.retry_at <= now]
        for request in due:
            request.retry_at = math.inf
        return [request.frame for request in due]

    def fail(self, why: str) -> None:
        """Gives every waiting caller this reason, because the engine has ended."""
        for request in self._requests.values():
            _answer(request, why)

    def _request(self, name: str, directory: str, answered: asyncio.Future[str] | None) -> _LoadRequest:
        return _LoadRequest(LoadAdapter(name, directory, next(self._tickets)), answered, Backoff(self._policy))


def _answer(request: _LoadRequest, why: str) -> None:
    if request.answered is not None and not request.answered.done():
        request.answered.set_result(why)
