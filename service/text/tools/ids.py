"""Ids of calls, in the form that a template takes; a client's own are changed for the prompt."""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from hashlib import sha256
from typing import Final

from service.text.messages import Message, ToolCall

NINE: Final = "nine letters and digits"
NUMBERED: Final = "functions.name:number"
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")


def new_id(kind: str) -> str:
    """Returns the id of a new call."""
    return secrets.token_hex(5)[:9] if kind == NINE else f"call_{secrets.token_hex(12)}"


def with_ids(kind: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Returns the messages with ids of this kind; "" takes all. A result belongs to the last call of its id before it:
    clients may number the calls of each turn anew."""
    if not kind:
        return messages
    known: dict[str | None, str] = {}
    changed, number = list[Message](), 0
    for message in messages:
        calls = tuple(
            ToolCall(_id(kind, call, at), call.name, call.arguments)
            for at, call in enumerate(message.tool_calls, number)
        )
        number += len(calls)
        known |= {call.id: new.id for call, new in zip(message.tool_calls, calls, strict=True)}
        result = known.get(message.tool_call_id, message.tool_call_id)
        changed.append(replace(message, tool_calls=calls, tool_call_id=result))
    return tuple(changed)


def numbered(name: str, number: int) -> str:
    return f"functions.{name}:{number}"


def _id(kind: str, call: ToolCall, number: int) -> str:
    if kind == NUMBERED:
        return numbered(call.name, number)
    return call.id if _NINE.fullmatch(call.id) else sha256(call.id.encode()).hexdigest()[:9]
