"""Reasoning is what a model writes for itself before its answer: how a version marks it, what a request may ask of it,
and how it is read. The module knows texts only: no tokens, requests or HTTP.

A reasoning reader takes the text of one answer as it grows, and parts its reasoning from its content:

    text        <think>\\nIt rains.\\n</think>\\n\\nTake an umbrella.
    reasoning            It rains.
    content                                  Take an umbrella.

The marks, the blanks around the reasoning and the newlines before the content belong to neither. Only a part at the
very beginning is reasoning; a mark that comes later is content, but for a closing one at a line's end that nothing has
opened. An answer that ends inside its reasoning has no content.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from service.errors import UnsupportedField
from service.text.detokenizer import HIDDEN

EFFORT: Final = "reasoning_effort"
SWITCHES: Final = ("enable_thinking", "thinking")
"""The names that templates have for the variable that switches reasoning on or off."""
USUAL: Final = "medium"
"""The effort that asks for what a version does anyway."""


class Start(Enum):
    """What of a reasoning part stands at the end of a prompt."""

    OPEN = auto()
    """The template has opened the part: the answer begins inside of it."""
    CLOSED = auto()
    """The template has closed the part: the whole answer is content."""
    UNSAID = auto()
    """The model opens the part, or writes none."""
    BEGUN = auto()
    """The text that the answer goes on from has opened the part."""

    @property
    def is_open(self) -> bool:
        return self in (Start.OPEN, Start.BEGUN)


@dataclass(frozen=True, slots=True)
class ReasoningForm:
    """Two marks. `told_by` is the text of a template that tells the form; without it the closing mark does. `lead` is
    what a model writes between the closing mark and its content."""

    opening: str
    closing: str
    told_by: str = ""
    lead: str = ""
    name: str = "think"
    is_begun: bool = False
    """Whether an answer begins inside of its reasoning, though no prompt opens it."""

    def start(self, prompt: str) -> Start:
        """`prompt` is the text behind the last message, or more."""
        text = prompt.rstrip()
        if text.endswith(self.opening):
            return Start.OPEN
        if text.endswith(self.closing):
            return Start.CLOSED
        return Start.OPEN if self.is_begun else Start.UNSAID

    def start_behind(self, text: str) -> Start:
        """`text` is what the answer goes on from."""
        return Start.BEGUN if text.rfind(self.opening) > text.rfind(self.closing) else Start.CLOSED


_FORMS: Final = (
    ReasoningForm(  # gpt-oss
        "<|channel|>analysis<|message|>", "<|end|>", told_by="<|channel|>", lead="<|start|>assistant", name="harmony"
    ),
    ReasoningForm("<|START_THINKING|>", "<|END_THINKING|>", name="command"),  # Command A
    ReasoningForm("<think>", "</think>"),  # Qwen, DeepSeek, GLM and most others
    ReasoningForm("[THINK]", "[/THINK]", name="magistral"),  # Magistral
    ReasoningForm("<seed:think>", "</seed:think>", name="seed"),  # Seed-OSS
)
_THINK_BEGUN: Final = ReasoningForm("<think>", "</think>", name="think-begun", is_begun=True)
REASONING_FORMS: Final = {form.name: form for form in (*_FORMS, _THINK_BEGUN)}
"""By the names that a version's `reasoning_parser` may have."""


def form_of(template: str) -> ReasoningForm | None:
    """Returns the form by the texts that a template itself writes or looks for; None for a version without one."""
    return next((form for form in _FORMS if (form.told_by or form.closing) in template), None)


def reasoning_form_of(template: str, name: str | None) -> ReasoningForm | None:
    """Returns the form of this name; without one that of the template."""
    return form_of(template) if name is None else REASONING_FORMS.get(name)


@dataclass(frozen=True, slots=True)
class ReasoningUse:
    """`field` is the request's field, for errors. `is_wanted` None leaves it to the template, and so does an `effort`
    that is empty. An effort that is the dialect's default (`is_default`) asks nothing of a version that knows none."""

    field: str
    is_wanted: bool | None = None
    effort: str = ""
    is_default: bool = False

    def variables(self, form: ReasoningForm | None, known: Collection[str]) -> dict[str, str | bool]:
        """Returns the variables to set. `known` are those of the template. Raises UnsupportedField for what the version
        cannot do."""
        if self.effort and EFFORT in known:
            return {EFFORT: self.effort, **self._switched(form, known)}
        if self.effort and not self.is_default and (form is None or self.effort != USUAL):
            levels = "knows no efforts, only on and off" if self._switch(known) else "knows no efforts"
            raise self._refusal(
                f"this version's template {levels}: remove it" if form else "this version does not reason: remove it"
            )
        return self._switched(form, known)

    def _switched(self, form: ReasoningForm | None, known: Collection[str]) -> dict[str, str | bool]:
        switch = self._switch(known)
        if self.is_wanted is None:
            return {}
        if switch is not None:
            return {switch: self.is_wanted}
        if self.is_wanted and form is None:
            raise self._refusal("this version does not reason: remove it")
        if not self.is_wanted and form is not None:
            raise self._refusal("this version's template cannot switch its reasoning off: remove it")
        return {}

    @staticmethod
    def _switch(known: Collection[str]) -> str | None:
        return next((name for name in SWITCHES if name in known), None)

    @classmethod
    def off(cls, form: ReasoningForm | None, known: Collection[str]) -> ReasoningUse | None:
        """Returns the use that switches reasoning off; None where the template cannot, or has none."""
        return None if form is None or cls._switch(known) is None else cls("", is_wanted=False)

    def _refusal(self, why: str) -> UnsupportedField:
        return UnsupportedField(f"`{self.field}` cannot act: {why}", param=self.field)


