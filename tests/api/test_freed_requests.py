"""These tests look, with Python's collector off, whether what a request and its connection held is free when they end.

The collector's full rounds are rare, because each of them stops all answers. What waits for one takes memory: a hundred
thousand objects, some ten MiB, in twenty seconds of load.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.api.edge.connection import Connection
from service.api.edge.unread import Unread
from service.engine.client.engine import EngineFailed
from service.generation.answer import Answer
from tests.api.test_connections import HOST, SECOND, Listening, listening, module
from tests.fake_service import World, serving
from tests.waiting import until

KINDS: Final = (
    *(Connection, Unread, RequestResponseCycle, HTTPConnection, AsyncExitStack),
    *(Answer, asyncio.Task, BaseException),
)
"""Of each of which a request has its own."""


def posted(path: str, body: Any) -> bytes:
    text = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode()


def both(body: Any) -> list[bytes]:
    return [posted("/generate", body), posted("/generate_stream", body)]


ASKED: Final = {"inputs": "x"}
LONG: Final = {"inputs": "x", "parameters": {"max_new_tokens": 400}}
ENDED: Final[dict[str, list[bytes]]] = {
    "a page": [SECOND, SECOND],
    "an answer and a stream": both(ASKED),
    "nothing there": [b"GET /v1/none HTTP/1.1\r\n" + HOST + b"\r\n"],
    "a wrong body": both({}),
    "a wrong value": both(LONG | {"deadline_ms": -1}),
    "a prompt that is too long": both({"inputs": "x" * 9000}),
    "too late": both(LONG | {"deadline_ms": 50}),
    "two that come together": [SECOND + SECOND],
    "a head that never ends": [b"GET /livez HTTP/1.1\r\n" + HOST],
}
LEFT: Final = {"an answer": posted("/generate", LONG), "a stream": posted("/generate_stream", LONG)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(repository_directory: Path) -> AsyncIterator[World]:
    gc.collect()  # what other files have left, whose clients end as they are collected
    await asyncio.sleep(0)
    gc.collect()
    async with serving(repository_directory, engine={"step_seconds": 0.005}) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(world: World) -> AsyncIterator[Listening]:
    async with listening(world.app) as made:
        yield made


@pytest.mark.parametrize("asked", ENDED.values(), ids=ENDED)
@module
async def test_a_request_that_was_answered_holds_nothing(server: Listening, asked: list[bytes]) -> None:
    async def ask() -> None:
        await server.answer(*asked)

    assert await _kept(server, ask) == Counter()


@pytest.mark.parametrize("asked", LEFT.values(), ids=LEFT)
@module
async def test_a_client_who_left_holds_nothing(server: Listening, world: World, asked: bytes) -> None:
    async def ask() -> None:
        _, writer = await server.open(asked)
        await until(lambda: len(world.engine.alive) == 1)
        await asyncio.sleep(0.05)
        writer.close()
        await until(lambda: not world.engine.alive)

    assert await _kept(server, ask) == Counter()


@module
async def test_a_client_who_resets_a_kept_connection_leaves_nothing(server: Listening) -> None:
    async def ask() -> None:
        reader, writer = await server.open(SECOND)
        await reader.readuntil(b"\r\n\r\n")
        at_once = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        writer.transport.abort()

    assert await _kept(server, ask) == Counter()


@module
async def test_an_engine_that_died_leaves_nothing(server: Listening, world: World) -> None:
    async def ask() -> None:
        await server.answer(*both(LONG))

    world.engine.failure, world.engine.fail_after = EngineFailed("gone"), 3
    try:
        assert await _kept(server, ask) == Counter()
    finally:
        world.engine.failure = world.engine.fail_after = None


async def _kept(server: Listening, ask: Any) -> Counter[str]:
    """Returns what is more, by its kind, behind the second to fourth time."""
    await _ended(server, ask)
    gc.collect()
    gc.disable()
    try:
        before = _held()
        for _ in range(3):
            await _ended(server, ask)
        return _held() - before
    finally:
        gc.enable()


async def _ended(server: Listening, ask: Any) -> None:
    await ask()
    await until(lambda: not server.connections)
    await asyncio.sleep(0.05)


def _held() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if issubclass(type(each), KINDS))
