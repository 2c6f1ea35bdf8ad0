"""What was asked for lately, and no more of it than a given number."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps `most` values, and forgets the one that was asked for longest ago. Safe from any thread: a value that two
    threads miss is made twice.

    One at a time, not all when it is full: a memory that empties at once takes what is asked for all the time along,
    and leaves pages of the allocator half empty."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Returns the value of `key`; None where there is none."""
        try:
            self._kept.move_to_end(key)
        except KeyError:
            return None
        return self._kept.get(key)

    def __setitem__(self, key: K, value: V) -> None:
        self._kept[key] = value
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
