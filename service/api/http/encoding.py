"""This module writes JSON: UTF-8 unescaped, and safe for clients that split streams at every Unicode line end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.responses import Response

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
EVENT_STREAM: Final = "text/event-stream"
COMMENT: Final = b": keep-alive\n\n"
"""A comment between server-sent events."""
_encoder = msgspec.json.Encoder()
_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def encode(value: object) -> bytes:
    return _encoder.encode(value)


def encoded(value: object) -> msgspec.Raw:
    """Returns the JSON of a part, which `encode` copies. One call of the encoder keeps all other threads waiting; where
    the whole is long, its parts are encoded one by one."""
    return msgspec.Raw(_encoder.encode(value))


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type=JSON)


def event(value: object, name: str | None = None) -> bytes:
    """Returns one server-sent event."""
    prefix = f"event: {name}\n".encode() if name else b""
    return prefix + b"data: " + _one_line(value) + b"\n\n"


def line(value: object) -> bytes:
    """Returns one line of JSON lines."""
    return _one_line(value) + b"\n"


def _one_line(value: object) -> bytes:
    """Returns JSON that every client reads as one line. Python's httpx and others split lines at U+0085, U+2028 and
    U+2029, which JSON leaves bare: these three are escaped."""
    data = _encoder.encode(value)
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return data
