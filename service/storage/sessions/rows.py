"""Rows turn into values and messages into rows, and a cursor says behind which row a list goes on, so that inserts
and deletions do not shift the pages of other callers. The module knows no owner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import Row, Select, literal, tuple_

from service.storage.cursors import decode, encode
from service.storage.sessions.values import Answered, Json, NewMessage, NewReply, Page, Session, StoredMessage

ASSISTANT = "assistant"
TOOL = "tool"
_OWN = ("id", "role", "content", "name", "pinned", "created_at", "tool_calls", "tool_call_id", "reasoning")
_SESSION = tuple(field.name for field in fields(Session))
_ANSWERED = tuple(field.name for field in fields(Answered))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST: Final = {"sessions": 1 << 52, "messages": (1 << 31) - 1}


def session_of(row: Row[Any]) -> Session:
    columns = row._mapping
    return Session(**{name: columns[name] for name in _SESSION})


def message_of(row: Row[Any]) -> StoredMessage:
    columns = row._mapping
    answered = Answered(**{name: columns[name] for name in _ANSWERED}) if row.role == ASSISTANT else None
    return StoredMessage(**{name: columns[name] for name in _OWN}, answered=answered)


def columns_of(message: StoredMessage) -> dict[str, object]:
    """Returns the columns that a message fills by itself."""
    answered = message.answered or Answered()
    return {**{name: getattr(message, name) for name in _OWN}, **{name: getattr(answered, name) for name in _ANSWERED}}


def stored(message: NewMessage, now: datetime) -> StoredMessage:
    answered = Answered() if message.role == ASSISTANT else None
    own = {name: getattr(message, name) for name in NewMessage.__slots__}
    return StoredMessage(**own, created_at=now, answered=answered)


def stored_reply(reply: NewReply, now: datetime) -> StoredMessage:
    calls = None if reply.tool_calls is None else [_storable_call(call) for call in reply.tool_calls]
    return StoredMessage(
        reply.id,
        ASSISTANT,
        _storable(reply.content),
        reply.name,
        False,
        now,
        reply.answered,
        calls,
        reasoning=None if reply.reasoning is None else _storable(reply.reasoning),
    )


def _storable_call(call: Json) -> Json:
    return {key: _storable(str(value)) for key, value in call.items()}


def _storable(text: str) -> str:
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


Item = TypeVar("Item")


def page_of(
    rows: Sequence[Row[Any]], limit: int, value: Callable[[Row[Any]], Item], cursor: Callable[[Row[Any]], str]
) -> Page[Item]:
    """Returns the first `limit` of `rows`, with a cursor where there are more."""
    shown = rows[:limit]
    return Page(tuple(map(value, shown)), cursor(shown[-1]) if len(rows) > limit else None)


def from_newest(statement: Select[Any], its: Any, cursor: str | None) -> Select[Any]:
    """Returns `statement`, over a table with the columns `its`, from the cursor on. Raises InvalidRequest."""
    ordered = statement.order_by(its.created_at.desc(), its.id.desc())
    if cursor is None:
        return ordered
    moment, id = _decode("sessions", cursor)
    before = literal(_EPOCH + moment * _MICROSECOND, its.created_at.type), literal(id, its.id.type)
    return ordered.where(tuple_(its.created_at, its.id) < tuple_(*before))


def newest_cursor(row: Row[Any]) -> str:
    return encode("sessions", (row.created_at - _EPOCH) // _MICROSECOND, row.id)


def message_cursor(row: Row[Any]) -> str:
    return encode("messages", row.position, "")


def message_after(cursor: str) -> int:
    """Returns the position in the cursor. Raises InvalidRequest."""
    return _decode("messages", cursor)[0]


def _decode(kind: str, cursor: str) -> tuple[int, str]:
    return decode(kind, cursor, lambda position: type(position) is int and abs(position) <= _LARGEST[kind])
