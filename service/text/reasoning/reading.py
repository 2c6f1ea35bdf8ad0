"""A reasoning reader takes the text of one answer as it grows, and parts its reasoning from its content.

    text        <think>\\nIt rains.\\n</think>\\n\\nTake an umbrella.
    reasoning            It rains.
    content                                  Take an umbrella.

The marks, the blanks around the reasoning and the newlines before the content belong to neither. Only a part at the
very beginning is reasoning; a mark that comes later is content. An answer that ends inside its reasoning has no
content.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from service.text.marks import possible
from service.text.reasoning.forms import ReasoningForm


@dataclass(frozen=True, slots=True)
class Parted:
    """More of both parts."""

    reasoning: str = ""
    content: str = ""

    def __add__(self, more: Parted) -> Parted:
        return Parted(self.reasoning + more.reasoning, self.content + more.content)


class _Place(Enum):
    BEGINNING = auto()
    REASONING = auto()
    BEHIND = auto()
    """Between the closing mark and the content."""
    CONTENT = auto()


class ReasoningReader:
    """Reads one answer. The parts of all `push` calls and of `finish` join to the answer's parts."""

    def __init__(self, form: ReasoningForm, is_open: bool) -> None:
        """`is_open`: the prompt has opened the reasoning."""
        self._form = form
        self._place = _Place.REASONING if is_open else _Place.BEGINNING
        self._held = ""
        self._pushed = 0
        self._has_text = False
        self._is_closed = False
        self.content_at: int | None = None
        """How many of the pushed characters stand before the content; None as long as there is none."""

    @property
    def is_undecided(self) -> bool:
        """Whether the text so far may be either part."""
        return self._place is _Place.BEGINNING

    @property
    def is_reasoning(self) -> bool:
        return self._place is _Place.REASONING

    @property
    def had_reasoning(self) -> bool:
        """Whether there was a whole reasoning part."""
        return self._is_closed

    def push(self, text: str) -> Parted:
        """Returns what is certain now."""
        self._held += text
        self._pushed += len(text)
        if self._place is _Place.BEGINNING:
            self._begin()
        reasoning = self._think() if self._place is _Place.REASONING else ""
        if self._place is _Place.BEHIND:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._place, self.content_at = _Place.CONTENT, self._pushed - len(self._held)
        return Parted(reasoning, self._taken() if self._place is _Place.CONTENT else "")

    def finish(self) -> Parted:
        """Returns the rest. What only began as a mark is text."""
        if self._place is _Place.BEGINNING:
            self._place, self.content_at = _Place.CONTENT, 0
        if self._place is _Place.REASONING:
            return Parted(reasoning=self._taken().rstrip())
        return Parted(content=self._taken())

    def _taken(self) -> str:
        text, self._held = self._held, ""
        return text

    def _begin(self) -> None:
        text, opening = self._held.lstrip(), self._form.opening
        if text.startswith(opening):
            self._held, self._place = text[len(opening) :], _Place.REASONING
        elif not opening.startswith(text):
            self._place, self.content_at = _Place.CONTENT, 0

    def _think(self) -> str:
        if not self._has_text:
            self._held = self._held.lstrip()
            if self._form.opening.startswith(self._held[: len(self._form.opening)]):
                if len(self._held) < len(self._form.opening):  # perhaps the model opens what the prompt has opened
                    return ""
                self._held = self._held[len(self._form.opening) :].lstrip()
        text, closing, behind = self._held.partition(self._form.closing)
        if closing:
            self._held, self._place, self._is_closed = behind, _Place.BEHIND, True
            return text.rstrip()
        text = text[: len(text) - possible(text, self._form.closing)]
        self._held = self._held[len(text) :]
        self._has_text = self._has_text or bool(text)
        return text
