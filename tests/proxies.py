"""Proxies between a load test and its server: one delays the first byte of every response, one fails some requests.

They run in a thread of their own. A request is one write of its client, as the load runner's are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Literal
from urllib.parse import urlsplit

PIECE = 65536
FAILED = b"HTTP/1.1 500 Failed\r\ncontent-length: 7\r\n\r\nplanted"


@contextmanager
def listening(start: Callable[[], Awaitable[asyncio.Server]]) -> Iterator[str]:
    """Runs a server of asyncio in a thread; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def started() -> asyncio.Server:
        return await start()

    server = asyncio.run_coroutine_threadsafe(started(), loop).result(30)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@dataclass
class Proxy:
    """`share` of the requests with a body fail: by a status, or by a connection that is closed."""

    target: str
    delay: float = 0.0
    share: float = 0.0
    failure: Literal["status", "close"] = "status"
    failed: int = 0

    async def start(self) -> asyncio.Server:
        self._draw = Random(5)
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.target)
        upstream, out = await asyncio.open_connection(parts.hostname, parts.port)
        fresh = asyncio.Event()
        back = asyncio.create_task(self._answers(upstream, writer, fresh))
        try:
            while request := await reader.read(PIECE):
                if request.startswith(b"POST") and self._draw.random() < self.share:
                    self.failed += 1
                    if self.failure == "close":
                        break
                    writer.write(FAILED)
                    continue
                fresh.set()
                out.write(request)
        except ConnectionError:
            pass
        finally:
            back.cancel()
            out.close()
            writer.close()

    async def _answers(
        self, upstream: asyncio.StreamReader, writer: asyncio.StreamWriter, fresh: asyncio.Event
    ) -> None:
        while piece := await upstream.read(PIECE):
            if fresh.is_set():
                fresh.clear()
                await asyncio.sleep(self.delay)
            writer.write(piece)
        writer.close()
