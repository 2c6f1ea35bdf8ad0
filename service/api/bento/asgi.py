"""This module wraps the app under BentoML: it is built when its process starts to serve, the bodies of BentoML's own
methods are bounded, no answer has a limit of time, and paths with a line feed, which no pattern of BentoML's router
matches, get an answer of JSON.

`bentoml serve` loads the service's module in two processes, in the first only to read its configuration. The first
needs no app, and importing the app takes over a second."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.memory import spare_collections

if TYPE_CHECKING:
    from fastapi import FastAPI


class DeferredApp(Starlette):
    """A Starlette application, so that BentoML runs its lifespan. Its one route matches every path and passes every
    request to the app that its lifespan makes. That app answers unknown paths and wrong methods."""

    def __init__(self, build: Callable[[], FastAPI]) -> None:
        super().__init__(routes=[Mount("/", app=self._hand_on)], lifespan=self._live)
        self._build = build

    @property
    def is_ready(self) -> bool:
        """Returns `Service.is_ready`; only valid while the lifespan runs."""
        return bool(self._app.state.service.is_ready)

    def bearers(self) -> Any:
        """Returns the app's Bearers; only valid while the lifespan runs."""
        return self._app.state.bearers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hand_on(scope, receive, send)

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _live(self, _: Starlette) -> AsyncIterator[None]:
        self._app = self._build()
        async with self._app.router.lifespan_context(self._app):
            spare_collections()
            yield


class LineFeeds:
    """ASGI middleware: `answering` gets every request whose path holds a line feed, for example
    `/v1/sessions/a%0Ab`."""

    def __init__(self, app: ASGIApp, answering: ASGIApp) -> None:
        self._app = app
        self._answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._answering if scope["type"] == "http" and "\n" in scope["path"] else self._app
        await app(scope, receive, send)


class Untimed:
    """ASGI middleware: when the server starts it takes BentoML's limit on an answer's time out. The limit would keep a
    timer for each request until that time is over: 776 bytes each, 140 MB at a steady 100 requests a second."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            outermost: Starlette = scope["app"]
            outermost.user_middleware = [each for each in outermost.user_middleware if "timeout" not in each.kwargs]
            outermost.middleware_stack = None  # the first request makes it anew
        await self._app(scope, receive, send)


PREFIX: Final = "/bento/"
"""The prefix of the methods' routes. The app bounds the bodies of its own routes."""


class BodyLimit:
    """ASGI middleware: it refuses a body past `most` bytes with 413, and reads no further."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        read = await self._read(receive)
        if read is None:
            await self._refuse(scope, receive, send)
            return

        async def replay() -> Message:
            return read.pop(0) if read else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> list[Message] | None:
        """Returns all messages of the body; None for a body that is too large."""
        read: list[Message] = []
        size = 0
        while not read or read[-1].get("more_body", False):
            read.append(await receive())
            size += len(read[-1].get("body", b""))
            if size > self._most:
                return None
        return read

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        from service.api.http.errors import ErrorDialect, response_of
        from service.errors import TooLarge

        error = TooLarge(
            f"The body is larger than {self._most} bytes: send less, or set DOSIRAK_MAX_BODY_BYTES higher",
            max_body_bytes=self._most,
        )
        await response_of(error, uuid.uuid4().hex, ErrorDialect.NATIVE)(scope, receive, send)
