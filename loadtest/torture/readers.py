"""Readers that are slower than the service: a socket with the least of buffers, read by a few bytes or not at all."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import suppress
from pathlib import Path

import httptools

from loadtest.torture.ledger import Exchange
from loadtest.torture.requests import SHAPES, unread
from loadtest.torture.scene import Scene

BUFFER_BYTES = 4096
MOST_SECONDS = 180.0
_ESTABLISHED = "01"


async def read_slowly(scene: Scene, question: str, seconds: float) -> Exchange:
    """Reads a stream to its end in about so many seconds, and judges it."""
    shape = SHAPES["long"]
    exchange = Exchange("long", time.monotonic(), shape.dialect, question)
    parser = _Parser()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            reader, writer = await _opened(scene, shape.path, shape.body(question))
            while piece := await reader.read(BUFFER_BYTES):
                parser.feed(piece)
                await asyncio.sleep(seconds * len(piece) / 60_000)
            writer.close()
    except (OSError, TimeoutError) as error:
        exchange.lost = type(error).__name__
    exchange.ended_at = time.monotonic()
    parser.fill(exchange)
    return scene.judge(exchange)


async def read_nothing(scene: Scene) -> tuple[float, int]:
    """Asks for a stream of megabytes and reads nothing until the service lets the connection go, then the rest. Returns
    the seconds until then and the bytes of the rest. Raises ValueError if it keeps the connection, or sent it all."""
    began = time.monotonic()
    reader, writer = await _opened(scene, SHAPES["openai"].path, unread())
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        port = writer.get_extra_info("sockname")[1]
        while await asyncio.to_thread(_is_held, scene.service.port, port):
            if time.monotonic() - began > MOST_SECONDS:
                raise ValueError(f"the connection is held after {MOST_SECONDS:g} s")
            await asyncio.sleep(0.5)
        spent, rest = time.monotonic() - began, bytearray()
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                rest += piece
        if b"data: [DONE]" in rest:
            raise ValueError(f"the whole stream of {len(rest)} bytes was sent")
        return spent, len(rest)
    finally:
        writer.close()


def _is_held(ours: int, theirs: int) -> bool:
    """Returns whether the service's end of a connection is open, as the kernel lists it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if (int(local[-4:], 16), int(remote[-4:], 16)) == (ours, theirs):
            return state == _ESTABLISHED
    return False


async def _opened(scene: Scene, path: str, body: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, ("127.0.0.1", scene.service.port))
    reader, writer = await asyncio.open_connection(sock=plain, limit=BUFFER_BYTES)
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    return reader, writer


class _Parser:
    """Takes the body and the headers out of an HTTP answer."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._headers: dict[str, str] = {}
        self._is_whole = False

    def feed(self, piece: bytes) -> None:
        self._parser.feed_data(piece)

    def fill(self, exchange: Exchange) -> None:
        exchange.body, exchange.status = bytes(self._body), self._parser.get_status_code()
        exchange.version = self._headers.get("x-model-version", "")
        exchange.retry_after = self._headers.get("retry-after", "")
        if not self._is_whole:
            exchange.lost = exchange.lost or "cut"

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_whole = True
