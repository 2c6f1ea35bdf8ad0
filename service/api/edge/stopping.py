"""Stopping puts the drain between SIGTERM and the server's end, so that the server answers until its answers are done.

    SIGTERM ─▶ not ready, new answers are 503 ─▶ running ones finish, or end by an error ─▶ the port is closed ─▶ end

A server that closes its sockets first cuts what still runs in the middle of an event. One that only closes its own
leaves connections without an answer where a supervisor holds the port too: the kernel takes them until that ends.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import structlog

log = structlog.get_logger(__name__)
LAST_SECONDS: Final = 0.2
"""Connections that were taken before the port was closed get so long to send a request and read its 503."""
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
Handler = Callable[[int, FrameType | None], object]


class Stopping:
    """The end of one server, as its event loop sees it. `drain` returns when no answer runs any more."""

    def __init__(self, drain: Callable[[], Awaitable[None]]) -> None:
        self.should_exit = False
        self._drain = drain
        self._servers: dict[int, Handler] = {}
        self._draining: asyncio.Task[None] | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the signals over from a server that handles them, until the block ends. Where none does, as in a
        program that holds the app itself, nothing changes."""
        if threading.current_thread() is threading.main_thread():
            self._loop = asyncio.get_running_loop()
            handlers = {number: signal.getsignal(number) for number in SIGNALS}
            self._servers = {number: each for number, each in handlers.items() if callable(each) and _is_servers(each)}
        for number in self._servers:
            signal.signal(number, self._begin)
        try:
            yield
        finally:
            for number, handler in self._servers.items():
                if signal.getsignal(number) == self._begin:
                    signal.signal(number, handler)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        """Begins the drain; a second signal ends the server at once."""
        if self.should_exit:
            self._servers[number](number, frame)
            return
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._start, number)

    def _start(self, number: int) -> None:
        self._draining = asyncio.create_task(self._end(number))

    async def _end(self, number: int) -> None:
        try:
            await self._drain()
        except Exception:
            log.exception("drain_failed")
        await asyncio.sleep(0)  # takes the connections that wait in the kernel, which the close would reset
        if _close_ports(self._servers[number]):
            await asyncio.sleep(LAST_SECONDS)
        self._servers[number](number, None)


def _close_ports(handler: Handler) -> bool:
    """Closes the server's ports to new connections, for every process that holds them; a supervisor's next worker opens
    them again. Returns whether there were any."""
    listening = [each for one in getattr(getattr(handler, "__self__", None), "servers", ()) for each in one.sockets]
    for each in listening:
        with suppress(OSError), socket.fromfd(each.fileno(), each.family, each.type) as port:
            port.shutdown(socket.SHUT_RD)
    return bool(listening)


def _is_servers(handler: object) -> bool:
    return hasattr(getattr(handler, "__self__", None), "should_exit")


def is_stopping() -> bool:
    """Returns whether the server that handles SIGTERM has begun to end; False where another program handles it."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
