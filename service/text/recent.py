"""This module keeps what was asked for lately, and forgets the rest."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps `most` values, which are together as large as `most_size` by `size`, and forgets the one that was asked for
    longest ago. A value of more than a quarter is not kept: it would take the place of many. Safe from any thread: a
    value that two threads miss is made twice.

    One at a time, not all when it is full: a memory that empties at once takes what is asked for all the time along,
    and leaves pages of the allocator half empty."""

    def __init__(self, most: int, most_size: float = math.inf, size: Callable[[V], int] = lambda _: 0) -> None:
        self._most, self._most_size, self._size = most, most_size, size
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._taken = 0
        self._lock = Lock()

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
        size = self._size(value)
        if size > self._most_size / 4:
            return
        with self._lock:
            before = self._kept.get(key)
            self._kept[key] = value
            self._taken += size - (0 if before is None else self._size(before))
            while len(self._kept) > self._most or self._taken > self._most_size:
                self._taken -= self._size(self._kept.popitem(last=False)[1])
