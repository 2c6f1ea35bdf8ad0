"""The prefix router chooses among engines: of those that know most of a prompt's beginning, the least busy.

Example: a chat's second turn goes where its first one went. A fresh chat, of which only the system prompt is known,
goes to the least busy of the engines that have had this system prompt. An engine that is much busier than another one
does not get the request. The router knows token ids and numbers of requests. It knows no engine, no queue and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from service.engine.messages import Request

BLOCK: Final = 16
"""Tokens; beginnings are compared by whole blocks."""
MOST_REMEMBERED: Final = 50_000
"""Beginnings: a prompt of 1,000 tokens leaves seven."""
BUSIER: Final = 4
"""At over this many more requests in flight, another engine computes a conversation's beginning again."""


class Counted(Protocol):
    """Something that requests can go to, and how many are there now."""

    in_flight: int


S = TypeVar("S", bound=Counted)


class PrefixRouter(Generic[S]):
    """Remembers which engines had the newest MOST_REMEMBERED beginnings."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[S, ...]] = OrderedDict()

    def place(self, request: Request, free: Sequence[S]) -> S:
        """Returns one of `free`, which is not empty, and remembers that it knows this prompt from now on."""
        beginnings = list(_beginnings(request))
        chosen = self._choose(beginnings, free)
        self._remember(beginnings, chosen)
        return chosen

    def _choose(self, beginnings: Sequence[int], free: Sequence[S]) -> S:
        least = min(free, key=_busy)
        knowing = next((self._known[key] for key in reversed(beginnings) if key in self._known), ())
        known = min((seat for seat in knowing if seat in free), key=_busy, default=least)
        return known if known.in_flight <= least.in_flight + BUSIER else least

    def _remember(self, beginnings: Sequence[int], seat: S) -> None:
        """Notes the beginnings of 1, 2, 4, … blocks, which other prompts may share, and the whole of the prompt."""
        count = len(beginnings)
        for number, key in enumerate(beginnings, 1):
            if number == count or number & (number - 1) == 0:
                knowing = self._known.pop(key, ())
                self._known[key] = knowing if seat in knowing else (*knowing, seat)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)


def _busy(seat: Counted) -> int:
    return seat.in_flight


def _beginnings(request: Request) -> Iterator[int]:
    """Yields a key for each number of whole blocks of the prompt, the shortest first."""
    key = hash((request.adapter, request.cache_salt))
    tokens = request.token_ids
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        key = hash((key, tuple(tokens[start : start + BLOCK])))
        yield key
