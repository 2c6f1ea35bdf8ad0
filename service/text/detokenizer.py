"""The detokenizer gives the text of one answer as its tokens arrive: whole characters, and no part of a stop string.

    given out ──────────────┤ held ├──── not certain ────
    text                      a suffix that is a proper    bytes of an unfinished
                              prefix of a stop string      character (the stream's)

It knows a tokenizer's text stream. It knows no sampling, no engine and no wire format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from service.text.streams import TextStream

NO_CONTROLS: Final[Mapping[int, str]] = MappingProxyType({})
HIDDEN: Final = "\ud800"
"""Stands for a character that belongs to no stop string: half of a surrogate pair is in no request."""


class Streams(Protocol):
    """A tokenizer as a detokenizer needs it."""

    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream: ...


class Boundary(Protocol):
    """Tells the content of an answer, in which stop strings are searched, from all other text."""

    @property
    def is_content(self) -> bool:
        """Whether text that comes now is content."""
        ...

    @property
    def is_undecided(self) -> bool:
        """Whether text that came already may be content."""
        ...

    def searched(self, text: str, is_last: bool = False) -> str:
        """Takes more text. Returns what is decided now: content as it is, HIDDEN for each other character."""
        ...


class Detokenizer:
    """Makes one answer's text. Without stop strings, all pushes and `finish` join to `tokenizer.decode(all ids)`. If a
    limit cuts through a character, the text ends before that character.

    The stop string that is completed first wins, however the tokens cut the text. Of two completed by the same
    character the longer one wins. Completions by the first `ignore_stop_until` tokens do not count (`min_new_tokens`).
    """

    def __init__(
        self,
        tokenizer: Streams,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        ignore_stop_until: int = 0,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        boundary: Boundary | None = None,
        inside: bool = False,
        controls: Mapping[int, str] = NO_CONTROLS,
    ) -> None:
        """The control tokens `shown` have a text, whatever `skip_special_tokens` says. `boundary` tells where stop
        strings are searched; without one they are searched in all text. `inside`: the answer goes on from a text.
        `controls` are the stop strings that are a control token's text: a token without a text completes its own."""
        self._stream = tokenizer.text_stream(skip_special_tokens, shown, inside)
        self._stop = tuple(text for text in stop if text)
        self._longest = max(map(len, self._stop), default=0)
        hidden = controls if skip_special_tokens else NO_CONTROLS
        self._controls = {id: text for id, text in hidden.items() if id not in shown}
        self._include_stop = include_stop
        self._ignored = ignore_stop_until
        self._held = ""
        self._searched = ""  # held as far as it is decided, HIDDEN where it is no content
        self._floor = 0  # matches that end in held[:floor] were completed by ignored tokens
        self._boundary = boundary
        self._emitted: list[str] = []
        self._emitted_length = 0
        self._finished = False
        self.stop_string: str | None = None
        """The stop string that was completed. No text is given out after it."""

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._emitted)

    @property
    def whole(self) -> int:
        """The number of known characters, including held ones."""
        return self._emitted_length + len(self._held)

    @property
    def begun(self) -> int:
        """As `whole`, plus the characters that the tokens so far have only begun."""
        return self.whole + self._stream.begun()

    def push(self, token_id: int) -> str:
        """Returns the text that this token makes certain; it may be empty."""
        if self.stopped:
            return ""
        self._take(self._stream.push(token_id))
        is_ignored = self._ignored > 0
        self._ignored -= is_ignored
        control = None if is_ignored else self._controls.get(token_id)
        is_content = self._boundary is None or self._boundary.is_content
        if control is not None and (is_content or (self._boundary is not None and self._boundary.is_undecided)):
            return self._end_at(control)
        if not self._stop:
            return self._give(len(self._held))
        if is_ignored:
            if not self._ignored:
                self._floor = len(self._held) + len(self._stream.peek())
        elif self._cut(self._ahead() if is_content else ""):
            return self._give(len(self._held))
        return self._give(self._certain())

    def _take(self, text: str, is_last: bool = False) -> None:
        self._held += text
        self._searched += text if self._boundary is None else self._boundary.searched(text, is_last)

    def _ahead(self) -> str:
        """Returns the text that is certain only if no token follows; "" where no stop string ends in it."""
        newest = self._stream.newest(self._longest)
        if newest is not None and not any(stop in newest for stop in self._stop):
            return ""
        return self._stream.peek()

    def _end_at(self, control: str) -> str:
        """Stops before a control token, unless the text that it makes certain holds a stop string."""
        rest = self.finish()
        if not self.stopped:
            self.stop_string = control
            if self._include_stop:
                self._held = control
                rest += self._give(len(control))
        return rest

    def finish(self) -> str:
        """Returns the held rest; a stop string in it still cuts. Later calls return an empty text."""
        if self.stopped or self._finished:
            return ""
        self._finished = True
        self._take(self._stream.finish(), is_last=True)
        if not self._ignored:
            self._cut()
        return self._give(len(self._held))

    def _cut(self, ahead: str = "") -> bool:
        """Stops if the held text, with `ahead` behind it, has a stop string; then `held` keeps only text that may be
        given out."""
        searched = self._searched + ahead
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._find(searched, stop)) >= 0]
        if not ends:
            return False
        end, start = min(ends)
        self._held = (self._held + ahead)[: end if self._include_stop else start]
        self.stop_string = searched[start:end]
        return True

    def _find(self, text: str, stop: str) -> int:
        return text.find(stop, max(0, self._floor - len(stop) + 1))

    def _certain(self) -> int:
        """Returns the length of the decided text without its longest suffix that is a proper prefix of a stop
        string."""
        searched = self._searched
        for start in range(max(0, len(searched) - self._longest + 1), len(searched)):
            if any(stop.startswith(searched[start:]) for stop in self._stop):
                return start
        return len(searched)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._searched, self._floor = self._searched[length:], max(0, self._floor - length)
        if text:
            self._emitted.append(text)
            self._emitted_length += len(text)
        return text
