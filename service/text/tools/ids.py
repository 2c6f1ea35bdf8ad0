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
    """Returns the messages with ids of this kind; "" takes all."""
    if not kind:
        return messages
    known: dict[str | None, str] = {}
    numbered: list[Message] = []
    for message in messages:
        calls = tuple(
            ToolCall(known.setdefault(call.id, _id(kind, call, len(known))), call.name, call.arguments)
            for call in message.tool_calls
        )
        result = known.get(message.tool_call_id, message.tool_call_id)
        numbered.append(replace(message, tool_calls=calls, tool_call_id=result))
    return tuple(numbered)


def _id(kind: str, call: ToolCall, number: int) -> str:
    if kind == NUMBERED:
        return f"functions.{call.name}:{number}"
    return call.id if _NINE.fullmatch(call.id) else sha256(call.id.encode()).hexdigest()[:9]
