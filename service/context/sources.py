"""A source is what a prompt is made of: raw text, a chat, or token ids. This module holds values only."""

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
    """Messages, oldest first: system messages stand before all others, and the last message is the current one. `names`
    are the messages' names in a receipt; without names they are `m_0`, `m_1`, … by position. `past` is what the server
    knows of the chat.

    In a stored chat `positions` are the messages' positions, and `others` name messages that were not read because
    `past.before` has their numbers.
    """

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
        """Returns the messages' positions."""
        return self.positions or range(len(self.messages))

    @property
    def all_named(self) -> list[Named]:
        """Returns all messages in order, with `others`."""
        return sorted({**dict(self.others), **dict(zip(self.placed, self.named, strict=True))}.items())


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids, sent as they are."""

    token_ids: tuple[int, ...]


Source = Text | Chat | Ids
