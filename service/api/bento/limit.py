"""The body limit bounds what BentoML's own methods read: without it BentoML reads a body whole, however large it is."""

from __future__ import annotations

import uuid
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        from service.api.http.errors import response_of
        from service.api.http.paths import ErrorDialect
        from service.errors import TooLarge

        error = TooLarge(
            f"The body is larger than {self._most} bytes: send less, or set DOSIRAK_MAX_BODY_BYTES higher",
            max_body_bytes=self._most,
        )
        await response_of(error, uuid.uuid4().hex, ErrorDialect.NATIVE)(scope, receive, send)
