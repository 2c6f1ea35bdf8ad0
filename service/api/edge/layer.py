"""The edge is the outermost layer around every route: request id, one log line, one span, HTTP metrics, and a body for
every failure. It answers HEAD wherever GET is, with GET's own handler, and leaves the body out.

It is pure ASGI, so that a stream passes through unchanged and `http.disconnect` reaches the handlers.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.edge.spans import Exchange, span_of
from service.api.http.connection import ClientGone
from service.api.http.errors import ErrorDialect, Internal, dialect_of, response_of
from service.api.http.fields import IGNORED_HEADER
from service.api.http.pages import UI
from service.observability.metrics import Metrics
from service.observability.tracing import Tracer, trace_context

REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}")
POLLED: Final = frozenset(
    {
        "/",
        "/livez",
        "/readyz",
        "/healthz",
        "/health",
        "/metrics",
        "/v1/deployments",
        "/v1/instances",
        "/v2/health/live",
        "/v2/health/ready",
    }
)
FILES: Final = f"{UI}/static/"
CLIENT_GONE: Final = 499
CATCH_ALL: Final = "/{path:path}"
log = structlog.get_logger("dosirak.request")


class Edge:
    """`scope["state"]` gets `request_id`, `arrival` (`time.monotonic()`), `is_head` and `log`. Handlers add to the
    dictionary `log`, and it becomes the log line; a `code` in it is counted as an error."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracer: Tracer | None = None, instance: str = "") -> None:
        """`tracer` gets a span of each request that is no probe; None where there is no collector. `instance` is the
        server's id, which every answer names."""
        self._app = app
        self._metrics = metrics
        self._tracer = tracer
        self._instance = instance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(scope, send, self._metrics, self._tracer, self._instance).run(self._app, receive)


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, send: Send, metrics: Metrics, tracer: Tracer | None, instance: str) -> None:
        self._scope = scope
        self._is_head = scope["method"] == "HEAD"
        self._send_on = send
        self._metrics = metrics
        self._tracer = tracer
        self._instance = instance
        self._started = time.monotonic()
        self._status: int | None = None
        self._is_gone = False
        self._fields: dict[str, Any] = {}
        self._state = scope.setdefault("state", {})
        self._state["request_id"] = request_id_of(scope)
        self._state["arrival"] = self._started
        self._state["log"] = self._fields
        self._state["is_head"] = self._is_head
        scope.pop("route", None)  # a server that mounts this app has put its own route there
        self._routed = {**scope, "method": "GET"} if self._is_head else scope

    async def run(self, app: ASGIApp, receive: Receive) -> None:
        try:
            await app(self._routed, receive, self._send)
        except (ClientGone, ClientDisconnect):
            await self._answer_nobody(receive)
        except Exception:
            log.exception("request_failed", request_id=self._state["request_id"], route=self._route)
            await self._answer_failure(receive)
        finally:
            self._observe()

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            headers.update(headers_of_answer(self._scope, self._state["request_id"], self._instance))
            if "ignored_fields" in self._state:
                headers[IGNORED_HEADER] = self._state["ignored_fields"]
        elif self._is_head:
            message = {**message, "body": b""}
        await self._send_on(message)

    async def _answer_nobody(self, receive: Receive) -> None:
        """Sends a response where none has begun, although the client is gone: BentoML's timeout layer waits for the
        first message for ever, and its server then cannot shut down."""
        if self._status is None:
            await Response(status_code=CLIENT_GONE)(self._scope, receive, self._send)
        self._status, self._is_gone = CLIENT_GONE, True

    async def _answer_failure(self, receive: Receive) -> None:
        """Sends the failure. To a response that has begun nothing can be added: the server then cuts the connection."""
        self._fields["code"] = Internal.code
        if self._status is None:
            response = response_of(Internal(), self._state["request_id"], dialect_of(self._scope))
            await response(self._scope, receive, self._send)

    @property
    def _route(self) -> str | None:
        """Returns the template that matched; None where no route did."""
        template: str | None = getattr(self._routed.get("route"), "path", None)
        return None if template == CATCH_ALL else template

    def _observe(self) -> None:
        status, method = self._status or CLIENT_GONE, self._scope["method"]
        self._metrics.http_request(self._route, method, status)
        if "code" in self._fields:
            self._metrics.error(self._fields["code"])
        path = self._scope["path"]
        polled = (path in POLLED or path.startswith(FILES)) and method in ("GET", "HEAD") and status < 500
        write = log.debug if polled else log.info
        if (trace_id := self._traced(status, is_probe=polled)) is not None:
            self._fields["trace_id"] = trace_id
        write(
            "request",
            request_id=self._state["request_id"],
            route=self._route,
            method=method[:16],
            status=status,
            seconds=round(time.monotonic() - self._started, 6),
            **self._fields,
        )

    def _traced(self, status: int, *, is_probe: bool) -> str | None:
        """Returns the id of the request's trace: its own span's, else the caller's."""
        headers = Headers(scope=self._scope)
        parent = trace_context(headers.getlist("traceparent"), headers.getlist("tracestate"))
        recorded = None
        if self._tracer is not None and not is_probe:
            exchange = Exchange(self._routed, self._route, status, self._is_gone, self._started, self._fields, parent)
            recorded = self._tracer.record(span_of(exchange))
        self._state.pop("generation", None)  # layers around us may keep the state for long
        return recorded or (parent.trace_id if parent else None)


def headers_of_answer(scope: Scope, request_id: str, instance: str) -> dict[str, str]:
    """Returns the headers that every answer of the server `instance` has."""
    headers = {"X-Request-Id": request_id, "X-Instance": instance, "X-Content-Type-Options": "nosniff"}
    return {**headers, "request-id": request_id} if dialect_of(scope) is ErrorDialect.ANTHROPIC else headers


def request_id_of(scope: Scope) -> str:
    """Returns the client's own id where it is safe to repeat in headers and logs, else a new one."""
    sent = Headers(scope=scope).get("x-request-id", "")
    return sent if REQUEST_ID.fullmatch(sent) else uuid.uuid4().hex
