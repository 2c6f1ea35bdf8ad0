"""Transfer writes a session as lines of JSON and reads it back: the first line is the session, each other line a
message, oldest first.

Owner, revision and times of the session are not written: an imported session is new and belongs to the importer. The
numbers in receipts count lines; in format 1, of older exports, receipts hold lists of message ids.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from service.context.partition import numbered, partition_of, renumbered
from service.errors import InvalidRequest
from service.storage.sessions.limits import Limits, check_answer_id, check_distinct, check_levels, check_text
from service.storage.sessions.rows import ASSISTANT, TOOL
from service.storage.sessions.values import (
    Answered,
    Json,
    NewMessage,
    Session,
    SessionFields,
    StoredMessage,
    new_message_id,
)
from service.text.arguments import parsed as parsed_arguments

FORMAT: Final = 2
_ANSWERED = Answered.__slots__
_TOOLS: Final = ("tool_calls", "tool_call_id", "reasoning")
"""Written where they are set only, so that earlier versions read the export of a session without them."""


class SessionLine(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="session"):
    format: Literal[1, 2]
    title: str | None = None
    model: str | None = None
    system: str | None = None
    policy: str | None = None
    metadata: dict[str, Any] = {}
    ttl_seconds: float | None = None
    cut: dict[str, Any] | None = None


class CallLine(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    arguments: str


class MessageLine(msgspec.Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    id: str
    role: Literal["system", "developer", "user", "assistant", "tool"]
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
    answer_id: str | None = None
    tool_calls: list[CallLine] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None


def lines_of(session: Session, messages: Sequence[StoredMessage], positions: Sequence[int]) -> list[bytes]:
    """Returns lines without newlines. `positions` are the messages' positions."""
    head = {name: getattr(session, name) for name in SessionLine.__struct_fields__ if name != "format"}
    head["cut"] = cut_at(session.cut, positions)
    lines = [msgspec.json.encode({"type": "session", "format": FORMAT, **head})]
    for message in map(_placed(positions), messages):
        own = {name: getattr(message, name) for name in StoredMessage.__slots__ if name != "answered"}
        own = {name: value for name, value in own.items() if value is not None or name not in _TOOLS}
        answered = asdict(message.answered) if message.answered is not None else {}
        lines.append(msgspec.json.encode({"type": "message", **own, **answered}))
    return lines


def parsed(lines: Iterable[bytes], limits: Limits) -> tuple[SessionFields, Json | None, list[StoredMessage]]:
    """Returns fields, cut and messages, all within `limits`, with positions counted from the first message. Raises
    InvalidRequest that names the line; QuotaExceeded."""
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
    messages = [_message(number, line, limits) for number, line in read[1:]]
    check_distinct(message.id for message in messages)
    _check_calls(read[1:])
    places = {message.id: place for place, message in enumerate(messages)}
    cut = head.cut
    if head.format == 1:
        messages = [_with_context(message, lambda context: numbered(context, places)) for message in messages]
        cut = None if cut is None else {**cut, "at": places.get(str(cut.get("at")))}
    return fields, cut_at(cut, range(len(messages))), messages


def copies(messages: Iterable[StoredMessage], positions: Sequence[int]) -> list[StoredMessage]:
    """Returns copies of the messages, which had these positions, under new ids, with the positions 0, 1, … in their
    receipts."""
    return [replace(message, id=new_message_id()) for message in map(_placed(positions), messages)]


def cut_at(cut: Json | None, positions: Sequence[int]) -> Json | None:
    """Returns the cut when messages with these positions are counted from 0, without the numbers of what is before it;
    None where the cut's message is not among them."""
    at = None if cut is None else cut.get("at")
    if cut is None or type(at) is not int or at not in positions:
        return None
    return {"at": bisect_left(positions, at), **{key: cut[key] for key in ("policy", "limit") if key in cut}}


def _placed(positions: Sequence[int]) -> Callable[[StoredMessage], StoredMessage]:
    def place(position: int) -> int:
        return position if position < 0 else bisect_left(positions, position)

    return lambda message: _with_context(message, lambda context: renumbered(context, place))


