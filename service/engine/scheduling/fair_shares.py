"""Owners share an engine by tokens: the next free place goes to the owner who has had the fewest.

Each owner has a counter of computed tokens, of prompts and answers alike. An owner who comes back begins at the lowest
counter of those who are there, so nobody saves up. One owner alone is served in order of rank.
Source: Sheng et al., Fairness in Serving Large Language Models (Virtual Token Counter), OSDI 2024.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import takewhile

from service.engine.sequences.batch import Scheduled
from service.engine.sequences.sequence import Sequence


class FairShares:
    """The owners of all live sequences. The scheduler calls it."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._tokens: dict[str, int] = {}

    @property
    def is_shared(self) -> bool:
        """Whether more than one owner is there."""
        return len(self._live) > 1

    def enter(self, owner: str) -> None:
        """Counts a sequence of `owner` as live."""
        if owner not in self._live:
            least = min((self._tokens[each] for each in self._live), default=0)
            self._tokens[owner] = max(least, self._tokens.get(owner, 0))
        self._live[owner] += 1

    def leave(self, owner: str) -> None:
        """Counts one sequence of `owner` less. Once nobody is there, all counters begin anew."""
        self._live[owner] -= 1
        if not self._live[owner]:
            del self._live[owner]
        if not self._live:
            self._tokens.clear()

    def charge(self, scheduled: Iterable[Scheduled]) -> None:
        """Counts the tokens of a step."""
        if self.is_shared:
            for item in scheduled:
                self._tokens[item.sequence.request.owner] += item.num_tokens

    def first(self, waiting: SequenceOf[Sequence]) -> Sequence:
        """Returns the sequence that is next; `waiting` is in order of rank. It is of the highest priority there is, and
        the first of its owner."""
        if not self.is_shared:
            return waiting[0]
        priority = waiting[0].request.priority
        equals = takewhile(lambda each: each.request.priority == priority, waiting)
        return min(equals, key=lambda each: self._tokens[each.request.owner])

    def ahead(self, waiting: SequenceOf[Sequence], last: Sequence) -> SequenceOf[Sequence]:
        """Returns the waiting sequences that come before `last`, and `last`: of its owner those of higher rank, and of
        each other owner as many."""
        before = waiting[: waiting.index(last) + 1]
        if not self.is_shared:
            return before
        owner = last.request.owner
        most = sum(1 for each in before if each.request.owner == owner)
        counts: Counter[str] = Counter()
        ahead = []
        for each in waiting:
            is_higher = each.request.priority > last.request.priority
            if is_higher or (counts[each.request.owner] < most and each.request.priority == last.request.priority):
                counts[each.request.owner] += not is_higher
                ahead.append(each)
        return ahead
