"""A source is a text that grows, read once from its beginning. Its readers are generators: each waits with `yield` for
more text. So a grammar is written in its order, and a text costs the same however it is cut. It knows no formats."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Final

from service.text.reasoning import begun

Waiting = Generator[None, None, bool]
WaitingText = Generator[None, None, str]
BLANKS: Final = " \t\r\n"


class Source:
    """What was taken since `record` can be given back as text."""

    def __init__(self) -> None:
        self.held = ""
        self.is_ended = False
        self.is_cut = False
        """Whether a limit has cut the text: what only begins a mark at its end is none."""
        self._taken: list[str] = []

    def add(self, text: str) -> None:
        self.held += text

    def record(self, text: str = "") -> None:
        """Forgets what was taken, but `text`."""
        self._taken = [text]

    @property
    def recorded(self) -> str:
        return "".join(self._taken)

    def take(self, size: int | None = None) -> str:
        """Takes so many of the characters that are here; without a number all of them."""
        size = len(self.held) if size is None else size
        text, self.held = self.held[:size], self.held[size:]
        self._taken.append(text)
        return text

    def peek(self) -> WaitingText:
        """Returns the next character; "" at the end."""
        while not self.held and not self.is_ended:
            yield
        return self.held[:1]

    def starts(self, mark: str) -> Waiting:
        """Whether the text goes on with a mark. It takes nothing."""
        while len(self.held) < len(mark) and mark.startswith(self.held) and not self.is_ended:
            yield
        return bool(mark) and self.held.startswith(mark)

    def skip(self, mark: str) -> Waiting:
        """Takes a mark where it comes next. Returns whether it did."""
        found = yield from self.starts(mark)
        if found:
            self.take(len(mark))
        return found

    def blanks(self, more: str = "") -> Generator[None, None, None]:
        """Takes blanks, and the characters `more`."""
        while True:
            self.take(len(self.held) - len(self.held.lstrip(BLANKS + more)))
            if self.held or self.is_ended:
                return
            yield

    def until(self, mark: str) -> Generator[None, None, str | None]:
        """Takes all up to a mark, and the mark. Returns the text before it; None where the mark does not come."""
        parts: list[str] = []
        while True:
            at = self.held.find(mark)
            if at >= 0:
                parts.append(self.take(at))
                self.take(len(mark))
                return "".join(parts)
            parts.append(self.take(None if self.is_ended else max(0, len(self.held) - len(mark) + 1)))
            if self.is_ended:
                return None
            yield

    def first_of(self, marks: Collection[str]) -> tuple[int, str]:
        """Returns where the first of these marks begins in the text that is here, and the mark; else where one may have
        begun, and ""."""
        found = [(at, mark) for mark in marks if (at := self.held.find(mark)) >= 0]
        if found:
            return min(found, key=lambda each: each[0])
        return len(self.held) - max((begun(self.held, mark) for mark in marks), default=0), ""
