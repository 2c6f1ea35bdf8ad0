"""Ollama's messages become those that templates know: calls and results without ids get some, in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from service.api.ollama.schemas import OllamaMessage
from service.errors import InvalidRequest
from service.text.messages import Message, ToolCall


def messages_of(sent: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    """Returns the messages. A result belongs to the call whose id it has; without one, to the first call of its
    `tool_name` since the user's last message that has no result yet. Raises InvalidRequest for a result without its
    call."""
    messages, waiting, made = list[Message](), list[ToolCall](), 0
    for index, each in enumerate(sent):
        if each.role == "user":
            waiting = []
        calls = list[ToolCall]()
        for call in each.tool_calls or ():
            made += 1
            arguments = json.dumps(call.function.arguments or {}, ensure_ascii=False)
            calls.append(ToolCall(call.id or f"call_{made}", call.function.name, arguments))
        waiting += calls
        message = Message(each.role, each.content or "", tool_calls=tuple(calls), reasoning=each.thinking or "")
        if each.role == "tool":
            found = _answered(each, waiting, index)
            waiting.remove(found)
            message = replace(message, tool_call_id=found.id)
        messages.append(message)
    return tuple(messages)


def _answered(result: OllamaMessage, waiting: Sequence[ToolCall], index: int) -> ToolCall:
    for call in waiting:
        if call.id == result.tool_call_id or (result.tool_call_id is None and result.tool_name in (None, call.name)):
            return call
    field = "tool_name" if result.tool_call_id is None else "tool_call_id"
    where = f"messages[{index}].{field}"
    raise InvalidRequest(
        f"`{where}` names no call since the user's last message that has no result yet: send the assistant's message "
        "with that call in its tool_calls first",
        param=where,
    )
