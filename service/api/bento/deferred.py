"""The deferred app builds the real app when its process starts to serve.

`bentoml serve` loads the service's module in two processes, in the first only to read its configuration. The first
needs no app, and importing the app takes over a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._hand_on(scope, receive, send)

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _live(self, _: Starlette) -> AsyncIterator[None]:
        self._app = self._build()
        async with self._app.router.lifespan_context(self._app):
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
