"""This route streams the live figures of all versions to each listener, one event a second."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.deps import ServiceDep
from service.api.http.connection import EventStream
from service.api.http.documented import streams
from service.api.http.encoding import event
from service.api.http.errors import Internal, body_of
from service.api.http.paths import ErrorDialect
from service.api.operations.live_answer_schemas import LiveEvent
from service.observability.live.feed import Listener

router = APIRouter(tags=["operations"])
PATIENCE_SECONDS: Final = 10.0
"""A client that takes no byte for so long is let go."""
EVENTS: Final = streams(LiveEvent, description="An event a second, until the client or the server ends the stream.")


@router.get("/v1/live", response_class=Response, responses=EVENTS)
async def live(http: Request, service: ServiceDep) -> Response:
    """Streams what every version does now, one event a second. Events are made only while somebody listens; all
    listeners get the same ones, and one that reads slowly gets the newest."""
    listener = service.live.listen()

    async def close() -> None:
        service.live.leave(listener)

    return EventStream(_events(http, listener), {}, close, PATIENCE_SECONDS)


async def _events(http: Request, listener: Listener) -> AsyncGenerator[bytes, None]:
    async for each in listener.events():
        yield each
    if listener.has_failed:
        http.state.log["code"] = Internal.code
        yield event(body_of(Internal(), http.state.request_id, ErrorDialect.NATIVE), "error")
