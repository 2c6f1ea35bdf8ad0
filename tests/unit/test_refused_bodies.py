"""The rest of a refused body is taken before its answer ends, within limits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from service.api.edge import refused_bodies
from service.api.edge.refused_bodies import RestOfBody

CHUNK = 1 << 20


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("too large", 413)(scope, receive, send)


async def read_whole(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await refuse(scope, receive, send)


async def exchange(app: Any, parts: Iterator[bytes], **headers: str) -> tuple[list[Message], int]:
    """Returns what was sent, and how many messages of the body had come before the answer's end."""
    sent: list[Message] = []
    read = 0

    async def receive() -> Message:
        nonlocal read
        part = next(parts, None)
        if part is None:
            await asyncio.Event().wait()
        read += 1
        return {"type": "http.request", "body": part, "more_body": part != b""}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    await RestOfBody(app)(scope, receive, send)
    assert b"".join(each.get("body", b"") for each in sent) == b"too large"
    assert [each.get("more_body", False) for each in sent[1:]] == [True] * (len(sent) - 2) + [False]
    return sent, read


async def test_the_rest_of_a_refused_body_is_taken() -> None:
    parts = iter([b"x" * CHUNK] * 4 + [b""])
    sent, read = await exchange(refuse, parts, **{"content-length": str(4 * CHUNK)})
    assert (len(sent), read) == (3, 5), "the answer comes before its end"


async def test_a_body_without_an_end_is_left_at_the_limit() -> None:
    _, read = await exchange(refuse, itertools.repeat(b"x" * CHUNK), **{"transfer-encoding": "chunked"})
    assert read * CHUNK == refused_bodies.MOST_BYTES


async def test_a_body_that_stops_coming_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_bodies, "MOST_SECONDS", 0.01)
    _, read = await exchange(refuse, iter([b"x"]), **{"content-length": "9"})
    assert read == 1


async def test_nothing_is_waited_for_where_nothing_comes() -> None:
    assert await exchange(refuse, iter([])) == await exchange(refuse, iter([]), **{"content-length": "0"})
    waits = {"content-length": "9", "expect": "100-continue"}
    sent, read = await exchange(refuse, iter([]), **waits)
    assert (len(sent), read) == (2, 0)
    sent, read = await exchange(read_whole, iter([b"x", b""]), **{"content-length": "1"})
    assert (len(sent), read) == (2, 2)
