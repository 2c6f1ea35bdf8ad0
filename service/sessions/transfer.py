"""A session as lines of JSON, and back: the first line is the session, every other one a message, oldest first.

Owner, revision and times of the session are not carried over: what is imported is the importer's, and new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from service.errors import InvalidRequest
from service.sessions.limits import Limits, check_distinct, check_levels, check_text
from service.sessions.records import ASSISTANT, renamed
from service.sessions.values import (
    Answered,
    NewMessage,
    Session,
    SessionFields,
    StoredMessage,
    new_message_id,
)

FORMAT: Final = 1


class SessionLine(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="session"):
    format: Literal[1]
    title: str | None = None
    model: str | None = None
    system: str | None = None
    policy: str | None = None
    metadata: dict[str, Any] = {}
    ttl_seconds: float | None = None
    cut: dict[str, Any] | None = None


class MessageLine(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    id: str
    role: str
    content: str
    created_at: datetime
    name: str | None = None
    pinned: bool = False
    context: dict[str, Any] | None = None
    model: str | None = None
    version: str | None = None
    digest: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None


_ANSWERED = Answered.__slots__


def lines_of(session: Session, messages: Iterable[StoredMessage]) -> list[bytes]:
    """Without newlines."""
    head = {name: getattr(session, name) for name in SessionLine.__struct_fields__ if name != "format"}
    lines = [msgspec.json.encode({"type": "session", "format": FORMAT, **head})]
    for message in messages:
        own = {name: getattr(message, name) for name in StoredMessage.__slots__ if name != "answered"}
        answered = asdict(message.answered) if message.answered is not None else {}
        lines.append(msgspec.json.encode({"type": "message", **own, **answered}))
    return lines


def parsed(lines: Iterable[bytes], limits: Limits) -> tuple[SessionFields, dict[str, Any] | None, list[StoredMessage]]:
    """Fields, cut and messages, all within `limits`. Raises InvalidRequest that names the line; QuotaExceeded."""
    read = [_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not read or not isinstance(read[0][1], SessionLine):
        raise InvalidRequest("The first line must be the session: send what export gave", param="line 1")
    head = read[0][1]
    fields = SessionFields(
        title=head.title,
        model=head.model,
        system=head.system,
        policy=head.policy,
        metadata=head.metadata,
        ttl_seconds=head.ttl_seconds,
    )
    limits.check_fields(fields)
    check_levels(head.cut, "cut")
    limits.check_room(0, len(read) - 1)
    return fields, head.cut, [_message(number, line, limits) for number, line in read[1:]]


def copies(messages: Iterable[StoredMessage], cut: Any) -> tuple[list[StoredMessage], Any]:
    """The messages under new ids, also where receipts and the cut name them; a cut at a message that is not among them
    is none."""
    originals = list(messages)
    check_distinct(message.id for message in originals)
    ids = {message.id: new_message_id() for message in originals}
    copied = [_copy(message, ids) for message in originals]
    return copied, renamed(cut, ids) if cut is not None and cut.get("at") in ids else None


def _copy(message: StoredMessage, ids: dict[str, str]) -> StoredMessage:
    answered = message.answered
    if answered is not None:
        answered = replace(answered, context=renamed(answered.context, ids))
    return replace(message, id=ids[message.id], answered=answered)


def _line(number: int, line: bytes) -> tuple[int, SessionLine | MessageLine]:
    try:
        return number, msgspec.json.decode(line, type=SessionLine | MessageLine)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Line {number} is not of an export: {error}", param=f"line {number}") from None


def _message(number: int, line: SessionLine | MessageLine, limits: Limits) -> StoredMessage:
    if isinstance(line, SessionLine):
        raise InvalidRequest(f"Line {number} is a second session: import one at a time", param=f"line {number}")
    limits.check_message(NewMessage(line.content, line.role, line.name))
    for name in ("model", "version", "digest", "finish_reason"):
        check_text(getattr(line, name), name)
    for name in ("context", "usage"):
        check_levels(getattr(line, name), name)
    if line.created_at.tzinfo is None:
        raise InvalidRequest(f"Line {number}: `created_at` needs a time zone, as Z", param=f"line {number}")
    answered = {name: getattr(line, name) for name in _ANSWERED}
    if line.role != ASSISTANT and any(answered.values()):
        raise InvalidRequest(f"Line {number}: only an assistant's message has a receipt", param=f"line {number}")
    made = Answered(**answered) if line.role == ASSISTANT else None
    return StoredMessage(line.id, line.role, line.content, line.name, line.pinned, line.created_at, made)
