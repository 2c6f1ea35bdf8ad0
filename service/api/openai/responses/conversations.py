"""A conversation is a session as OpenAI's clients see it, and an item is a message of the session or a part of one.

    session  s_X     m_A, an assistant's message with reasoning, text, two calls     m_B, a tool's
    conversation     rs_A   msg_A   fc_A_0   fc_A_1                                  fco_B
      conv_X

The ids of the one follow from those of the other, so nothing keeps them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from service.api.openai.responses.item_schemas import (
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
)
from service.api.openai.responses.items import id_of, messages_of
from service.api.openai.responses.schemas import InputFields
from service.errors import InvalidRequest, NotFound
from service.generation.request import SessionTurn
from service.generation.stored_turns import stored_form
from service.storage.sessions import NewMessage, Session, StoredMessage, new_message_id
from service.text.arguments import is_object, original

Json = dict[str, Any]
_ITEM_ID: Final = re.compile(r"(?:(?:msg|rs|fco)_(?P<whole>.+)|fc_(?P<caller>.+)_[0-9]+)")
_WHOLE: Final = (None, "stop")
"""Reasons of an end that leave a message whole."""


def conversation_id(session_id: str) -> str:
    return f"conv_{session_id.removeprefix('s_')}"


def session_id_of(conversation: str) -> str:
    """Returns the session's id. A session's own id names its conversation too."""
    return f"s_{conversation.removeprefix('conv_')}" if conversation.startswith("conv_") else conversation


def no_conversation(conversation: str, param: str) -> NotFound:
    return NotFound(
        f"There is no conversation {conversation[:80]!r}: it was not made, was deleted, or has expired", param=param
    )


def shown(session: Session) -> Json:
    made = int(session.created_at.timestamp())
    metadata = dict(session.metadata)
    return {"id": conversation_id(session.id), "object": "conversation", "created_at": made, "metadata": metadata}


def turn_of(body: InputFields) -> SessionTurn | None:
    """Returns the turn that a response makes in its conversation; None for a response without one."""
    if body.conversation is None:
        return None
    items = body.input or []
    _refuse_lone_reasoning(items, "input")
    messages = messages_of(items)
    return SessionTurn(
        session_id_of(body.conversation.id),
        messages,
        system=body.instructions or "",
        ids=tuple(new_message_id() for _ in range(len(messages) + 1)),
        places=result_places(items, "input"),
    )


def new_messages(items: Sequence[Item]) -> list[NewMessage]:
    """Returns the messages of the items that a client adds."""
    _refuse_lone_reasoning(items, "items")
    return [stored_form(message, new_message_id()) for message in messages_of(items)]


def result_places(items: Iterable[Item], field: str) -> tuple[str, ...]:
    """Returns where the body has the call ids of its results."""
    return tuple(f"{field}[{at}].call_id" for at, item in enumerate(items) if isinstance(item, FunctionCallOutputItem))


def items_of(message: NewMessage | StoredMessage) -> list[Json]:
    """Returns the items of a message, in order; at least one."""
    if message.role == "tool":
        result = {"call_id": message.tool_call_id, "output": message.content, "status": "completed"}
        return [{"id": id_of("function_call_output", message.id), "type": "function_call_output", **result}]
    items: list[Json] = []
    if message.reasoning:
        thought = [{"type": "reasoning_text", "text": message.reasoning}]
        items.append({"id": id_of("reasoning", message.id), "type": "reasoning", "summary": [], "content": thought})
    calls = message.tool_calls or ()
    if message.content or not calls:
        items.append(_said(message))
    for number, call in enumerate(calls):
        arguments = original(str(call["arguments"]))
        status = "completed" if not arguments or is_object(arguments) else "incomplete"
        fields = {"call_id": call["id"], "name": call["name"], "arguments": arguments, "status": status}
        items.append({"id": id_of("function_call", message.id, number), "type": "function_call", **fields})
    answered = message.answered if isinstance(message, StoredMessage) else None
    is_whole = all(item.get("status") != "incomplete" for item in items)
    if answered is not None and not (is_whole and answered.finish_reason in _WHOLE):
        items[-1]["status"] = "incomplete"
    return items


def message_of(item_id: str, param: str = "item_id") -> str:
    """Returns the id of the message that an item is of. Raises NotFound for what is no item's id."""
    if (found := _ITEM_ID.fullmatch(item_id)) is None:
        raise no_item(item_id, param)
    return f"m_{found['whole'] or found['caller']}"


def no_item(item_id: str, param: str = "item_id") -> NotFound:
    return NotFound(f"The conversation has no item {item_id[:80]!r}", param=param)


def _said(message: NewMessage | StoredMessage) -> Json:
    part: Json = {"type": "input_text", "text": message.content}
    if message.role == "assistant":
        part = {"type": "output_text", "text": message.content, "annotations": []}
    return {
        "id": id_of("message", message.id),
        "type": "message",
        "role": message.role,
        "status": "completed",
        "content": [part],
    }


def _refuse_lone_reasoning(items: Sequence[Item], field: str) -> None:
    """Raises InvalidRequest for reasoning that no answer follows: the session keeps it with the answer."""
    for at, item in enumerate(items):
        behind = items[at + 1] if at + 1 < len(items) else None
        answers = isinstance(behind, FunctionCallItem | ReasoningItem)
        if isinstance(item, ReasoningItem) and not answers and not _is_assistants(behind):
            raise InvalidRequest(
                f"`{field}[{at}]` is reasoning without the answer behind it: send the assistant's message or call next",
                param=f"{field}[{at}]",
            )


def _is_assistants(item: Item | None) -> bool:
    return isinstance(item, MessageItem) and item.role == "assistant"
