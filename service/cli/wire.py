"""These values are the server's answers, without the fields that `dosirak chat` does not use. This module knows no
HTTP."""

from __future__ import annotations

import msgspec


class Receipt(msgspec.Struct, frozen=True):
    """What a model received of a chat: docs/api.md, "The context receipt"."""

    policy: str
    window: int
    reserved_output: int
    used: int
    free: int
    parts: dict[str, int]
    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    summarised: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()
    counts: dict[str, int] = {}
    dropped_tokens: int = 0
    cached_tokens: int = 0
    notes: tuple[str, ...] = ()

    def count(self, what: str) -> int:
        """Returns how many messages are in a list: in a long chat the list does not name them all."""
        return self.counts.get(what, len(getattr(self, what)))


class Session(msgspec.Struct, frozen=True):
    id: str
    message_count: int = 0
    title: str | None = None
    model: str | None = None
    policy: str | None = None


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class Call(msgspec.Struct, frozen=True):
    id: str
    function: Function


class Message(msgspec.Struct, frozen=True):
    """`context` is the receipt of an assistant's message."""

    id: str
    role: str
    content: str
    pinned: bool = False
    context: Receipt | None = None
    tool_calls: tuple[Call, ...] = ()

    @property
    def words(self) -> str:
        """Returns all that was said: the text, and each call on a line of its own."""
        calls = (f"{call.function.name}({call.function.arguments})" for call in self.tool_calls)
        return "\n".join(filter(None, (self.content, *calls)))


class Messages(msgspec.Struct, frozen=True):
    data: tuple[Message, ...]
    next_cursor: str | None = None


class Preview(msgspec.Struct, frozen=True):
    """`context` is None where the call would be refused; then `error` says why, and `window` what does not fit."""

    model: str
    context: Receipt | None = None
    error: str = ""
    window: int | None = None
    needed_tokens: int | None = None
    reserve: int | None = None

    @property
    def numbers(self) -> dict[str, int]:
        found = {"window": self.window, "needed_tokens": self.needed_tokens, "reserve": self.reserve}
        return {name: number for name, number in found.items() if number is not None}


class Token(msgspec.Struct, frozen=True):
    text: str


class Event(msgspec.Struct, frozen=True):
    """One `data:` of a stream; `generated_text` is None in all events but the last."""

    token: Token
    generated_text: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """A stream's last event. `context` is the receipt as the server sent it."""

    generated_text: str
    model: str
    digest: str
    finish_reason: str
    session_id: str
    usage: msgspec.Raw
    timings: msgspec.Raw
    context: msgspec.Raw

    @property
    def receipt(self) -> Receipt:
        return msgspec.json.decode(self.context, type=Receipt)
