"""Paths with a line feed: no pattern of BentoML's router matches one, and that router's 404 is bare text."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class LineFeeds:
    """ASGI middleware: `answering` gets every request whose path holds a line feed, for example
    `/v1/sessions/a%0Ab`."""

    def __init__(self, app: ASGIApp, answering: ASGIApp) -> None:
        self._app = app
        self._answering = answering

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._answering if scope["type"] == "http" and "\n" in scope["path"] else self._app
        await app(scope, receive, send)
