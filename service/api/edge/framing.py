"""Framing is how a request stands in the bytes of a connection, in one reading only, and how an answer does; and an
error that is written before any app is asked."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.api.http.errors import ErrorDialect, response_of
from service.errors import DosirakError, MalformedRequest

CHUNKED: Final = [b"chunked"]


def require_one_reading(headers: list[tuple[bytes, bytes]], version: str) -> None:
    """Raises MalformedRequest where another server could find other ends of the request, or another host. The parser
    itself refuses Content-Length beside Transfer-Encoding, and either of them twice or misspelt."""
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if version not in ("1.0", "1.1"):
        raise MalformedRequest("This server speaks HTTP/1.1: send the request as HTTP/1.1")
    if codings and (codings != CHUNKED or version == "1.0"):
        raise MalformedRequest("Transfer-Encoding must be `chunked`, once, in HTTP/1.1: send Content-Length instead")
    if sum(name == b"host" for name, _ in headers) > 1:
        raise MalformedRequest("There are several headers Host: send one")


def without_upgrade(name: bytes, value: bytes) -> bytes:
    """Returns the value; of the header Connection without the name of the header Upgrade."""
    if name != b"connection":
        return value
    return b",".join(each for each in value.split(b",") if each.strip().lower() != b"upgrade")


def last_answer(error: DosirakError) -> bytes:
    """Returns a whole response that ends the connection. Its path may not be known, so it is in the native dialect."""
    request_id = uuid.uuid4().hex
    return answer_of(error, request_id, ErrorDialect.NATIVE, {"X-Request-Id": request_id, "Connection": "close"})


def answer_of(error: DosirakError, request_id: str, dialect: ErrorDialect, headers: Mapping[str, str]) -> bytes:
    """Returns a whole response."""
    response = response_of(error, request_id, dialect, headers)
    lines = [b"%s: %s\r\n" % (name, value) for name, value in response.raw_headers]
    status = HTTPStatus(response.status_code)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, status.phrase.encode(), b"".join(lines), response.body)


def without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Returns `app` for a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the
    connection (RFC 9112, 6.1)."""

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        has_length = False

        async def sending(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn compares both
            await send(message)

        await app(scope, receive, sending)

    return answering
