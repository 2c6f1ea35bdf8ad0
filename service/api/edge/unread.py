"""Unread watches what a client has not read, from the first byte on, whoever wrote it: answers, streams, files, pages.

    LEAST_BYTES, or all that waited, were taken in READING_SECONDS ─▶ the client reads, however slowly
    less was taken                                                 ─▶ it is stuck, a glance later at the latest

A server sees what the client's kernel took, and no more.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

LEAST_BYTES: Final = 16 << 10
READING_SECONDS: Final = 25.0
GLANCES: Final = 5
"""In READING_SECONDS. What stands still is found after 25 to 30 s."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class Unread:
    """A connection's transport, which counts what is written to it. `on_stuck` is called once."""

    def __init__(self, transport: asyncio.Transport, on_stuck: Callable[[], None]) -> None:
        self._transport = transport
        self._on_stuck = on_stuck
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._written = self._goal = self._left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)
        if self._timer is None:
            self._goal = 0
            self._look_later()

    def close(self) -> None:
        """Closes the connection behind what waits. The kernel, which may have all of it, keeps that no longer."""
        if option := getattr(socket, "TCP_USER_TIMEOUT", None):
            with suppress(OSError):  # a Unix socket has none
                self._socket.setsockopt(socket.IPPROTO_TCP, option, int(READING_SECONDS * 1000))
        self._transport.close()

    def stop(self) -> None:
        """Ends the watch, and holds nothing of the connection, which is gone: a timer keeps the context, and with it
        the request, that it began in."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._on_stuck = _nothing

    def reset(self) -> None:
        """Ends the connection at once; what waits is thrown away, by the kernel too."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self._transport.abort()

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(READING_SECONDS / GLANCES, self._look)

    def _look(self) -> None:
        self._timer = None
        buffered = self._transport.get_write_buffer_size()
        if self._transport.is_closing() and not buffered:
            return  # the socket may be another one's already
        waiting = buffered + _in_kernel(self._socket)
        taken = self._written - waiting
        if not waiting:
            return
        if taken >= self._goal:
            self._goal, self._left = taken + min(waiting, LEAST_BYTES), GLANCES
        else:
            self._left -= 1
        if self._left:
            self._look_later()
        else:
            self._on_stuck()


def _nothing() -> None:
    """Is called of a connection that is gone."""


def _in_kernel(connection: socket.socket) -> int:
    """Returns how many bytes this host's kernel holds of what was sent; 0 where it does not say."""
    try:
        waiting: int = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:
        return 0
    return waiting
