"""This module answers lines of batches as the API answers clients: the same routes, parsers, errors and serialisers, in
this process, without a socket.

What is left out stands before the routes: the credentials (the batch's owner is known), the log line and the metrics of
HTTP requests. `BACKGROUND` in the request's state says that it waits behind every client's (see `callers`).
"""

from __future__ import annotations

import asyncio
import copy
import time
import uuid
from typing import Final

import msgspec
import structlog
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Scope

from service.api.answering.callers import BACKGROUND, caller_behind
from service.api.http.encoding import encode
from service.api.http.errors import Internal, body_of, error_dialect, headers_of, status_of
from service.api.http.headers import HEADER
from service.api.http.scopes import Caller
from service.errors import DosirakError, InvalidRequest
from service.generation.batches.run import LineReply, LineRequest

ENDPOINTS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""Where a batch may send its lines, as far as this server has the route."""
TRANSIENT: Final = (429, 503, 507)
STORING: Final = frozenset({"/v1/responses"})
"""Endpoints whose answers are stored unless the body says otherwise."""
log = structlog.get_logger(__name__)


class _Peek(msgspec.Struct):
    """What decides how a line is sent."""

    stream: object = None
    session_id: object = None
    store: object = None


class LineAnswers:
    """Answers lines by the routes of `app`."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._stack: ASGIApp | None = None

    async def __call__(self, line: LineRequest) -> LineReply:
        """Returns what a client would get. An answer that the server stores gets the line's key, so that a line that is
        sent again after a crash changes nothing a second time."""
        request_id = uuid.uuid4().hex
        try:
            peek = msgspec.json.decode(line.body, type=_Peek)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            peek = _Peek()  # its route says what is wrong
        if peek.stream:
            return _refusal(
                InvalidRequest("`stream`: a batch has no streams, remove it", param="stream"), line, request_id
            )
        stores = peek.session_id is not None or peek.store is True or line.endpoint in STORING
        try:
            caller = caller_behind(line.owner, self._app.state.service.keys)
            scope = self._scope(line, caller, request_id, line.key if stores else None)
            exchange = _Exchange(scope, line.body)
            await self._through()(exchange.scope, exchange.receive, exchange.send)
        except DosirakError as error:
            return _refusal(error, line, request_id)
        except Exception:
            log.exception("batch_line_failed", request_id=request_id, endpoint=line.endpoint)
            return _refusal(Internal(), line, request_id)
        return exchange.reply()

    def _through(self) -> ASGIApp:
        """Returns the app without the layers around its routes: its error handlers stay."""
        if self._stack is None:
            bare = copy.copy(self._app)
            bare.user_middleware = []
            self._stack = bare.build_middleware_stack()
        return self._stack

    def _scope(self, line: LineRequest, caller: Caller, request_id: str, key: str | None) -> Scope:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(line.body)).encode())]
        if key is not None:
            headers.append((HEADER.lower().encode(), key.encode()))
        state: dict[str, object] = {**caller.state, "request_id": request_id}
        state |= {"arrival": time.monotonic(), "log": {}, "is_head": False, BACKGROUND: True}
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": line.endpoint,
            "raw_path": line.endpoint.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
            "app": self._app,
            "state": state,
        }


class _Exchange:
    """One request and its response, as ASGI calls."""

    def __init__(self, scope: Scope, body: bytes) -> None:
        self.scope = scope
        self._waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        self._status = 0
        self._retry_after: float | None = None
        self._content = bytearray()

    async def receive(self) -> Message:
        if not self._waiting:
            await asyncio.Event().wait()  # nobody disconnects
        return self._waiting.pop()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._retry_after = _retry_after(self._status, dict(message["headers"]).get(b"retry-after"))
        else:
            self._content += message.get("body", b"")

    def reply(self) -> LineReply:
        return LineReply(self._status, self.scope["state"]["request_id"], bytes(self._content), self._retry_after)


def _refusal(error: DosirakError, line: LineRequest, request_id: str) -> LineReply:
    dialect = error_dialect(line.endpoint)
    status, retry_after = status_of(error, dialect), headers_of(error).get("Retry-After")
    body = encode(body_of(error, request_id, dialect))
    return LineReply(status, request_id, body, _retry_after(status, retry_after))


def _retry_after(status: int, told: str | bytes | None) -> float | None:
    """Returns the seconds until the same request may get another response; None for a status that stays."""
    return float(told or 1) if status in TRANSIENT else None
