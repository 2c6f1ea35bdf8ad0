"""A rule says what the guard looks for and what the guard does with a match; a scanner reports matches in its terms.
This module knows no pattern."""

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
"""Every rule, and what stands in the place of what it masks; of two that begin at one character, the first here."""

Span = tuple[int, int]
"""A match's first position in the answer's text, and the one behind it."""


class Action(StrEnum):
    """What becomes of a match. Where both begin at one character, `stop` comes before `mask`."""

    FLAG = "flag"  # counted and told; the text stays as it is, and comes no later
    MASK = "mask"  # a label in its place
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
    """How often a rule found something in one text. Matches of a rule that overlap are one."""

    rule: str
    action: Action
    count: int


class Scanner(Protocol):
    """Looks for one rule's matches in a text that grows. Whichever way the text is cut, the matches are the same."""

    certain: int
    """No match that is still to come begins before this position; it never goes back."""

    def scan(self, text: str, at: int, new: int, final: bool) -> list[Span]:
        """The matches that have become certain. `text` begins at position `at`, two characters before `certain` or at
        0; from index `new` on it was not there before. `final`: nothing will follow."""
        ...
