"""Memory of the host for tensors that are large and written bit by bit. Knows bytes only."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, huge: bool = False) -> Tensor:
    """Zeros [shape] on the host whose pages it gives only as they are first written; torch.zeros writes all of them.
    `huge`: in huge pages where the host has them, for what is written at once and read in a stream. The first write to
    such a page takes milliseconds, which between two tokens would show."""
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)
