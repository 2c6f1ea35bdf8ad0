"""Records turns rows into values, and messages into rows. It knows no statements."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row

from service.storage.sessions.values import Answered, Json, NewMessage, NewReply, Session, StoredMessage

ASSISTANT = "assistant"
TOOL = "tool"
_OWN = ("id", "role", "content", "name", "pinned", "created_at", "tool_calls", "tool_call_id", "reasoning")
_SESSION = tuple(field.name for field in fields(Session))
_ANSWERED = tuple(field.name for field in fields(Answered))


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
