"""This module ends work when its client disconnects: the request, streaming or not, frees its blocks within one
step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.http.encoding import EVENT_STREAM
from service.tasks import cancelled

T = TypeVar("T")


def stream_headers(media_type: str) -> dict[str, str]:
    """Returns the headers that pass a stream on at once, through proxies too."""
    charset = "; charset=utf-8" if media_type.startswith("text/") else ""
    return {"Content-Type": f"{media_type}{charset}", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ClientGone(Exception):
    """The client closed the connection, so there is no client to answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`. When the client disconnects, cancels and awaits `work`, and raises ClientGone.

    The caller must have read the request's body: the next message on `receive` is the disconnect.
    """
    task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await cancelled((task, watcher))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Events from an async generator, server-sent events unless `media_type` says otherwise. `close` is awaited at the
    end, also when the client disconnects, and even where no event was read. HEAD is answered at once."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        close: Callable[[], Awaitable[None]],
        media_type: str = EVENT_STREAM,
    ) -> None:
        super().__init__(headers={**headers, **stream_headers(media_type)})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope.get("state", {}).get("is_head"):
                await self._events.aclose()
            await while_connected(receive, self._pass_on(send))
        finally:
            await self._close()

    async def _pass_on(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in events:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
