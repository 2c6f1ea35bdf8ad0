"""Messages and documents are a chat before it becomes token ids. They know no template, tokenizer or wire format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call that the model asked for. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. The version's template checks `role`. `name` reaches the template if it is set. An assistant's
    message may hold tool calls. `tool_call_id` of a tool's message names the call of its result. `reasoning` of an
    assistant's message is never sent again."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = field(default="", repr=False)

    @property
    def texts(self) -> tuple[str, ...]:
        """All its texts: its content, and its calls."""
        return (self.content, *(text for call in self.tool_calls for text in (call.name, call.arguments)))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is the JSON schema of its arguments, as text. `strict`: a call
    must keep it; the template never sees that word."""

    name: str
    description: str | None = None
    parameters: str | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What a template gets beside messages and documents: the tools, and variables of its own such as
    `enable_thinking` (`chat_template_kwargs`). With `continues` an assistant's message at the end of a chat is left
    open: the prompt ends behind its content, and the answer goes on from there."""

    tools: tuple[Tool, ...] = ()
    variables: tuple[tuple[str, str | int | float | bool | None], ...] = ()
    continues: bool = False

    def is_open(self, messages: Sequence[Message]) -> bool:
        """Returns whether an answer goes on from the last of these messages."""
        return self.continues and bool(messages) and messages[-1].role == "assistant"


@dataclass(frozen=True, slots=True)
class Document:
    """One text as a source for the answer. The version's template places it. Its rank is its position in the
    request."""

    text: str
    title: str | None = None
    id: str | None = None
