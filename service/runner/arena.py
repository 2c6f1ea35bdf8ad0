"""Packed weights in memory that several engine processes map. Knows sizes and an order; nothing of kernels.

An anonymous file in memory (memfd_create(2)): whoever packs first writes it, the others map it read-only by
/proc/<pid>/fd/<n>. Weights are asked for in the same order by every process of a version, so a place is a number.

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
"""What it is, where it begins, its bytes."""


class Differs(Exception):
    """What is asked for is not what was packed: the other process has another model, or other kernels."""


class Arena:
    """Allocations in the order in which they are asked for. One thread."""

    def __init__(self, path: str = "") -> None:
        """A new one, or that of another process at `path`. Raises OSError or Differs when that cannot be mapped."""
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
        """For other processes of this user, as long as this one lives; what they have mapped stays theirs."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def take(self, what: str, size: int) -> Tensor:
        """The next allocation, uint8 [size]: zeros for the owner to write, to others what it wrote. Raises Differs."""
        if self.is_owner:
            start = os.fstat(self._file).st_size
            self._allocations.append((what, start, size))
            os.truncate(self._file, start + -(-size // HUGE_PAGE) * HUGE_PAGE)
        else:
            wanted = self._allocations[self._next] if self._next < len(self._allocations) else ("nothing", 0, 0)
            if (wanted[0], wanted[2]) != (what, size):
                raise Differs(f"{what} of {size} bytes is asked for, {wanted[0]} of {wanted[2]} was packed")
            start = wanted[1]
        self._next += 1
        return _mapped(self._file, start, size, self.is_owner)

    def seal(self) -> None:
        """By the owner, once everything is written: others can map it from now on."""
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
