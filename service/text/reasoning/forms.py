"""Forms of reasoning: how a version's template marks it, and so how the model was taught to write it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Start(Enum):
    """What of a reasoning part stands at the end of a prompt."""

    OPEN = auto()
    """The template has opened the part: the answer begins inside of it."""
    CLOSED = auto()
    """The template has closed the part: the whole answer is content."""
    UNSAID = auto()
    """The model opens the part, or writes none."""


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Two marks."""

    opening: str
    closing: str

    def start(self, prompt: str) -> Start:
        """`prompt` is the text behind the last message, or more."""
        text = prompt.rstrip()
        if text.endswith(self.opening):
            return Start.OPEN
        return Start.CLOSED if text.endswith(self.closing) else Start.UNSAID


_FORMS: Final = (
    ReasoningForm("<think>", "</think>"),  # Qwen, DeepSeek, GLM and most others
    ReasoningForm("[THINK]", "[/THINK]"),  # Magistral
    ReasoningForm("<seed:think>", "</seed:think>"),  # Seed-OSS
)


def form_of(template: str) -> ReasoningForm | None:
    """Returns the form by the texts that a template itself writes or looks for; None for a version without one."""
    return next((form for form in _FORMS if form.closing in template), None)
