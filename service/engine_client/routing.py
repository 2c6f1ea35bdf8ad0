"""The prefix router chooses among engines: the one that knows a prompt's beginning, unless that is much busier.

It knows token ids and numbers of requests. It knows no engine, no queue and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Generic, Protocol, TypeVar

from service.engine.messages import Request

OPENINGS: Final = (256, 64, 16)
"""Numbers of first tokens by which equal beginnings are found, the longest first."""
MOST_REMEMBERED: Final = 10_000
BUSIER: Final = 4
"""At over this many more requests in flight, another engine computes a conversation's beginning again."""


class Counted(Protocol):
    """Something that requests can go to, and how many are there now."""

    in_flight: int


S = TypeVar("S", bound=Counted)


class PrefixRouter(Generic[S]):
    """Remembers where the newest MOST_REMEMBERED beginnings went."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, S] = OrderedDict()

    def choose(self, request: Request, free: Sequence[S]) -> S:
        """Returns one of `free`, which is not empty."""
        least = min(free, key=lambda seat: seat.in_flight)
        known = next((self._known[key] for key in _openings(request) if key in self._known), least)
        return known if known in free and known.in_flight <= least.in_flight + BUSIER else least

    def remember(self, request: Request, seat: S) -> None:
        """Notes that `seat` gets this request."""
        for key in _openings(request):
            self._known[key] = seat
            self._known.move_to_end(key)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)


def _openings(request: Request) -> list[int]:
    """Returns a key for each length in OPENINGS that the prompt reaches."""
    lengths = (length for length in OPENINGS if length <= len(request.token_ids))
    return [hash((request.adapter, request.cache_salt, request.token_ids[:length])) for length in lengths]
