"""Records turns rows into values, and messages into rows. It knows no statements."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from service.sessions.values import Answered, NewMessage, NewReply, Session, StoredMessage

ASSISTANT = "assistant"
_SESSION = tuple(field.name for field in fields(Session))
_ANSWERED = tuple(field.name for field in fields(Answered))


def session_of(row: Row[Any]) -> Session:
    columns = row._mapping
    return Session(**{name: columns[name] for name in _SESSION})


def message_of(row: Row[Any]) -> StoredMessage:
    columns = row._mapping
    answered = Answered(**{name: columns[name] for name in _ANSWERED}) if row.role == ASSISTANT else None
    return StoredMessage(row.id, row.role, row.content, row.name, row.pinned, row.created_at, answered)


def columns_of(message: StoredMessage) -> dict[str, object]:
    """Returns the columns that a message fills by itself."""
    answered = message.answered or Answered()
    own = {name: getattr(message, name) for name in ("id", "role", "content", "name", "pinned", "created_at")}
    return {**own, **{name: getattr(answered, name) for name in _ANSWERED}}


def stored(message: NewMessage, now: datetime) -> StoredMessage:
    answered = Answered() if message.role == ASSISTANT else None
    return StoredMessage(message.id, message.role, message.content, message.name, message.pinned, now, answered)


def stored_reply(reply: NewReply, now: datetime) -> StoredMessage:
    content = reply.content.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return StoredMessage(reply.id, ASSISTANT, content, reply.name, False, now, reply.answered)
