"""This module gives memory of the host for large tensors that are written bit by bit. It knows bytes only."""

from __future__ import annotations

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, huge: bool = False) -> Tensor:
    """Returns zeros [shape] whose pages the host gives at their first write; torch.zeros writes all of them. `huge`
    uses huge pages if the host has them, for tensors that are written at once and read in a stream. The first write to
    such a page takes milliseconds, which would show between two tokens."""
    pages = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a kernel without them
        pages.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)
