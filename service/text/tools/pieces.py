"""Pieces are what an answer's text is parted into: content, thoughts, and calls as far as they came."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning that stands behind content or calls. `begins`: the text is the first of its message."""

    text: str
    begins: bool = False


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Call number `index` of the answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallText:
    """More of the arguments of call number `index`: JSON, as the model writes it."""

    index: int
    text: str


Piece = Content | Thought | CallBegun | CallText
