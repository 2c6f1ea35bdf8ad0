"""The detokenizer gives the text of one answer as its tokens arrive: whole characters, and no part of a stop string.

    given out ──────────────┤ held ├──── not certain ────
    text                      a suffix that is a proper    bytes of an unfinished
                              prefix of a stop string      character (the stream's)

It knows a tokenizer's text stream. It knows no sampling, no engine and no wire format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.text.streams import TextStream


class Streams(Protocol):
    """A tokenizer as a detokenizer needs it."""

    def text_stream(self, skip_special_tokens: bool = True, shown: frozenset[int] = frozenset()) -> TextStream: ...


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
    ) -> None:
        """The control tokens `shown` have a text, whatever `skip_special_tokens` says."""
        self._stream = tokenizer.text_stream(skip_special_tokens, shown)
        self._stop = tuple(text for text in stop if text)
        self._include_stop = include_stop
        self._ignored = ignore_stop_until
        self._held = ""
        self._floor = 0  # matches that end in held[:floor] were completed by ignored tokens
        self._given: list[str] = []
        self._given_length = 0
        self._finished = False
        self.stop_string: str | None = None
        """The stop string that was completed. No text is given out after it."""

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    @property
    def text(self) -> str:
        """All text given out so far."""
        return "".join(self._given)

    @property
    def whole(self) -> int:
        """The number of known characters, including held ones."""
        return self._given_length + len(self._held)

    @property
    def begun(self) -> int:
        """As `whole`, plus the characters that the tokens so far have only begun."""
        return self.whole + self._stream.begun()

    def push(self, token_id: int) -> str:
        """Returns the text that this token makes certain; it may be empty."""
        if self.stopped:
            return ""
        self._held += self._stream.push(token_id)
        if not self._stop:
            return self._give(len(self._held))
        if self._ignored > 0:
            self._ignored -= 1
            self._floor = len(self._held) + len(self._stream.peek())
            return self._give(self._certain())
        return self._push_or_stop(self._held + self._stream.peek())

    def finish(self) -> str:
        """Returns the held rest; a stop string in it still cuts. Later calls return an empty text."""
        if self.stopped or self._finished:
            return ""
        self._finished = True
        self._held += self._stream.finish()
        self._cut(self._held)
        return self._give(len(self._held))

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
        return text.find(stop, max(0, self._floor - len(stop) + 1))

    def _certain(self) -> int:
        """Returns the length of `held` without its longest suffix that is a proper prefix of a stop string."""
        for start in range(max(0, len(self._held) - max(map(len, self._stop)) + 1), len(self._held)):
            if any(stop.startswith(self._held[start:]) for stop in self._stop):
                return start
        return len(self._held)

    def _give(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        self._floor = max(0, self._floor - length)
        if text:
            self._given.append(text)
            self._given_length += len(text)
        return text
