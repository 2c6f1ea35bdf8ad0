"""The drain comes between a signal and the server's own end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import pytest

from service.api.edge.stopping import Stopping, is_stopping
from tests.waiting import until


class Server:
    """Handles signals as uvicorn's does."""

    def __init__(self) -> None:
        self.should_exit = False
        self.calls: list[int] = []
        self.servers: list[asyncio.Server] = []

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = True
        self.calls.append(number)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    before = {number: signal.signal(number, made.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


async def test_the_server_ends_behind_the_drain_or_at_a_second_signal(server: Server) -> None:
    done = asyncio.Event()

    async def drained() -> None:
        await done.wait()

    with Stopping(drained).installed():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        assert is_stopping() and not server.calls
        done.set()
        await until(lambda: server.calls == [signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        assert server.calls == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) == server.handle_exit


async def test_a_drain_that_fails_ends_the_server_too(server: Server) -> None:
    async def fails() -> None:
        raise RuntimeError("no engine answers")

    with Stopping(fails).installed():
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: server.calls)
    assert server.calls == [signal.SIGTERM]


async def test_the_port_is_closed_behind_the_drain_for_a_supervisor_that_holds_it_too(server: Server) -> None:
    """BentoML's supervisor holds it until it ends; a connection that the kernel takes then would be reset."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def drained() -> None: ...

    async def said(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bytes:
        stream[1].write(b"503\n")
        return await stream[0].read()

    supervisor = socket.create_server(("127.0.0.1", 0))
    address = supervisor.getsockname()
    server.servers = [await asyncio.start_server(answer, sock=supervisor.dup())]
    with Stopping(drained).installed(), supervisor:
        before = await asyncio.open_connection(*address)
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: supervisor.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        assert await said(before) == b"503\n"
        await until(lambda: server.calls == [signal.SIGTERM])
    server.servers[0].close()


async def test_another_programs_handlers_stay() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def drained() -> None: ...

    with Stopping(drained).installed():
        assert signal.getsignal(signal.SIGTERM) == before and not is_stopping()
