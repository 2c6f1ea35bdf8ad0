"""A rule says what the guard looks for and what it does with a match; a scanner reports the matches. This module knows
no pattern."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

LABELS: Final = {
    "email": "[e-mail]",
    "resident_number": "[resident number]",
    "phone": "[phone]",
    "card": "[card]",
    "canary": "[canary]",
    "corpus": "[protected text]",
}
"""Every rule and the label that replaces its matches; of two matches at one character, the first rule here wins."""

Span = tuple[int, int]
"""A match's first position in the answer's text, and the position behind its end."""


class Action(StrEnum):
    """What the guard does with a match. Where both begin at one character, `stop` comes before `mask`."""

    FLAG = "flag"  # counted and reported; the text stays as it is, without delay
    MASK = "mask"  # a label replaces it
    STOP = "stop"  # the answer ends before it


@dataclass(frozen=True, slots=True)
class Rule:
    """`name` is one of LABELS."""

    name: str
    action: Action

    @property
    def label(self) -> str:
        return LABELS[self.name]


@dataclass(frozen=True, slots=True)
class Finding:
    """How often a rule found something in one text. Overlapping matches of a rule count as one."""

    rule: str
    action: Action
    count: int


class Scanner(Protocol):
    """Looks for one rule's matches in a text that grows. The matches do not depend on how the text is cut."""

    certain: int
    """No later match begins before this position; it never decreases."""

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        """Returns the matches that have become certain. `text` begins at position `at`: two characters before
        `certain`, or at 0. Its part from index `new` on is new. `final`: no more text will follow."""
        ...
