"""A chat's messages and documents before they become token ids. This module knows no template, tokenizer or wire
format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wanted called. `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `role` is checked by the version's template; `name` reaches the template when it is set. An
    assistant's may hold tool calls; `tool_call_id` says of a tool's message which call it is the result of."""

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """All that it says: its content, and its calls."""
        return (self.content, *(text for call in self.tool_calls for text in (call.name, call.arguments)))


@dataclass(frozen=True, slots=True)
class Document:
    """One text that the answer may rest on, placed by the version's template. Rank is position in the request."""

    text: str
    title: str | None = None
    id: str | None = None
