"""What a prompt is made of: raw text, a chat, or token ids. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.context.partition import Named
from service.context.trimming import Past
from service.text.messages import Message


@dataclass(frozen=True, slots=True)
class Text:
    """A raw prompt; gets the tokenizer's own special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages, oldest first; system messages before all others, the last message is the current one. `names` are
    theirs in a receipt; without any they are `m_0`, `m_1`, … by position. `past` is what the server knows of it.

    Of a stored chat `positions` are those of the messages, and `others` name messages that are not among them because
    `past.before` has their numbers."""

    messages: tuple[Message, ...]
    names: tuple[str, ...] = ()
    past: Past = Past()  # noqa: RUF009  (frozen)
    positions: tuple[int, ...] = ()
    others: tuple[Named, ...] = ()

    @property
    def named(self) -> tuple[str, ...]:
        return self.names or tuple(f"m_{at}" for at in range(len(self.messages)))

    @property
    def placed(self) -> Sequence[int]:
        """The messages' positions."""
        return self.positions or range(len(self.messages))

    @property
    def all_named(self) -> list[Named]:
        """In order, with those that are not among the messages."""
        return sorted({**dict(self.others), **dict(zip(self.placed, self.named, strict=True))}.items())


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, sent as they are."""

    token_ids: tuple[int, ...]


Source = Text | Chat | Ids
