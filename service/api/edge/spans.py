"""A span shows an exchange, HTTP's request and response, to a trace: attributes by OpenTelemetry's conventions for HTTP
servers. It holds no address, no header and no body: these may hold a user's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Final

from starlette.types import Scope

from service.api.answering.notes import Generation
from service.api.edge.gen_ai import events_of, generation_attributes
from service.observability.metrics import METHODS
from service.observability.tracing import Attributes, Event, Facts, Span, TraceContext

OTHER_METHOD: Final = "_OTHER"
CLIENT_DISCONNECTED: Final = "client_disconnected"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response, once both have ended. `started` is a point of `time.monotonic()`; `logged` are the
    fields of its log line; `is_gone`: the client left before the end."""

    scope: Scope
    route: str | None
    status: int
    is_gone: bool
    started: float
    logged: Mapping[str, Any]
    parent: TraceContext | None


def span_of(exchange: Exchange) -> Span:
    """Returns the span, which ends now. Its name has no more values than there are methods and routes."""
    end_ns, now = time.time_ns(), time.monotonic()

    def at_ns(moment: float) -> int:
        return end_ns - round((now - moment) * 1e9)

    method = exchange.scope["method"]
    name = " ".join([method if method in METHODS else "HTTP", *([exchange.route] if exchange.route else [])])
    return Span(name, exchange.parent, at_ns(exchange.started), end_ns, lambda: _facts(exchange, at_ns))


def _facts(exchange: Exchange, at_ns: Callable[[float], int]) -> Facts:
    state = exchange.scope["state"]
    generation: Generation | None = state.get("generation")
    attributes: dict[str, Any] = {**_http(exchange), "dosirak.request_id": state["request_id"]}
    events: list[Event] = []
    if generation is not None:
        attributes |= generation_attributes(generation)
        attributes["dosirak.idempotent_replayed"] = bool(exchange.logged.get("replayed"))
        reached = sorted(events_of(generation), key=itemgetter(1))
        events = [Event(name, at_ns(moment)) for name, moment in reached]
    return Facts(attributes, events, _failure(exchange))


def _http(exchange: Exchange) -> Attributes:
    scope = exchange.scope
    method, error = scope["method"], _error(exchange)
    return {
        "http.request.method": method if method in METHODS else OTHER_METHOD,
        "http.response.status_code": exchange.status,
        "url.scheme": scope.get("scheme", "http"),
        "network.protocol.version": scope.get("http_version", "1.1"),
        **({"http.route": exchange.route} if exchange.route else {}),
        **({"error.type": error} if error else {}),
    }


def _error(exchange: Exchange) -> str | None:
    """Returns why the client did not get what it asked for: our error code, or that it left."""
    code: str | None = exchange.logged.get("code")
    if code is None and exchange.is_gone:
        return CLIENT_DISCONNECTED
    return code or (str(exchange.status) if exchange.status >= HTTPStatus.INTERNAL_SERVER_ERROR else None)


def _failure(exchange: Exchange) -> str | None:
    """Returns why the server failed. A refusal (4xx) is the client's, and so is leaving; an error behind the headers of
    a stream is the server's."""
    refused = HTTPStatus.BAD_REQUEST <= exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
    return None if refused else _error(exchange)
