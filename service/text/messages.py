"""What a chat is made of before it becomes token ids. Knows no template, tokenizer or wire format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `role` is checked by the version's template; `name` reaches the template when it is set."""

    role: str
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One text that the answer may rest on, placed by the version's template. Rank is position in the request."""

    text: str
    title: str | None = None
    id: str | None = None
