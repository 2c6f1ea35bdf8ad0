"""Guarded holds back the deltas of one sequence until it is certain which text of each token may go out.

    tokens     [ call] [ 010] [-12] [34-56] [78] [ now]
    text        ████   ├──── a phone number ────┤
    deltas      sent   held ················ ▶ " [phone]", "", "", "" with stand-ins for ids

A token's id would give its text away, and so would its alternatives: a hidden token loses both. Guarded knows the
text's positions; no tokenizer and no HTTP.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from service.engine.protocol.messages import FinishReason
from service.generation.guard import Finding, Watch
from service.generation.token_delta import Token, TokenDelta


@dataclass(frozen=True, slots=True)
class _Held:
    """One held step: the token, or None at an end without one; the position in the text up to which it is certain; and
    the held characters that the token has a part of, which may reach further."""

    index: int
    token: Token | None
    end: int
    start: int
    stop: int


class Guarded:
    """Guarded filters one sequence. `stand_in` is the id that replaces a hidden token's id. A guard that only flags
    holds nothing back."""

    def __init__(self, watch: Watch, stand_in: int) -> None:
        self._watch = watch
        self._stand_in = stand_in
        self._held: deque[_Held] = deque()
        self._fed = 0
        self._index = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self._watch.findings

    def add(
        self, token: Token | None, text: str, span: tuple[int, int], reason: FinishReason | None
    ) -> list[TokenDelta]:
        """Returns the deltas that are certain now, in order. At an end all are certain; CONTENT_FILTER is an end that
        the guard causes."""
        self._watch.feed(text)
        self._fed += len(text)
        self._held.append(_Held(self._index, token, self._fed, *span))
        self._index += token is not None
        if reason is not None:
            self._watch.end()
        if self._watch.stopped:
            reason = FinishReason.CONTENT_FILTER
        deltas = [self._delta(self._held.popleft()) for _ in range(self._certain())]
        if reason is not None:
            deltas[-1] = replace(deltas[-1], finish_reason=reason)
        return deltas

    def _certain(self) -> int:
        """Returns how many of the first held deltas can go out."""
        if not self._watch.holds:
            return len(self._held)
        shown = self._watch.shown
        return next((n for n, each in enumerate(self._held) if max(each.end, each.stop) > shown), len(self._held))

    def _delta(self, held: _Held) -> TokenDelta:
        text = self._watch.take(held.end)
        token = held.token
        if token is not None:
            if held.start < held.stop and self._watch.hides(held.start, held.stop):
                token = Token(self._stand_in, text, token.logprob, special=True)
            elif text != token.text:
                token = replace(token, text=text)
        return TokenDelta(held.index, token, text)
