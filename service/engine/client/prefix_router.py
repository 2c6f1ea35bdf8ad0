"""The prefix router chooses an engine by how much of a prompt each one knows, and by how busy it is.

A chat's second turn goes where its first one went, unless that engine has many more requests than another. A fresh
chat, of which only the system prompt is known, goes to the least busy of the engines that have had this system prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from service.engine.protocol.messages import Request

BLOCK: Final = 16
"""Tokens; beginnings are compared by whole blocks."""
MOST_REMEMBERED: Final = 50_000
"""Beginnings: a prompt of 1,000 tokens leaves seven."""
BLOCKS_A_REQUEST: Final = 2
"""A request more in flight weighs as much as these blocks to compute. `loadtest.scale` compares such weights: at 1 to 3
the times to the first token are near those of a fixed place, and long answers end earlier."""
MOST_BLOCKS: Final = 32
"""No beginning is worth more than 16 requests, so that a document that many ask about is soon known to all."""


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
        known = {id(seat): blocks for blocks, key in enumerate(beginnings, 1) for seat in self._known.get(key, ())}

        def cost(seat: S) -> tuple[int, int]:
            blocks = known.get(id(seat), 0)
            return BLOCKS_A_REQUEST * seat.in_flight - min(blocks, MOST_BLOCKS), -blocks

        chosen = min(free, key=cost)
        self._remember(beginnings, chosen)
        return chosen

    def _remember(self, beginnings: Sequence[int], seat: S) -> None:
        """Notes the beginnings of 1, 2, 4, … blocks, which other prompts may share, and the whole of the prompt."""
        count = len(beginnings)
        for number, key in enumerate(beginnings, 1):
            if number == count or number & (number - 1) == 0:
                knowing = self._known.pop(key, ())
                self._known[key] = knowing if seat in knowing else (*knowing, seat)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)


def _beginnings(request: Request) -> Iterator[int]:
    """Yields a key for each number of whole blocks of the prompt, the shortest first."""
    key = hash((request.adapter, request.cache_salt))
    tokens = request.token_ids
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        key = hash((key, tuple(tokens[start : start + BLOCK])))
        yield key
