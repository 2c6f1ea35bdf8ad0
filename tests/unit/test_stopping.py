"""The drain comes between a signal and the server's own end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from service.api.edge.stopping import Stopping, is_stopping


class Server:
    """Handles signals as uvicorn's does."""

    def __init__(self) -> None:
        self.should_exit = False
        self.calls: list[int] = []

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
        await asyncio.sleep(0.01)
        assert server.calls == [signal.SIGTERM]
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        assert server.calls == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) == server.handle_exit


async def test_a_drain_that_fails_ends_the_server_too(server: Server) -> None:
    async def fails() -> None:
        raise RuntimeError("no engine answers")

    with Stopping(fails).installed():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
    assert server.calls == [signal.SIGTERM]


async def test_another_programs_handlers_stay() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def drained() -> None: ...

    with Stopping(drained).installed():
        assert signal.getsignal(signal.SIGTERM) == before and not is_stopping()
