"""The clients of `loadtest.goodput` and `loadtest.calm`, against servers that answer, refuse, and end in mid-answer."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from loadtest import calm, fake_server, goodput
from loadtest.fake_server import FakeServer
from loadtest.goodput import Clients, Tally

SECONDS = 20.0
"""What waits for ever is a failure then."""
ERROR = b'event: error\ndata: {"error": "the engine died: no \\"token\\": said"}\n\n'


class Failing(FakeServer):
    """Ends each stream with an error after one token."""

    async def _stream(self, writer: asyncio.StreamWriter, count: int, openai: bool) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        fake_server._write_event(writer, fake_server._event(0, count))
        fake_server._write_piece(writer, ERROR)
        writer.write(b"0\r\n\r\n")


class Refusing(FakeServer):
    """Refuses each stream."""

    async def _stream(self, writer: asyncio.StreamWriter, count: int, openai: bool) -> None:
        fake_server._write(writer, 422, b'{"error": "max_new_tokens is too large"}')


@asynccontextmanager
async def serving(server: FakeServer) -> AsyncIterator[str]:
    listening = await server.start()
    try:
        async with asyncio.timeout(SECONDS):
            yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def asked(server: FakeServer) -> Tally:
    tally = Tally()
    async with serving(server) as url, aiohttp.ClientSession(url) as session:
        await Clients(url, session, words=3, tokens=4, patience=SECONDS).ask(tally)
    return tally


async def test_an_answer_that_ends_in_an_error_is_not_whole() -> None:
    tally = await asked(FakeServer())
    assert (dict(tally.ends), tally.whole, tally.tokens, len(tally.firsts)) == ({"whole": 1}, 1, 4, 1)
    tally = await asked(Failing())
    assert dict(tally.ends) == {'no last event: the engine died: no "token": said': 1}
    assert (tally.whole, tally.tokens, len(tally.firsts)) == (0, 0, 1)


def options(url: str, **others: Any) -> argparse.Namespace:
    given = {"words": 3, "tokens": 4, "patience": SECONDS, "come_back": False, "filling": 0.0, "users": 2, "times": [2]}
    return argparse.Namespace(url=url, seconds=0.05, **given | others)


async def test_a_server_without_a_whole_answer_has_no_goodput() -> None:
    async with serving(Failing()) as url:
        with pytest.raises(SystemExit, match=r"gives no whole answer: {'no last event: the engine died"):
            await goodput.measure(options(url))


async def test_a_load_without_a_peak_is_told_what_to_change() -> None:
    """Each answer takes longer than the load."""
    async with serving(FakeServer(first_seconds=0.06)) as url:
        with pytest.raises(SystemExit, match=r"so there is no peak: .*; raise --seconds"):
            await goodput.measure(options(url))


async def test_streams_that_are_refused_end_the_program_with_the_reason() -> None:
    async with serving(Refusing()) as url:
        streams = calm.Streams(url, [calm.Client(url).body(3, 4)])
        with pytest.raises(SystemExit, match=r"after 0 tokens: status 422: .*max_new_tokens is too large"):
            await streams.begun()


async def test_streams_are_as_long_as_the_window_has_room_for() -> None:
    async with serving(FakeServer(window=60, gap_seconds=0)) as url:
        body = await calm.Client(url).streamed()
        assert body["parameters"] == {"max_new_tokens": 60 - 8, "ignore_eos": True}
        streams = calm.Streams(url, [body])
        await streams.begun()
        await asyncio.wait(streams._tasks)
        with pytest.raises(SystemExit, match=r"after 52 tokens: the window of the model is full; lower --seconds"):
            await streams.cut()
    async with serving(FakeServer(window=1 << 20)) as url:
        parameters = (await calm.Client(url).streamed())["parameters"]
        assert isinstance(parameters, dict) and parameters["max_new_tokens"] == calm.LONGEST
