"""The text of one answer, as its tokens arrive: whole characters only, and nothing that may still become a stop string.

    given out ──────────────┤ held ├──── not certain ────
    text                      a suffix that is a proper    bytes of an unfinished
                              prefix of a stop string      character (the stream's)

Knows a tokenizer's text stream; no sampling, no engine, no wire format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.text.streams import TextStream


class Streams(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def text_stream(self, skip_special_tokens: bool = True) -> TextStream: ...


class Detokenizer:
    """One answer's text. Without stop strings, all pushes and `finish` join to `tokenizer.decode(all ids)`, but for a
    character that a limit cut through: the text ends before it.

    The stop string that is completed first wins, whichever way the tokens cut the text; of two completed by the same
    character the longer one. Completions by the first `ignore_stop_until` tokens do not count (`min_new_tokens`).
    """

    def __init__(
        self,
        tokenizer: Streams,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        ignore_stop_until: int = 0,
        skip_special_tokens: bool = True,
    ) -> None:
        self._stream = tokenizer.text_stream(skip_special_tokens)
        self._stop = tuple(text for text in stop if text)
        self._include_stop = include_stop
        self._ignored = ignore_stop_until
        self._held = ""
        self._floor = 0  # matches that end in held[:floor] were completed by ignored tokens
        self._given: list[str] = []
        self._given_length = 0
        self._finished = False
        self.stopped = False
        """True once a stop string was completed; nothing is given out after it."""

    @property
    def text(self) -> str:
        """Everything given out so far."""
        return "".join(self._given)

    @property
    def whole(self) -> int:
        """Characters of the text that are known, those held back too."""
        return self._given_length + len(self._held)

    @property
    def begun(self) -> int:
        """As `whole`, with those that the tokens so far have only begun."""
        return self.whole + self._stream.begun()

    def push(self, token_id: int) -> str:
        """The text that this token makes certain; may be empty."""
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
        """The held-back rest; a stop string in it still cuts. Later calls give an empty text."""
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
        """If `ahead` completes a stop string, leave in `held` what may be given out of it, and stop."""
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._find(ahead, stop)) >= 0]
        if not ends:
            return False
        end, start = min(ends)
        self._held = ahead[: end if self._include_stop else start]
        self.stopped = True
        return True

    def _find(self, text: str, stop: str) -> int:
        return text.find(stop, max(0, self._floor - len(stop) + 1))

    def _certain(self) -> int:
        """Length of `held` without its longest suffix that is a proper prefix of a stop string."""
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
