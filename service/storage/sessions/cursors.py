"""These cursors say where a list of rows continues: behind a row, so that inserts and deletions do not shift the pages
of other callers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from sqlalchemy import Row, Select, literal, tuple_

from service.storage.cursors import decode, encode
from service.storage.sessions.values import Page

Item = TypeVar("Item")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LARGEST: Final = {"sessions": 1 << 52, "messages": (1 << 31) - 1}


def page(
    rows: Sequence[Row[Any]], limit: int, value: Callable[[Row[Any]], Item], cursor: Callable[[Row[Any]], str]
) -> Page[Item]:
    """Returns the first `limit` of `rows`, with a cursor where there are more."""
    shown = rows[:limit]
    return Page(tuple(map(value, shown)), cursor(shown[-1]) if len(rows) > limit else None)


def newest_first(statement: Select[Any], its: Any, cursor: str | None) -> Select[Any]:
    """Returns `statement`, over a table with the columns `its`, from the cursor on. Raises InvalidRequest."""
    ordered = statement.order_by(its.created_at.desc(), its.id.desc())
    if cursor is None:
        return ordered
    moment, id = _decode("sessions", cursor)
    before = literal(_EPOCH + moment * _MICROSECOND, its.created_at.type), literal(id, its.id.type)
    return ordered.where(tuple_(its.created_at, its.id) < tuple_(*before))


def of_newest(row: Row[Any]) -> str:
    return encode("sessions", (row.created_at - _EPOCH) // _MICROSECOND, row.id)


def of_message(row: Row[Any]) -> str:
    return encode("messages", row.position, "")


def message_after(cursor: str) -> int:
    """Returns the position in the cursor. Raises InvalidRequest."""
    return _decode("messages", cursor)[0]


def _decode(kind: str, cursor: str) -> tuple[int, str]:
    return decode(kind, cursor, lambda position: type(position) is int and abs(position) <= _LARGEST[kind])
