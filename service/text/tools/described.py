"""Described tools: where a template places none, the system part says what there is and how to call it, and the results
of calls are a user's text, as llama.cpp's generic form has it.

    system     …
               You can call these functions:
               {"name": "weather", "parameters": {…}}
               …
    assistant  {"name": "weather", "arguments": {"city": "Seoul"}}
    user       Result of weather: 12 degrees
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from service.text.arguments import Value, written
from service.text.messages import Message, ToolCall
from service.text.tools.form import ToolFormat

Item = dict[str, Value]
NOTE: Final = "the version's template places no tools: its system part describes them"
CALLS_NOTE: Final = "the version's template places no calls of tools: earlier ones and their results are sent as texts"
_NAME: Final = "NAME"


def described(
    form: ToolFormat, messages: Sequence[Item], tools: Sequence[Item], *, has_system: bool
) -> tuple[Item, ...]:
    """Returns the messages with the tools behind the first system message; where there is none, in one of its own, or
    before the first message's text where the template knows no system messages."""
    text = _definitions(form, tools)
    if messages and messages[0]["role"] == "system":
        first, *rest = messages
        return ({**first, "content": f"{first['content']}\n\n{text}"}, *rest)
    if has_system:
        return ({"role": "system", "content": text}, *messages)
    first, *rest = messages
    return ({**first, "content": f"{text}\n\n{first['content']}"}, *rest)


def _definitions(form: ToolFormat, tools: Sequence[Item]) -> str:
    functions = "\n".join(written(cast(Item, tool["function"])) for tool in tools)
    arguments = "{…}" if form.writing is None else '{"PARAMETER": "VALUE"}'
    call = form.as_text(Message("assistant", "", tool_calls=(ToolCall("", _NAME, arguments),))).content
    return (
        f"You can call these functions:\n{functions}\n\nTo call one, answer with its name and its arguments in this "
        f"form, and with nothing else:\n{call}\nThe next message then has the result. Where no function helps, answer "
        "in words."
    )


def as_texts(form: ToolFormat, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Returns the messages with calls and results as text. A result belongs to the last call of its id before it."""
    names = dict[str, str]()

    def as_text(message: Message) -> Message:
        names.update((call.id, call.name) for call in message.tool_calls)
        if message.role != "tool":
            return form.as_text(message)
        name = names.get(message.tool_call_id or "", message.name or "the call")
        return Message("user", f"Result of {name}: {message.content}")

    return tuple(map(as_text, messages))
