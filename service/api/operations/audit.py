"""The route of the audit: who changed keys, versions, aliases and deployments, or deleted what a client has stored.
Nothing here writes it."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from service.api.deps import Limit, ServiceDep, Text
from service.api.http.documented import Router
from service.api.http.encoding import json_response
from service.api.shared.answer_schemas import Page, Shown, Time
from service.api.shared.moments import moment_of, require_order
from service.storage.audit.chain import Outcome
from service.storage.cursors import decode, encode

KIND: Final = "audit"
Exactly = Annotated[str | None, Query(max_length=200)]


class AuditRow(Shown):
    """`previous` is the hash of the row before, `hash` that of this row. `owner` is a key's id, `name` the key's; of
    what was refused one row tells `detail.times` of a minute. What is `begun` ends in another row, or as a job."""

    number: int
    at: Time
    action: str
    outcome: Outcome
    subject: str
    owner: str
    name: str
    peer: str
    instance: str
    request_id: str
    detail: dict[str, Any]
    previous: str
    hash: str


class AuditPage(Page[AuditRow]):
    """Newest first."""


router = Router(prefix="/v1/audit", tags=["audit"])


@router.get("", response_model=AuditPage)
async def list_audit(
    service: ServiceDep,
    action: Exactly = None,
    outcome: Outcome | None = None,
    subject: Exactly = None,
    owner: Exactly = None,
    since: Text | None = None,
    until: Text | None = None,
    cursor: Text | None = None,
    limit: Limit = 50,
) -> Response:
    """Lists rows of the audit, newest first: those with these texts, from `since` on and before `until`; `cursor` is
    the last answer's `next_cursor`."""
    texts = {"action": action, "outcome": outcome, "subject": subject, "owner": owner}
    wanted = {name: text.replace("\x00", "") for name, text in texts.items() if text is not None}
    before = None if cursor is None else decode(KIND, cursor, _is_number)[0]
    begin, end = _micros(since, "since"), _micros(until, "until")
    require_order(begin, end)
    trail = await service.audit.trail()
    rows, has_more = await trail.all(wanted, begin, end, before, limit)
    next_cursor = encode(KIND, rows[-1].number, "") if has_more else None
    return json_response({"data": [row.shown() for row in rows], "next_cursor": next_cursor})


def _is_number(position: object) -> bool:
    return type(position) is int and 0 < position < 1 << 62


def _micros(text: str | None, param: str) -> int | None:
    return None if text is None else int(moment_of(text, param).timestamp() * 1e6)
