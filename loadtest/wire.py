"""This streaming client is as lean as possible: a socket, httptools, and the time of every event as its bytes are read;
with the answers as it saw them, and their quantiles.

A busy client measures itself. This client spends a few microseconds per event, so it measures the server. Each user
has one connection, which is kept alive between answers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 300.0


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it: seconds from the request to each token, and how it ended."""

    started: float
    token_times: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.token_times[0]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of one figure, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(*[float("nan")] * 4)
        cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 99
        return cls(fmean(seconds) * 1e3, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3)


def why_not_whole(end: Mapping[str, object]) -> str:
    """Returns why a stream with this last event gave no whole answer; empty where it did."""
    if end.get("generated_text") is None or not isinstance(end.get("usage"), dict):
        return f"no last event: {end.get('error', 'the stream was cut')}"
    return ""


class Cut(Exception):
    """The connection ended before its answer did."""


class Connection(asyncio.Protocol):
    """One keep-alive connection to `url`; `ask` one stream at a time, and `answer` shows what came of it so far. Opens
    itself where it is not open."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] | None = None
        self.answer = Answer(0.0)
        self._body = bytearray()

    async def ask(self, body: dict[str, object], path: str = "/generate_stream") -> Answer:
        """Streams one answer. Any failure, on the wire or in the stream, becomes `error`."""
        payload = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self.answer = answer = Answer(time.perf_counter())
        self._body.clear()
        try:
            if self._transport is None or self._transport.is_closing():
                await self._open()
            self._parser = httptools.HttpResponseParser(self)
            self._done = asyncio.get_running_loop().create_future()
            answer.started = time.perf_counter()
            assert self._transport is not None
            self._transport.write(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._done
        except (OSError, TimeoutError, Cut, httptools.HttpParserError) as error:
            self.close()
            answer.error = f"{type(error).__name__}: {error}"
            return answer
        self._read_end(answer)
        return answer

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            await loop.create_connection(lambda: self, self._host, self._port)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _read_end(self, answer: Answer) -> None:
        status = self._parser.get_status_code()
        text = bytes(self._body)
        if status != 200:
            answer.error = f"status {status}: {text[:200].decode(errors='replace')}"
            return
        last = text[text.rindex(b"data:") + 5 :] if b"data:" in text else b"{}"
        end: dict[str, object] = json.loads(last)
        answer.error, usage = why_not_whole(end), end.get("usage")
        if not answer.error and isinstance(usage, dict):
            answer.completion_tokens = int(usage["completion_tokens"])

    def _end(self, error: Exception | None = None) -> None:
        if self._done is not None and not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by duck typing

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end(Cut("the connection was closed in mid-answer"))

    # httptools
    def on_body(self, body: bytes) -> None:
        """An event begins with `data:`; the server writes each in one piece, so the piece's time is the event's."""
        at = time.perf_counter() - self.answer.started
        self.answer.token_times += [at] * body.count(b"data:")
        self._body += body

    def on_message_complete(self) -> None:
        self._end()
