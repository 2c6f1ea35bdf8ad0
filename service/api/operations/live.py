"""The live figures of all versions: their wire models, and the route that streams them, one event a second."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from fastapi import Request
from starlette.responses import Response

from service.api.deps import ServiceDep
from service.api.http.connection import EventStream
from service.api.http.documented import Router, streams
from service.api.http.encoding import event
from service.api.http.errors import ErrorDialect, Internal, body_of
from service.api.http.scopes import require_still
from service.api.operations.schemas import DeploymentState, StepCost
from service.api.shared.answer_schemas import Shown
from service.errors import DosirakError
from service.observability.live.feed import Listener


class LiveBlocks(Shown):
    """Blocks of the KV cache in memory; `cached` of them hold a known prefix."""

    total: int
    free: int
    cached: int


class LivePercentiles(Shown):
    """Exact nearest ranks over the last 60 s, of the newest 8192 observations at most, since somebody listens. `count`
    is their number; the percentiles are null where it is 0."""

    p50: float | None
    p95: float | None
    count: int


class LivePrefixHits(Shown):
    """Of the last 60 s since somebody listens: prompt tokens that were looked up in the prefix cache, and those of them
    that were found."""

    cached_tokens: int
    prompt_tokens: int


class LiveStep(Shown):
    """One step. The prediction was made before the step, by the cost line of that moment, and leaves out copies to and
    from disk."""

    tokens: int
    sequences: int
    predicted_seconds: float
    seconds: float


class LiveVersion(Shown):
    """What one version does. Queues, blocks, prompt tokens, prefix hits, cost and steps are of its engine, which a base
    and its adapters share. `steps` are those since the event before, oldest first, the newest 32 at most."""

    model: str
    state: DeploymentState
    running: int
    waiting: int
    kv_blocks: LiveBlocks
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_seconds: LivePercentiles
    itl_seconds: LivePercentiles
    prefix_hits: LivePrefixHits
    cost: StepCost
    steps: list[LiveStep]


class LiveEvent(Shown):
    """The figures of one moment: `at` in Unix seconds. Rates are of the `interval_seconds` before it."""

    at: float
    interval_seconds: float
    versions: list[LiveVersion]


router = Router(tags=["operations"])
EVENTS: Final = streams(LiveEvent, description="An event a second, until the client or the server ends the stream.")


@router.get("/v1/live", response_class=Response, responses=EVENTS)
async def live(http: Request, service: ServiceDep) -> Response:
    """Streams what every version does now, one event a second, as long as the caller's key lives. Events are made only
    while somebody listens; all listeners get the same ones, and one that reads slowly gets the newest."""
    listener = service.live.listen()

    async def close() -> None:
        service.live.leave(listener)

    return EventStream(_events(http, listener), {}, close)


async def _events(http: Request, listener: Listener) -> AsyncGenerator[bytes, None]:
    try:
        async for each in listener.events():
            require_still(http)
            yield each
        if listener.has_failed:
            raise Internal
    except DosirakError as error:
        http.state.log["code"] = error.code
        yield event(body_of(error, http.state.request_id, ErrorDialect.NATIVE), "error")
