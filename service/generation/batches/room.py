"""Room says whether one more output of a batch fits beside all files."""

from __future__ import annotations

from typing import Final

MARGIN: Final = 8
"""Outputs may pass the limit of all files by this part of it: uploads that fill the limit leave room for answers."""


def most_bytes(total: int, others: int) -> int:
    """Returns how many bytes the outputs of a batch may have. `total` is the limit of all files, `others` are the bytes
    of all files and of the outputs of other batches."""
    return total + total // MARGIN - others


class Room:
    """The event loop owns a room. `used` are the bytes of outputs so far; who looks at the disk sets `most`. A room
    that was full stays full, so that no answer is computed for nothing."""

    def __init__(self, most: int, used: int) -> None:
        self.most = most
        self._used = used
        self._was_full = False

    @property
    def is_full(self) -> bool:
        return self._was_full or self._used >= self.most

    def take(self, size: int) -> bool:
        """Takes so many bytes, and returns whether there was room for them."""
        self._was_full = self.is_full or self._used + size > self.most
        if not self._was_full:
            self._used += size
        return not self._was_full
