"""A busy event loop takes several connections a turn, and none once its server is closed."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from functools import partial

import pytest
import uvicorn.config
import uvloop

from service.api.edge.connections import Connections
from service.api.edge.door import Door
from service.api.edge.judged_connection import JudgedConnection
from service.api.edge.listening import TAKEN, Loop
from service.settings import Settings
from tests.waiting import until

CLIENTS = 3 * TAKEN


async def taken() -> Counter[int]:
    """How many of CLIENTS connections each turn takes, while turns are long; then the server is closed."""
    loop, turns, counts = asyncio.get_running_loop(), 0, Counter[int]()

    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            counts[turns] += 1
            transport.close()

    def turn() -> None:
        nonlocal turns
        turns += 1
        time.sleep(0.001)
        if counts.total() < CLIENTS:
            loop.call_soon(turn)

    listening = socket.create_server(("127.0.0.1", 0), backlog=CLIENTS)
    server = await loop.create_server(Taken, sock=listening, backlog=CLIENTS)
    address = listening.getsockname()
    clients = [socket.create_connection(address) for _ in range(CLIENTS)]
    loop.call_soon(turn)
    await until(lambda: counts.total() == CLIENTS)
    server.close()
    await server.wait_closed()
    listening.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    for client in clients:
        client.close()
    return counts


@pytest.mark.parametrize(("loop", "most"), [(Loop, TAKEN), (uvloop.Loop, 1)])
def test_a_turn_takes_several_connections(loop: type[uvloop.Loop], most: int) -> None:
    """Of uvloop itself it takes one: the defect."""
    with asyncio.Runner(loop_factory=loop) as runner:
        assert max(runner.run(taken()).values()) == most


def test_the_server_that_has_loaded_uvicorn_gets_our_loop_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.config, "HTTP_PROTOCOLS", dict(uvicorn.config.HTTP_PROTOCOLS))
    monkeypatch.setattr(uvicorn.config, "LOOP_FACTORIES", dict(uvicorn.config.LOOP_FACTORIES))
    door = Door.serving(Settings())
    config = uvicorn.Config("none:none")
    assert isinstance(door.connections, Connections)
    assert config.get_loop_factory() is Loop
    protocol = uvicorn.config.HTTP_PROTOCOLS["auto"]
    assert isinstance(protocol, partial) and protocol.func is JudgedConnection
