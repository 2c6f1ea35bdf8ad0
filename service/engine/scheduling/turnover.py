"""What answers were seen to take, and so how soon a full batch has a free seat. Arithmetic on numbers; times are
seconds."""

from __future__ import annotations

from typing import Final, NamedTuple

_KEPT: Final = 0.98  # of what is known of answers, when one more ends: the last fifty count


class _Work(NamedTuple):
    """Sums over steps: how many there were, their rows, and their seconds."""

    steps: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0

    def plus(self, other: _Work, kept: float = 1.0, share: float = 1.0) -> _Work:
        """Returns `kept` of this and `share` of the other."""
        return _Work(*(kept * mine + share * its for mine, its in zip(self, other, strict=True)))

    def each(self, ends: float, seats: int, constant: float) -> float:
        """Returns the seconds of one of the `ends` that this work led to, in a batch of `seats`."""
        own = max(0.0, self.seconds - constant * self.steps)
        return (constant * self.rows / max(1, seats) + own) / ends


class Turnover:
    """Forgets old answers exponentially, end by end. Answers that end in one step share the steps that led to it."""

    def __init__(self) -> None:
        self._ended = _Work()
        self._ends = 0.0
        self._since = _Work()
        """The work since the last end."""
        self._running = 0

    def observe(self, seconds: float, rows: int, ends: int) -> None:
        """Learns that one step of `rows` sequences took `seconds`, and that `ends` of them ended with it."""
        self._since, self._running = self._since.plus(_Work(1, rows, seconds)), rows - ends
        if ends:
            kept = _KEPT**ends
            counted = (1 - kept) / (1 - _KEPT)
            self._ended = self._ended.plus(self._since, kept, counted / ends)
            self._ends = kept * self._ends + counted
            self._since = _Work()

    def seat_seconds(self, seats: int, constant: float) -> float:
        """Forecasts the seconds between two ends in a full batch of `seats`; 0 before an answer has ended. `constant`
        is the seconds of a step that do not depend on its rows.

        An answer of `s` steps takes s · constant / seats of the constants, which its steps share with the others', and
        all of what it adds to them. So answers that came alone say how long a crowd of them takes. It is not less than
        if all that run now ended with the next step: so answers that become longer are known before they end.
        """
        if not self._ends:
            return 0.0
        seen = self._ended.each(self._ends, seats, constant)
        return max(seen, self._ended.plus(self._since).each(self._ends + self._running, seats, constant))
