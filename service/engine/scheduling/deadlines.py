"""Deadlines says which sequences have no time left: their deadline has passed, or their first token cannot come before
it.

    passed      ─▶ ended at the begin of the next step
    hopeless    ─▶ as a newcomer: the forecast of all that is ahead of it and of its prompt is behind the deadline
    too late    ─▶ when its turn comes: the forecast of its prompt alone is behind the deadline

For example, a prompt of 2 s behind a queue of 5 s is hopeless with a `deadline_ms` of 6,000, and waits with 8,000. A
sequence that was preempted has given tokens out: its deadline ends it, and no forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from service.engine.scheduling.background import is_background
from service.engine.scheduling.batching import Backlog, BatchingPolicy
from service.engine.sequences.sequence import Sequence, SequenceStatus

SPARE_ENDS: Final = 1024
"""So many deadlines of sequences that have ended are kept: a deadline may be a day behind its answer."""


class Deadlines:
    """The deadlines of all live sequences. The scheduler calls it."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._ends: list[tuple[float, str]] = []
        self._newcomers: list[Sequence] = []

    def enter(self, sequence: Sequence) -> None:
        """Takes in a sequence. One that has given tokens out, before its engine died, is no newcomer."""
        request = sequence.request
        if request.deadline is not None:
            heappush(self._ends, (request.deadline, request.id))
            if not request.emitted:
                self._newcomers.append(sequence)

    def passed(self, live: Mapping[str, Sequence], now: float) -> Iterator[Sequence]:
        """Yields sequences of `live` whose deadline is not behind `now`. An id may live again with another one."""
        if len(self._ends) > 2 * len(live) + SPARE_ENDS:
            self._ends = [end for end in self._ends if end[1] in live]
            heapify(self._ends)
        while self._ends and self._ends[0][0] <= now:
            deadline, request_id = heappop(self._ends)
            sequence = live.get(request_id)
            if sequence is not None and sequence.request.deadline == deadline:
                yield sequence

    def hopeless(
        self, now: float, ahead_of: Callable[[Sequence], Backlog], of_all: Callable[[], Backlog]
    ) -> Iterator[Sequence]:
        """Yields newcomers since the last call that would only delay others. `ahead_of` returns the backlog ahead of
        a sequence, with its own prompt; those that were yielded before have ended. `of_all` returns that of all
        clients: what is in reach behind all of it needs no closer look, which costs as much as the queue is long."""
        newcomers, self._newcomers = self._newcomers, []
        everything = of_all() if newcomers else Backlog()
        for sequence in newcomers:
            if sequence.status is not SequenceStatus.WAITING:
                continue
            if not is_background(sequence) and not self._is_out_of_reach(sequence, now, lambda _: everything):
                continue
            if self._is_out_of_reach(sequence, now, ahead_of):
                yield sequence

    def is_too_late(
        self, sequence: Sequence, now: float, alone: Callable[[Sequence], Backlog], expect: Callable[[Sequence], None]
    ) -> bool:
        """Returns whether a sequence whose turn has come is out of reach. `alone` returns its own backlog, and `expect`
        looks anew what of its prompt is cached: others may have computed its beginning since it came."""
        is_new = sequence.status is SequenceStatus.WAITING and not sequence.request.emitted
        if not is_new or not self._is_out_of_reach(sequence, now, alone):
            return False
        expect(sequence)
        return self._is_out_of_reach(sequence, now, alone)

    def _is_out_of_reach(self, sequence: Sequence, now: float, backlog_of: Callable[[Sequence], Backlog]) -> bool:
        deadline = sequence.request.deadline
        return deadline is not None and self._policy.is_hopeless(backlog_of(sequence), deadline - now)
