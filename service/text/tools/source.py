"""A source is a text that grows, read once from its beginning. Its readers are generators: each waits with `yield` for
more text. So a grammar is written in its order, and a text costs the same however it is cut. It knows no formats."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import Final

from service.text.reasoning import begun
from service.text.tools.scanning import ObjectScan, string_end

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
        text, found = yield from self.up_to((mark,))
        self.take(len(found))
        return text if found else None

    def up_to(self, marks: Collection[str]) -> Generator[None, None, tuple[str, str]]:
        """Takes all before the first of these marks. Returns it, and the mark; "" where none comes."""
        parts: list[str] = []
        while True:
            at, mark = self.first_of(marks)
            parts.append(self.take(at if mark or not self.is_ended else None))
            if mark or self.is_ended:
                return "".join(parts), mark
            yield

    def first_of(self, marks: Collection[str]) -> tuple[int, str]:
        """Returns where the first of these marks begins in the text that is here, and the mark; else where one may have
        begun, and ""."""
        found = [(at, mark) for mark in marks if (at := self.held.find(mark)) >= 0]
        if found:
            return min(found, key=lambda each: each[0])
        return len(self.held) - max((begun(self.held, mark) for mark in marks), default=0), ""

    def scanned(self, scan: ObjectScan, sink: Callable[[str], object]) -> Generator[None, None, None]:
        """Takes a value as it comes, up to its end or the text's."""
        while not scan.is_ended:
            size, text = scan.feed(self.held)
            self.take(size)
            sink(text)
            if not scan.is_ended:
                if self.is_ended:
                    return
                yield

    def string(self) -> WaitingText:
        """Takes a JSON string with its quotes."""
        parts, is_escaped = [self.take(1)], False
        while True:
            end, is_escaped = string_end(self.held, is_escaped)
            parts.append(self.take(end))
            if end is not None or self.is_ended:
                return "".join(parts)
            yield

    def value(self, quotes: str = '"') -> WaitingText:
        """Takes a value: a string, what stands in brackets, or a word. `quotes` begin a text in brackets."""
        parts = list[str]()
        first = yield from self.peek()
        if first == '"':
            return (yield from self.string())
        yield from self.scanned(ObjectScan(quotes, is_word=first not in "{["), parts.append)
        return "".join(parts).strip()
