"""Harmony is how gpt-oss writes: messages in channels, the first of which the prompt has begun.

    <|channel|>analysis<|message|>It asks …<|end|><|start|>assistant<|channel|>final<|message|>Hello
    … <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}<|call|>

`analysis` is reasoning: the answer's first one is read by `service.text.reasoning`, later ones here. A message to a
function is its call, all others are content. The marks and headers belong to none. A newline parts the texts of two
messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import Final

from service.text.detokenizer import HIDDEN, Boundary
from service.text.tools.form import ToolFormat
from service.text.tools.pieces import Content, Thought
from service.text.tools.reading import CallReader

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS: Final = (_START, _CHANNEL, "<|end|>", "<|call|>", "<|return|>")
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([\w.:-]+)")


class ChannelReader(CallReader):
    """Reads one answer in channels."""

    _has_content = False
    _begins = True  # no text of the message that is read has gone out

    def give(self, text: str) -> None:
        if text:
            self._pieces.append(Content(f"\n{text}" if self._begins and self._has_content else text))
            self._begins, self._has_content = False, True

    def _think(self, text: str) -> None:
        self._pieces.append(Thought(text, begins=self._begins))
        self._begins = False

    def _read(self) -> Generator[None, None, None]:
        source = self.source
        yield from source.blanks()
        mark = _START if (yield from source.starts("to=")) else ""
        while not (source.is_ended and not source.held):
            self._begins = True
            if mark in (_START, _CHANNEL):
                mark = yield from self._message(mark)
            else:
                mark = yield from self._up_to_mark(self.give)

    def _message(self, mark: str) -> Generator[None, None, str]:
        """A header, and what it says of the text behind it. Returns the next mark where the text is read; else ""."""
        header = yield from self.source.until(_MESSAGE)
        if header is None:
            return ""
        recipient = _RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        yield from self.source.blanks()
        if name in self._schemas and (yield from self.source.peek()) == "{":
            self.begin(name)
            yield from self.arguments()
            yield from self.source.blanks()
        elif "analysis" in f"{mark}{header}".rpartition(_CHANNEL)[2] and not name:
            return (yield from self._up_to_mark(self._think))
        return ""

    def _up_to_mark(self, sink: Callable[[str], None]) -> Generator[None, None, str]:
        """Gives the text up to the next mark, which is taken. Returns the mark; "" at the end."""
        source = self.source
        while True:
            at, mark = source.first_of(_ENDS)
            if text := source.take(at if mark or source.is_cut or not source.is_ended else None):
                sink(text)
            if mark:
                return source.take(len(mark))
            if source.is_ended:
                source.take()
                return ""
            yield


class ChannelBoundary(ChannelReader):
    """Tells the texts of messages from marks, headers and reasoning, for stop strings: the first are content, a call's
    arguments too."""

    def __init__(self, form: ToolFormat, reasoning: Boundary | None) -> None:
        """`reasoning` tells the reasoning that the answer begins with."""
        self._reasoning = reasoning
        self._pushed = 0
        self._parts: list[str] = []
        self._told = 0  # characters in all parts so far
        self._is_text = False
        super().__init__(form, {})

    @property
    def is_content(self) -> bool:
        return (self._reasoning is None or self._reasoning.is_content) and self._is_text and not self.source.held

    @property
    def is_undecided(self) -> bool:
        return bool(self.source.held) or (self._reasoning is not None and self._reasoning.is_undecided)

    def searched(self, text: str, is_last: bool = False) -> str:
        if self._reasoning is not None:
            text = self._reasoning.searched(text, is_last)
        content = text.lstrip(HIDDEN)
        self._pushed += len(content)
        self.push(content)
        if is_last:
            self.finish()
        self._tell("")
        parts, self._parts = self._parts, []
        return HIDDEN * (len(text) - len(content)) + "".join(parts)

    def give(self, text: str) -> None:
        self._tell(text)

    def _think(self, text: str) -> None: ...

    def _up_to_mark(self, sink: Callable[[str], None]) -> Generator[None, None, str]:
        self._is_text = sink == self.give
        mark = yield from super()._up_to_mark(sink)
        self._is_text = False
        return mark

    def _tell(self, text: str) -> None:
        """Content was taken: what was taken before it and is not told is none."""
        taken = self._pushed - len(self.source.held)
        self._parts += (HIDDEN * (taken - len(text) - self._told), text)
        self._told = taken
