"""Turnover says how soon a full batch has a free seat, by what answers were seen to take. Times are seconds.

An answer takes its own part of each of its steps: the seconds past the step's constant, divided by tokens. So it counts
the same whether the batch filled, was full or drained while it ran.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Final, Protocol

from service.engine.sequences.batch import Scheduled

_KEPT: Final = 0.98  # of what is known of answers, when one more ends: the last fifty count


class Answer(Protocol):
    """What an answer has taken so far: steps, and its own part of their seconds."""

    num_steps: int
    own_seconds: float


class Turnover:
    """Sums over answers: `ends` of them took `steps` steps and, past the steps' constants, `seconds`. Old answers are
    forgotten exponentially."""

    def __init__(self) -> None:
        self._ends = self._steps = self._seconds = 0.0

    def charge(self, scheduled: SequenceOf[Scheduled], seconds: float, constant: float) -> None:
        """Divides a step's `seconds`, of which `constant` do not depend on its tokens, among its sequences."""
        share = max(0.0, seconds - constant) / max(1, sum([item.num_tokens for item in scheduled]))
        for item in scheduled:
            item.sequence.own_seconds += share * item.num_tokens

    def end(self, answer: Answer) -> None:
        """Learns what an answer took that ends. One that never ran says nothing."""
        if answer.num_steps:
            self._ends = _KEPT * self._ends + 1
            self._steps = _KEPT * self._steps + answer.num_steps
            self._seconds = _KEPT * self._seconds + answer.own_seconds

    def seat_seconds(self, seats: int, constant: float, running: Iterable[Answer]) -> float:
        """Forecasts the seconds between two ends in a full batch of `seats`; 0 before an answer has ended.

        An answer of `s` steps takes s · constant / seats of the constants, which its steps share with the others', and
        all of its own seconds. So answers that came alone say how long a crowd of them takes. It is not less than if
        all that are `running` ended now: so it is known that answers become longer before they end.
        """
        if not self._ends:
            return 0.0
        ends, steps, seconds = self._ends, self._steps, self._seconds
        constant /= max(1, seats)
        seen = (constant * steps + seconds) / ends
        for each in running:
            ends, steps, seconds = ends + 1, steps + each.num_steps, seconds + each.own_seconds
        return max(seen, (constant * steps + seconds) / ends)
