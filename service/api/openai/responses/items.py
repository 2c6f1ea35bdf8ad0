"""Items become the messages that a prompt is made of, and get ids under which they are listed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from service.api.openai.responses.item_schemas import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    OtherItem,
    ReasoningItem,
    ReferenceItem,
    TextPart,
    joined,
)
from service.text.messages import Message, ToolCall

PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
_OF_RESPONSE: Final = re.compile(r"(?:msg|fc|fco|rs)_([0-9a-f]{32})(?:_\w+)?")


def id_of(kind: str, owner_id: str, number: int = 0) -> str:
    """Returns the id of an item that is a part of a session's message, or of a response's output: the call of this
    number, or another part."""
    own = owner_id.removeprefix("m_").removeprefix("resp_")
    return f"{PREFIXES[kind]}_{own}_{number}" if number or kind == "function_call" else f"{PREFIXES[kind]}_{own}"


def response_of(item_id: str) -> str | None:
    """Returns the id of the response that an item's id says it is of; None where it says none."""
    found = _OF_RESPONSE.fullmatch(item_id)
    return f"resp_{found[1]}" if found else None


def messages_of(items: Iterable[Item]) -> tuple[Message, ...]:
    """Returns the messages. Calls belong to the assistant's message right before them, and so does the assistant's text
    right behind them: a template gets them in one message. Reasoning belongs to the assistant's message behind it, and
    is not sent again."""
    messages, thought = list[Message](), list[str]()
    for item in items:
        match item:
            case MessageItem():
                role, text = "system" if item.role == "developer" else item.role, joined(item.content)
                if role == "assistant" and messages and messages[-1].tool_calls:
                    messages[-1] = replace(messages[-1], content=messages[-1].content + text)
                else:
                    messages.append(Message(role, text))
            case FunctionCallItem():
                call = ToolCall(item.call_id, item.name, item.arguments)
                if not messages or messages[-1].role != "assistant":
                    messages.append(Message("assistant", ""))
                messages[-1] = replace(messages[-1], tool_calls=(*messages[-1].tool_calls, call))
            case FunctionCallOutputItem():
                messages.append(Message("tool", joined(item.output), tool_call_id=item.call_id))
            case ReasoningItem():
                thought.append(item.text)
                continue
        if thought and messages[-1].role == "assistant":
            parts = filter(None, (messages[-1].reasoning, *thought))
            messages[-1] = replace(messages[-1], reasoning="\n".join(parts))
        thought = []
    return tuple(messages)


def listed(items: Iterable[Item], response_id: str) -> list[dict[str, Any]]:
    """Returns the items that the request of a response brought, as they are stored and listed."""
    return [_listed(item, f"{response_id}_i{at}") for at, item in enumerate(items)]


def _listed(item: Item, name: str) -> dict[str, Any]:
    assert not isinstance(item, OtherItem | ReferenceItem)  # nothing is one, and items stand for the others
    head: dict[str, Any] = {"id": f"{PREFIXES[item.type]}_{name.removeprefix('resp_')}", "type": item.type}
    match item:
        case MessageItem():
            parts = [_part(item.role, part) for part in item.content]
            return {**head, "role": item.role, "status": "completed", "content": parts}
        case FunctionCallItem():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {**head, **call, "status": "completed"}
        case FunctionCallOutputItem():
            return {**head, "call_id": item.call_id, "output": joined(item.output), "status": "completed"}
        case ReasoningItem():
            return {**head, "summary": item.summary or [], "content": item.content or []}


def _part(role: str, part: TextPart) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": part.text, "annotations": []}
    return {"type": "input_text", "text": part.text}
