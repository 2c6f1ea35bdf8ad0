"""Recalling decides which of the turns that were left out come back: those that match the question best, while they
fit. It knows scores and numbers of tokens; no texts and no template.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.context import retrieval


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided of one turn: its `score`, of which more than `enough` is needed, and its `tokens`, for which
    there was `room`. `rank` counts from 1, the best score."""

    turn: int
    rank: int
    score: float
    enough: float
    tokens: int
    room: int

    @property
    def matches(self) -> bool:
        return self.score > self.enough

    @property
    def comes_back(self) -> bool:
        return self.matches and self.tokens <= self.room


@dataclass(frozen=True, slots=True)
class Recall:
    """The turns that were left out, with their scores and tokens; `room` is what they may take together."""

    turns: Sequence[int] = ()
    scores: Sequence[float] = ()
    tokens: Sequence[int] = ()
    room: int = 0

    def verdicts(self) -> Iterator[Verdict]:
        """Yields one verdict for each turn, the best score first. A turn that comes back takes its room from the
        next ones."""
        enough, room = retrieval.ENOUGH * max(self.scores, default=0.0), self.room
        for rank, at in enumerate(retrieval.ranked(self.scores), 1):
            verdict = Verdict(self.turns[at], rank, self.scores[at], enough, self.tokens[at], room)
            room -= verdict.tokens if verdict.comes_back else 0
            yield verdict

    @property
    def chosen(self) -> tuple[int, ...]:
        """Returns the turns that come back, in their order."""
        return tuple(sorted(verdict.turn for verdict in self.verdicts() if verdict.comes_back))
