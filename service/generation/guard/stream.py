"""A text filter guards one answer's text as it comes: what is certain goes out, masked where a rule says so.

    text      … ask │ 010-1234-56          nothing before │ can become part of a match: it is shown
                    held: until it is a phone number, or cannot be one

    output    the text up to the first match to stop at; every stretch covered by overlapping matches to mask is the
              label of the one that begins first

The whole output depends on the text alone, never on how it was cut. The module knows positions in the text; no tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from service.generation.guard.escapes import Escapes
from service.generation.guard.patterns import plain
from service.generation.guard.rules import Action, Finding, Rule, Scanner

END: Final = (1 << 63) - 1
CONTEXT: Final = 2
"""The number of characters that scanners look back."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Output for the text from `start` to `end`; a label stands at one position."""

    start: int
    end: int
    text: str


class Guard:
    """The rules of a server, compiled. For each rule a function makes the scanner of one sequence."""

    def __init__(self, rules: Sequence[tuple[Rule, Callable[[], Scanner]]]) -> None:
        self._rules = tuple(rules)
        self.holds = any(rule.action is not Action.FLAG for rule, _ in rules)
        """False where every rule only flags: nothing is ever late or changed."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(rule for rule, _ in self._rules)

    def text_filter(self) -> TextFilter:
        return TextFilter([(rule, scanner()) for rule, scanner in self._rules])


class TextFilter:
    """One sequence's text. `holds` is the guard's. `shown`: everything before this position is decided. `stopped`: a
    match ended the text; later text is ignored."""

    def __init__(self, scanners: Sequence[tuple[Rule, Scanner]]) -> None:
        self._rules = [rule for rule, _ in scanners]
        self._scanners = [scanner for _, scanner in scanners]
        self._holding = [scanner for rule, scanner in scanners if rule.action is not Action.FLAG]
        self._flagging = [scanner for rule, scanner in scanners if rule.action is Action.FLAG]
        self._text = self._plain = ""
        self._escapes = Escapes()
        self._at = 0  # position of the first character in `_text`
        self._length = 0
        self._rendered = self._covered = 0
        self._marks: list[tuple[int, bool, int, int]] = []  # start, no stop, rule's number, end
        self._flags: list[tuple[int, int, int]] = []
        self._segments: deque[_Segment] = deque()
        self._counts = [0] * len(scanners)
        self._last = [0] * len(scanners)
        self._hidden: list[tuple[int, int]] = []
        self.holds = bool(self._holding)
        self.stopped = False
        self._finished = False

    @property
    def shown(self) -> int:
        return END if self._finished else max(self._rendered, self._covered)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Returns the findings so far, in the decided text."""
        found = zip(self._rules, self._counts, strict=True)
        return tuple(Finding(rule.name, rule.action, count) for rule, count in found if count)

    def hides(self, start: int, end: int) -> bool:
        """Returns whether any of these positions was masked, or lies behind the end."""
        for begin, stop in reversed(self._hidden):
            if stop <= start:
                return False
            if begin < end:
                return True
        return False

    def push(self, text: str) -> str:
        """Adds text, and returns the output that is now certain; it may be empty."""
        self.feed(text)
        return self.take(self.shown)

    def finish(self) -> str:
        """Returns the rest. No text may follow."""
        self.end()
        return self.take(END)

    def feed(self, text: str) -> None:
        """Does as `push`, but leaves the output for `take`."""
        if text and not self._finished:
            self._advance(text, final=False)

    def end(self) -> None:
        """Does as `finish`, but leaves the output for `take`."""
        if not self._finished:
            self._advance("", final=True)
            self._finished = True

    def take(self, end: int) -> str:
        """Returns the output for all positions before `end` that was not taken yet; a label goes with its first
        position."""
        parts = []
        while self._segments and self._segments[0].start < end:
            segment = self._segments.popleft()
            if segment.end > end:
                cut = end - segment.start
                self._segments.appendleft(_Segment(end, segment.end, segment.text[cut:]))
                segment = _Segment(segment.start, end, segment.text[:cut])
            parts.append(segment.text)
        return "".join(parts)

    def _advance(self, text: str, final: bool) -> None:
        new = len(self._text)
        self._text += text
        self._plain += plain(self._escapes.read(text))
        self._length += len(text)
        for number, scanner in enumerate(self._scanners):
            for start, end in scanner.scan(self._plain, self._at, new, final):
                rule = self._rules[number]
                if rule.action is Action.FLAG:
                    heappush(self._flags, (start, number, end))
                else:
                    heappush(self._marks, (start, rule.action is not Action.STOP, number, end))
        certain, flagged = _first_open(self._holding, self._length), _first_open(self._flagging, self._length)
        self._decide(certain, flagged)
        self._forget(min(certain, flagged))

    def _decide(self, certain: int, flagged: int) -> None:
        """Renders up to `certain`, or to the first match to stop at. A stop does not wait for possible flags right
        before it; so the number of those flags, and nothing else, may depend on how the text was cut."""
        while self._marks and self._marks[0][0] < certain:
            start, masked, number, end = heappop(self._marks)
            self._render(start)
            if not masked:
                self._stop(start, end, number)
                return
            self._mask(start, end, number)
        self._render(certain)
        self._count_flags(min(flagged, certain))

    def _mask(self, start: int, end: int, number: int) -> None:
        self._count(number, start, end)
        if start >= self._covered:
            self._segments.append(_Segment(start, start, self._rules[number].label))
            self._hidden.append((start, end))
            self._covered = end
        elif end > self._covered:
            self._hidden[-1] = (self._hidden[-1][0], end)
            self._covered = end

    def _stop(self, start: int, end: int, number: int) -> None:
        self._count(number, start, end)
        self._count_flags(start)
        self._hidden.append((start, END))
        self.stopped = self._finished = True

    def _render(self, end: int) -> None:
        """Renders the text up to `end` as it is, except what is covered."""
        start = max(self._rendered, self._covered)
        if end > start:
            self._segments.append(_Segment(start, end, self._text[start - self._at : end - self._at]))
        self._rendered = max(self._rendered, end)

    def _count_flags(self, before: int) -> None:
        while self._flags and self._flags[0][0] < before:
            start, number, end = heappop(self._flags)
            self._count(number, start, end)

    def _count(self, number: int, start: int, end: int) -> None:
        self._counts[number] += start >= self._last[number]
        self._last[number] = max(self._last[number], end)

    def _forget(self, certain: int) -> None:
        """Drops the text that is decided and rendered, except the characters that scanners look back at."""
        needed = min(certain, self._rendered) - CONTEXT
        if needed > self._at:
            self._text, self._plain = self._text[needed - self._at :], self._plain[needed - self._at :]
            self._at = needed


def _first_open(scanners: Sequence[Scanner], otherwise: int) -> int:
    return min([scanner.certain for scanner in scanners], default=otherwise)