def begun(text: str, mark: str) -> int:
    """Returns how many characters at the end of a text may begin a mark."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)


def possible(text: str, mark: str) -> int:
    """Returns how many characters at the end may belong to a mark: blanks, and the beginning of it."""
    part = begun(text, mark)
    head = text[: len(text) - part]
    return part + len(head) - len(head.rstrip())


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

    def __init__(self, form: ReasoningForm, is_open: bool, has_text: bool = False) -> None:
        """`is_open`: the prompt has opened the reasoning; `has_text`: and holds some of its text."""
        self._form = form
        self._place = _Place.REASONING if is_open else _Place.BEGINNING
        self._held = ""
        self._blanks: list[str] = []
        """Behind what is held, where that is blank: joined once, for a model may write blanks to its limit."""
        self._pushed = 0
        self._untold: list[str] = []
        """What `searched` took and could not return yet."""
        self._has_text = has_text
        self._is_closed = False
        self._has_lone = False
        self.content_at: int | None = None
        """How many of the pushed characters stand before the content; None as long as there is none."""

    @property
    def is_content(self) -> bool:
        return self.content_at is not None

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
        self._pushed += len(text)
        if text.isspace() and self._place in (_Place.BEGINNING, _Place.REASONING) and not self._held.strip():
            self._blanks.append(text)
            return Parted()
        self._join(text)
        if self._place is _Place.BEGINNING:
            self._begin()
        reasoning = self._think() if self._place is _Place.REASONING else ""
        if self._place is _Place.BEHIND:
            self._held = self._held.lstrip("\n")
            if self._held:
                self._place, self.content_at = _Place.CONTENT, self._pushed - len(self._held)
        return Parted(reasoning, self._content() if self._place is _Place.CONTENT else "")

    def searched(self, text: str, is_last: bool = False) -> str:
        """Does as `push`, and as `finish` with the last text. Returns what is decided now: content as it is, HIDDEN for
        each other character. What follows a first character of content is content, and not read."""
        if self.is_content:
            return text
        self.push(text)
        if is_last:
            self.finish()
        self._untold.append(text)
        if self.is_undecided:
            return ""
        text = "".join(self._untold)
        self._untold.clear()
        start = self._pushed if self.content_at is None else self.content_at
        hidden = max(0, start - (self._pushed - len(text)))
        return HIDDEN * hidden + text[hidden:]

    def finish(self, is_cut: bool = False) -> Parted:
        """Returns the rest. What only began as a mark is text; where a limit has cut the answer it is none."""
        self._join()
        opening, closing = self._form.opening, self._form.closing
        if self._place is _Place.BEGINNING:
            self._place, self.content_at = _Place.CONTENT, 0
            if is_cut and self._held.strip() and opening.startswith(self._held.strip()):
                self._held = ""
        part = begun(self._held, closing)
        if is_cut and (part > 1 or self._place is _Place.REASONING):  # content may well end with "<"
            self._held = self._held[: len(self._held) - part]
        if self._place is _Place.REASONING:
            return Parted(reasoning=self._taken().rstrip())
        return Parted(content=self._content(is_last=True))

    def _join(self, text: str = "") -> None:
        self._held = "".join((self._held, *self._blanks, text))
        self._blanks.clear()

    def _content(self, is_last: bool = False) -> str:
        """Content, without a closing mark at a line's end that nothing has opened."""
        closing = self._form.closing
        if self._is_closed or self._has_lone:
            return self._taken()
        text, mark, behind = self._held.partition(closing)
        if mark and (behind or is_last):
            self._held, self._has_lone = "", True
            return text + ("" if behind[:1] in ("", "\n") else mark) + behind
        held = mark or ("" if is_last else text[len(text) - begun(text, closing) :])
        self._held = held
        return text if mark else text[: len(text) - len(held)]

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
            while self._form.opening.startswith(self._held[: len(self._form.opening)]):
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
