"""The eviction policy says which unused content goes next: of the ends of chains, the content with the least worth.

It knows contents by their chained hashes, and the worth of each. It knows no blocks, files or sequences. The policy is
GreedyDual (Young 1994; Cao & Irani, USENIX ITS 1997). A new content stands at the level plus its worth. The lowest
content goes, and the level rises to its stand. So expensive content stays longer, but not forever. Of contents with
equal worth the oldest goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

_SLACK: Final = 64


class EvictionCandidate(NamedTuple):
    """A content that may be evicted. `parent` is the content before it in its chain, here or not. `order` numbers the
    additions. It is a tuple for speed, because every block of every ended sequence makes one."""

    content: bytes
    parent: bytes
    worth: float
    stand: float
    order: int


class EvictionPolicy:
    """Takes O(log n) per operation. It uses a heap of chain ends and passes over stale entries."""

    def __init__(self) -> None:
        self._entries: dict[bytes, EvictionCandidate] = {}
        self._children: dict[bytes, int] = {}
        self._ends: list[tuple[float, int, bytes]] = []
        self._level = 0.0
        self._order = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, content: bytes) -> bool:
        return content in self._entries

    def __iter__(self) -> Iterator[EvictionCandidate]:
        return iter(self._entries.values())

    def add(self, content: bytes, parent: bytes, worth: float) -> None:
        """Adds a content, which must not be here yet. Of equals the earlier addition goes first."""
        self._order += 1
        entry = self._entries[content] = EvictionCandidate(content, parent, worth, self._level + worth, self._order)
        self._children[parent] = self._children.get(parent, 0) + 1
        if content not in self._children:
            self._push(entry)

    def discard(self, content: bytes) -> EvictionCandidate | None:
        """Takes a content out, wherever it stands. Returns None for a content that is not here."""
        entry = self._entries.pop(content, None)
        if entry is not None:
            left = self._children[entry.parent] - 1
            if left:
                self._children[entry.parent] = left
            else:
                del self._children[entry.parent]
                if entry.parent in self._entries:
                    self._push(self._entries[entry.parent])
        return entry

    def pop(self) -> EvictionCandidate:
        """Takes out the lowest end of a chain. Raises IndexError when there is nothing."""
        while not self._holds(self._ends[0]):
            heappop(self._ends)
        entry = self._entries[heappop(self._ends)[2]]
        self._level = max(self._level, entry.stand)
        self.discard(entry.content)
        return entry

    def is_before(self, content: bytes) -> bool:
        """Returns whether a content here lies right behind `content`."""
        return content in self._children

    def is_sound(self) -> bool:
        """Returns whether the counts are right and every end can be found. O(n)."""
        ends = {content for content in self._entries if content not in self._children}
        counts = Counter(entry.parent for entry in self)
        return self._children == counts and ends <= {end[2] for end in self._ends if self._holds(end)}

    def _push(self, entry: EvictionCandidate) -> None:
        heappush(self._ends, (entry.stand, entry.order, entry.content))
        if len(self._ends) > 2 * len(self._entries) + _SLACK:
            self._ends = [end for end in self._ends if self._holds(end)]
            heapify(self._ends)

    def _holds(self, end: tuple[float, int, bytes]) -> bool:
        entry = self._entries.get(end[2])
        return entry is not None and entry.order == end[1] and end[2] not in self._children
