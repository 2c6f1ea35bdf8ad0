"""Owners share an engine by tokens: the next free place goes to the owner who has had the fewest.

Each owner has a counter of computed tokens, of prompts and answers alike. An owner who begins to wait begins at the
lowest counter of those who wait, or that of the last who no longer does, so nobody saves up: neither who was away nor
who had little running for long. One owner alone is served in order of rank.

An owner who has nothing running does not wait for an end: an owner with more than an equal part of the seats makes way.

A priority is a head start and no wall: a sequence gains one for each AGEING_SECONDS that it waits. So behind those of
the highest priority, which came later, it waits for nine times as long at most.
Source: Sheng et al., Fairness in Serving Large Language Models (Virtual Token Counter), OSDI 2024.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from heapq import heapify, heappop, heapreplace

from service.engine.protocol.messages import aged
from service.engine.sequences.batch import Scheduled
from service.engine.sequences.sequence import Sequence, SequenceStatus


class FairShares:
    """The owners of all live sequences. The scheduler calls it."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._tokens: dict[str, int] = {}
        self._last = 0
        """The counter of the last owner who got a place."""

    @property
    def is_shared(self) -> bool:
        """Whether more than one owner is there."""
        return len(self._live) > 1

    def enter(self, owner: str) -> None:
        """Counts a sequence of `owner` as live."""
        self._live[owner] += 1

    def wait(self, owner: str, waiting: SequenceOf[Sequence]) -> None:
        """Notes that a sequence of `owner` begins to wait beside `waiting`."""
        owners = {each.request.owner for each in waiting}
        if owner not in owners:
            least = min((self._tokens[each] for each in owners), default=self._last)
            self._tokens[owner] = max(least, self._tokens.get(owner, 0))

    def seat(self, owner: str) -> None:
        """Notes that a sequence of `owner` waits no longer."""
        self._last = self._tokens[owner]

    def leave(self, owner: str) -> None:
        """Counts one sequence of `owner` less. Once nobody is there, all counters begin anew."""
        self._live[owner] -= 1
        if not self._live[owner]:
            del self._live[owner]
        if not self._live:
            self._tokens.clear()
            self._last = 0

    def charge(self, scheduled: Iterable[Scheduled]) -> None:
        """Counts the tokens of a step."""
        if self.is_shared:
            for item in scheduled:
                self._tokens[item.sequence.request.owner] += item.num_tokens

    def first(self, waiting: SequenceOf[Sequence], now: float) -> Sequence:
        """Returns the sequence that is next; `waiting` is in order of rank. It is one of the highest priority there is,
        or has waited until it counts as such, and the first of its owner."""
        top = waiting[0].priority
        if not self.is_shared and waiting[-1].priority == top:
            return waiting[0]
        equals = [each for each in waiting if aged(each.priority, now - each.request.arrival) >= top]
        return min(equals, key=self._turn)

    def first_without_place(
        self, waiting: SequenceOf[Sequence], running: SequenceOf[Sequence], now: float
    ) -> Sequence | None:
        """Returns the next of those whose owner has none running; None where there is none."""
        owners = {each.request.owner for each in running}
        without = [each for each in waiting if each.request.owner not in owners]
        return self.first(without, now) if without else None

    def ahead(self, waiting: SequenceOf[Sequence], last: Sequence) -> SequenceOf[Sequence]:
        """Returns the waiting sequences that come before `last`, and `last`: all of a higher priority, and of its own
        those that `first` would give, if prompts were all that is counted."""
        place = waiting.index(last)
        if not self.is_shared:
            return waiting[: place + 1]
        ahead = [each for each in waiting[:place] if each.priority > last.priority]
        lines: dict[str, deque[tuple[int, Sequence]]] = {}
        for number, each in enumerate(waiting):
            if each.priority == last.priority:
                lines.setdefault(each.request.owner, deque()).append((number, each))
        turns = [(self._tokens[owner], line[0][0], owner) for owner, line in lines.items()]
        heapify(turns)
        while True:
            tokens, _, owner = turns[0]
            _, sequence = lines[owner].popleft()
            ahead.append(sequence)
            if sequence is last:
                return ahead
            if lines[owner]:
                heapreplace(turns, (tokens + sequence.num_tokens, lines[owner][0][0], owner))
            else:
                heappop(turns)

    def makes_way(self, running: SequenceOf[Sequence], newcomer: Sequence) -> Sequence | None:
        """Returns the sequence that gives its place to the first one of an owner who has none running; None where the
        owner has one, or nobody of this priority has more than an equal part. It is the newest that decodes of the
        owner with the most: little is lost, for its prefix stays cached."""
        if not self.is_shared:
            return None
        owners = Counter(each.request.owner for each in running)
        if newcomer.request.owner in owners:
            return None
        equal = max(1, len(running) // len(self._live))
        decodes = [
            each
            for each in running
            if each.num_remaining_tokens == 1
            and each.priority <= newcomer.priority
            and owners[each.request.owner] > equal
        ]
        return max(decodes, key=lambda each: (owners[each.request.owner], each.request.arrival), default=None)

    def _turn(self, sequence: Sequence) -> tuple[int, bool, float]:
        tokens = self._tokens[sequence.request.owner] if self.is_shared else 0
        return tokens, sequence.status is not SequenceStatus.PREEMPTED, sequence.request.arrival