def _with_context(message: StoredMessage, change: Callable[[Json], Json]) -> StoredMessage:
    answered = message.answered
    if answered is None or answered.context is None:
        return message
    return replace(message, answered=replace(answered, context=change(answered.context)))


def _line(number: int, line: bytes) -> tuple[int, SessionLine | MessageLine]:
    try:
        return number, msgspec.json.decode(line, type=SessionLine | MessageLine)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"Line {number} is not of an export: {error}", param=f"line {number}") from None


def _message(number: int, line: SessionLine | MessageLine, limits: Limits) -> StoredMessage:
    if isinstance(line, SessionLine):
        raise InvalidRequest(f"Line {number} is a second session: import one at a time", param=f"line {number}")
    if line.role == ASSISTANT:
        limits = replace(limits, max_message_bytes=sys.maxsize)  # none applies to an answer: it was generated already
    limits.check_message(NewMessage(line.content, line.role, line.name, tool_call_id=line.tool_call_id))
    limits.check_content(line.reasoning or "", "reasoning")
    for call in line.tool_calls or ():
        limits.check_content(call.id + call.name + call.arguments, "tool_calls")
        _check_arguments(number, call)
    for name in ("model", "version", "digest", "finish_reason"):
        check_text(getattr(line, name), name)
    check_answer_id(line.answer_id, "answer_id")
    for name in ("context", "usage"):
        check_levels(getattr(line, name), name)
    _check_moment(number, line.created_at)
    _check_cut(number, line.context)
    answered = {name: getattr(line, name) for name in _ANSWERED}
    if line.role != ASSISTANT and any(answered.values()):
        raise InvalidRequest(f"Line {number}: only an assistant's message has a receipt", param=f"line {number}")
    made = Answered(**answered) if line.role == ASSISTANT else None
    calls = None if line.tool_calls is None else [msgspec.structs.asdict(call) for call in line.tool_calls]
    fields = (line.id, line.role, line.content, line.name, line.pinned, line.created_at, made)
    return StoredMessage(*fields, calls, line.tool_call_id, line.reasoning)


def _check_moment(number: int, moment: datetime) -> None:
    if moment.tzinfo is None:
        raise InvalidRequest(f"Line {number}: `created_at` needs a time zone, as Z", param=f"line {number}")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(
            f"Line {number}: `created_at` must be in the years 1 to 9999 of UTC", param=f"line {number}"
        ) from None


def _check_cut(number: int, context: Json | None) -> None:
    """Raises InvalidRequest for a receipt whose cut is at no position that a message can have."""
    partition = None if context is None else partition_of(context)
    if partition is not None and partition.cut is not None and partition.cut < 0:
        raise InvalidRequest(
            f"Line {number}: `context.positions.cut` must be the position of a message, 0 or more",
            param=f"line {number}",
        )


def _check_arguments(number: int, call: CallLine) -> None:
    try:
        parsed_arguments(call.arguments)
    except InvalidRequest as error:
        raise InvalidRequest(f"Line {number}: {error.message}", param=f"line {number}") from None


def _check_calls(read: Sequence[tuple[int, SessionLine | MessageLine]]) -> None:
    """Raises InvalidRequest for a result without its call before it in the same turn, and for calls that are not an
    assistant's."""
    called: set[str] = set()
    for number, line in read:
        if not isinstance(line, MessageLine):
            continue
        if line.role != ASSISTANT and (line.tool_calls or line.reasoning):
            raise InvalidRequest(
                f"Line {number}: only an assistant's message has tool_calls and reasoning", param=f"line {number}"
            )
        called = set() if line.role == "user" else called | {call.id for call in line.tool_calls or ()}
        if (line.role == TOOL) != (line.tool_call_id is not None) or (
            line.role == TOOL and line.tool_call_id not in called
        ):
            raise InvalidRequest(
                f"Line {number}: a tool's message alone has a `tool_call_id`, that of a call since the user's last",
                param=f"line {number}",
            )
