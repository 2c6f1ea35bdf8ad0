"""An arena holds packed weights in memory that several engine processes map. It knows sizes and an order; no kernels.

It is an anonymous file in memory (memfd_create(2)). The first process packs and writes it. The others map it read-only
by /proc/<pid>/fd/<n>. Every process of a version takes the weights in the same order, so a place is a number.

    [ 2 MiB: length and table, msgpack | weights | weights | ... ]   each begins on a huge page
"""

from __future__ import annotations

import mmap
import os
import warnings
from contextlib import suppress

import msgspec
import torch
from torch import Tensor

HUGE_PAGE = 1 << 21
_LENGTH_BYTES = 8
Allocation = tuple[str, int, int]
"""Name, beginning, and number of bytes."""


class Differs(Exception):
    """The wanted weights are not the packed ones: the other process has another model, or other kernels."""


class Arena:
    """Gives allocations in the order in which they are taken. One thread uses it."""

    def __init__(self, path: str = "") -> None:
        """Makes a new arena, or maps that of another process at `path`. Raises OSError or Differs if it cannot."""
        self.is_owner = not path
        self._allocations: list[Allocation] = []
        self._next = 0
        if path:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            length = int.from_bytes(os.pread(self._file, _LENGTH_BYTES, 0), "little")
            if not length:
                raise Differs("there is no table: whoever packs is not done")
            self._allocations = msgspec.msgpack.decode(
                os.pread(self._file, length, _LENGTH_BYTES), type=list[Allocation]
            )
        else:
            self._file = os.memfd_create("dosirak-weights", os.MFD_CLOEXEC)
            os.truncate(self._file, HUGE_PAGE)

    @property
    def path(self) -> str:
        """The path for other processes of this user, valid while this process lives. Their mappings stay valid."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def bytes(self) -> int:
        """Bytes of all allocations so far."""
        return sum(size for _, _, size in self._allocations)

    def take(self, what: str, size: int) -> Tensor:
        """Returns the next allocation, uint8 [size]: zeros for the owner to write, the owner's bytes for others. Raises
        Differs."""
        if self.is_owner:
            start = os.fstat(self._file).st_size
            self._allocations.append((what, start, size))
            os.truncate(self._file, start + -(-size // HUGE_PAGE) * HUGE_PAGE)
        else:
            packed = self._allocations[self._next] if self._next < len(self._allocations) else ("nothing", 0, 0)
            if (packed[0], packed[2]) != (what, size):
                raise Differs(f"{what} of {size} bytes is asked for, {packed[0]} of {packed[2]} was packed")
            start = packed[1]
        self._next += 1
        return _mapped(self._file, start, size, self.is_owner)

    def seal(self) -> None:
        """Seals the arena after the last write, by the owner. From now on others can map it."""
        table = msgspec.msgpack.encode(self._allocations)
        if len(table) > HUGE_PAGE - _LENGTH_BYTES:
            raise ValueError(f"{len(self._allocations)} allocations are more than the table holds")
        os.pwrite(self._file, table, _LENGTH_BYTES)
        os.pwrite(self._file, len(table).to_bytes(_LENGTH_BYTES, "little"), 0)


def _mapped(file: int, start: int, size: int, writable: bool) -> Tensor:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    pages = mmap.mmap(file, size, mmap.MAP_SHARED, protection, offset=start)
    with suppress(AttributeError, OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE)
    with warnings.catch_warnings():  # nothing writes to a read-only one: kernels only read weights
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(pages, dtype=torch.uint8, count=size)
