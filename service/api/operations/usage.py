"""Usage of `/v1/usage`: what keys have used of each model, by hour or day. A key sees its own, the operator all."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from starlette.responses import Response

from service.api.deps import Limit, OwnerDep, ServiceDep, Text
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.http.scopes import ADMIN
from service.api.shared.answer_schemas import Page, Shown, Time
from service.api.shared.moments import moment_of, require_order
from service.errors import NotFound
from service.storage.model_filters import model_filter
from service.storage.usage import DAY, HOUR, Used, Wanted

PERIODS: Final = {"hour": HOUR, "day": DAY}
USUAL_SECONDS: Final = 30 * DAY
Named = Annotated[str, Query(max_length=200)]


class UsageShown(Shown):
    """What a key has used of a model in the hour or day that begins at `start`. `requests` are answers that have
    ended; `refused` those that a quota refused, with null as `model`. `cached_tokens` are among `prompt_tokens`."""

    start: Time
    key: str
    model: str | None
    requests: int
    refused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsagePage(Page[UsageShown]):
    """Newest first."""


router = Router(prefix="/v1/usage", tags=["keys"])


@router.get("", response_model=UsagePage)
async def list_usage(
    http: Request,
    service: ServiceDep,
    owner: OwnerDep,
    by: Literal["hour", "day"] = "day",
    key: Named | None = None,
    model: Named | None = None,
    since: Text | None = None,
    until: Text | None = None,
    cursor: Text | None = None,
    limit: Limit = 100,
) -> Response:
    """Lists the caller's usage, and that of all keys to `admin`, by hours or days of UTC: of those hours that begin
    from `since` (30 days before `until` where it is left out) until before `until` (now). `key` is an id; `model` a
    name or `name:version`."""
    end = math.floor(service.answers.usage.clock()) + 1 if until is None else _seconds(until, "until")
    begin = end - USUAL_SECONDS if since is None else _seconds(since, "since")
    require_order(begin, end)
    if model is not None:
        model_filter(model)
    if ADMIN not in http.state.scopes:
        key = _own(owner, key)
    wanted = Wanted(begin, end, PERIODS[by], key, model)
    store = await service.store()
    page = await store.usage.used(wanted, cursor, limit)
    return json_response({"data": list(map(_shown, page.data)), "next_cursor": page.next_cursor})


def _seconds(text: str, param: str) -> int:
    return math.ceil(moment_of(text, param).timestamp())


def _own(owner: str, key: str | None) -> str:
    if key in (None, owner):
        return owner
    raise NotFound(f"There is no key {key!r} whose usage this key may read: leave `key` out, or ask the operator")


def _shown(used: Used) -> dict[str, Any]:
    counts = {name: used.counts[name] for name in UsageShown.model_fields if name in used.counts}
    return {"start": used.start.isoformat(), "key": used.owner, "model": used.model or None, **counts}
