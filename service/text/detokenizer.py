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


class Streams(Protocol):
    """A tokenizer as a detokenizer needs it."""

    def text_stream(
        self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset(), inside: bool = False
    ) -> TextStream: ...


class Boundary(Protocol):
    """Finds where the content of an answer begins, behind a part that stop strings do not end."""

    content_at: int | None
    """How many of the pushed characters stand before the content; None as long as there is none."""

    @property
    def is_undecided(self) -> bool:
        """Whether the text so far may be content."""
        ...

    def push(self, text: str) -> object: ...

    def finish(self) -> object: ...


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
        """The control tokens `shown` have a text, whatever `skip_special_tokens` says. Stop strings begin behind
        `boundary`. `inside`: the answer goes on from a text. `controls` are the stop strings that are a control token's
        text: a token without a text completes its own."""
        self._stream = tokenizer.text_stream(skip_special_tokens, shown, inside)
        self._stop = tuple(text for text in stop if text)
        hidden = controls if skip_special_tokens else NO_CONTROLS
        self._controls = {id: text for id, text in hidden.items() if id not in shown}
        self._include_stop = include_stop
        self._ignored = ignore_stop_until
        self._held = ""
        self._floor = 0  # matches that end in held[:floor] were completed by ignored tokens
        self._boundary = boundary
        self._start = 0  # of the content, in held
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
        added = self._stream.push(token_id)
        self._held += added
        is_ignored = self._ignored > 0
        self._ignored -= is_ignored
        control = None if is_ignored else self._controls.get(token_id)
        if self._boundary is not None and not self._passes(self._boundary, added):
            if control is not None and self._boundary.is_undecided:
                return self._end_at(control)
            return self._give(0 if self._boundary.is_undecided and self._stop else len(self._held))
        if control is not None:
            return self._end_at(control)
        if not self._stop:
            return self._give(len(self._held))
        if is_ignored:
            self._floor = len(self._held) + len(self._stream.peek())
            return self._give(self._certain())
        return self._push_or_stop(self._held + self._stream.peek())

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
        added = self._stream.finish()
        self._held += added
        if self._boundary is None or self._passes(self._boundary, added, is_last=True):
            self._cut(self._held)
        return self._give(len(self._held))

    def _passes(self, boundary: Boundary, added: str, is_last: bool = False) -> bool:
        """Whether the content has begun."""
        if boundary.content_at is None:
            boundary.push(added)
            if is_last:
                boundary.finish()
            if boundary.content_at is not None:
                self._start = max(0, boundary.content_at - self._emitted_length)
        return boundary.content_at is not None

    def _push_or_stop(self, ahead: str) -> str:
        if self._cut(ahead):
            return self._give(len(self._held))
        return self._give(self._certain())

    def _cut(self, ahead: str) -> bool:
        """Stops if `ahead` completes a stop string; then `held` keeps only text that may be given out."""
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._find(ahead, stop)) >= 0]
        if not ends:
            return False
        end, start = min(ends)
        self._held = ahead[: end if self._include_stop else start]
        self.stop_string = ahead[start:end]
        return True

    def _find(self, text: str, stop: str) -> int:
        return text.find(stop, max(self._start, self._floor - len(stop) + 1))

    def _certain(self) -> int:
        """Returns the length of `held` without its longest suffix that is a proper prefix of a stop string."""
        first = len(self._held) - max(map(len, self._stop)) + 1
        for start in range(max(self._start, first), len(self._held)):
            if any(stop.startswith(self._held[start:]) for stop in self._stop):
                return start
        return len(self._held)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._floor, self._start = max(0, self._floor - length), max(0, self._start - length)
        if text:
            self._emitted.append(text)
            self._emitted_length += len(text)
        return text
