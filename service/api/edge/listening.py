"""Listening takes several connections in each turn of the event loop. uvloop's servers take one, so while each turn is
long, newcomers wait for seconds in the kernel's queue, and probes with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from socket import socket
from typing import Any, Final

import uvloop

TAKEN: Final = 16
"""Connections of one turn, at most; each takes it a tenth of a millisecond."""


class Listeners:
    """Servers that listen on one socket, as one."""

    def __init__(self, servers: Sequence[asyncio.AbstractServer], sockets: Sequence[socket]) -> None:
        self.sockets = sockets
        self._servers = servers

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*(server.wait_closed() for server in self._servers))


class Loop(uvloop.Loop):
    """uvloop's loop, whose servers on a given socket take TAKEN connections in a turn."""

    async def create_server(self, *args: Any, sock: socket | None = None, **options: Any) -> Any:
        if sock is None:
            return await super().create_server(*args, **options)
        servers = [await super().create_server(*args, sock=sock, **options)]
        for _ in range(TAKEN - 1):
            servers.append(await super().create_server(*args, sock=sock.dup(), **options))
        return Listeners(servers, [sock])


def loop_factory(use_subprocess: bool = False) -> Callable[[], asyncio.AbstractEventLoop]:
    """Returns what makes the loop, as uvicorn asks for it."""
    return Loop
