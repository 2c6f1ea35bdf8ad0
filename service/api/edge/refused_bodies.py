"""The rest of a body that was refused before its end is taken, so that its sender gets to read the answer.

A server that closes a connection with bytes unread resets it, and a balancer that is still sending answers with a 502
of its own. Example: nginx sends a body of 5 MiB, and the limit is 1 MiB.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES: Final = 16 << 20
MOST_SECONDS: Final = 2.0
"""What comes later, or is larger, is not waited for."""


class RestOfBody:
    """ASGI middleware: the answer is sent at once, and its end once the body has come, or after the limits above."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _brings_body(Headers(scope=scope)):
            exchange = _Exchange(receive, send)
            await self._app(scope, exchange.receive, exchange.send)
        else:
            await self._app(scope, receive, send)


class _Exchange:
    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._has_ended = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._has_ended = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if self._has_ended or not is_last:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        await self._take_rest()
        await self._send({"type": "http.response.body", "body": b""})

    async def _take_rest(self) -> None:
        rest = MOST_BYTES
        try:
            async with asyncio.timeout(MOST_SECONDS):
                while rest > 0 and not self._has_ended:
                    rest -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


def _brings_body(headers: Headers) -> bool:
    """Returns whether bytes are on their way; a client that waits for `100 Continue` sends none after an answer."""
    declared = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return declared and "expect" not in headers
