"""The offload file copies KV blocks to disk and back. A checksum proves each copy.

It knows the numbers of blocks, in memory and on disk, and bytes. It knows no contents or sequences.

disk_block   | layer 0 keys | layer 0 values | layer 1 keys | ..    bytes as they lie in memory

The file has no name: no other process can open it, and it ends with the process, also after a crash.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from service.engine.batch import BlockCopy
from service.runner.kv_cache import KVCache

FREE_DISK_SHARE: Final = 0.1
_PARTS_A_CALL: Final = 512  # the kernel takes 1,024

Move = Callable[[int, list[memoryview], int], int]
"""os.preadv or os.pwritev."""


class OffloadFile:
    """Owns the file and the checksums of its disk_blocks. One thread."""

    def __init__(self, cache: KVCache, directory: str, max_bytes: int) -> None:
        """Makes the file in `directory`: at most `max_bytes`, and at most a tenth of the free bytes there. Raises
        OSError."""
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 - lives as long as this
        self._blocks = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in _tensors(cache)]
        self._on_host = cache.device.type == "cpu"
        self._views = [tensor.numpy() for tensor in self._blocks] if self._on_host else []  # quick to index
        self._block_bytes = sum(tensor.shape[1] for tensor in self._blocks)
        disk = os.fstatvfs(self._file.fileno())
        self.num_disk_blocks = min(max_bytes, int(disk.f_bavail * disk.f_frsize * FREE_DISK_SHARE)) // self._block_bytes
        self._checksums: dict[int, int] = {}

    def copy(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        """Makes copies one after the other and returns the ones that failed. A failed copy left a disk block that is
        not whole, or a block of zeros because the bytes read were not the bytes written."""
        return [each for each in copies if not (self._restore(each) if each.restores else self._save(each))]

    def _save(self, copy: BlockCopy) -> bool:
        self._checksums.pop(copy.disk_block, None)
        parts = self._parts(copy.block) if self._on_host else [_bytes(torch.cat(self._rows(copy.block)).cpu())]
        if self._moved(os.pwritev, parts, copy.disk_block):
            self._checksums[copy.disk_block] = _checksum(parts)
        return copy.disk_block in self._checksums

    def _restore(self, copy: BlockCopy) -> bool:
        read = torch.empty(0 if self._on_host else self._block_bytes, dtype=torch.uint8)
        parts = self._parts(copy.block) if self._on_host else [_bytes(read)]
        known = copy.disk_block in self._checksums and self._moved(os.preadv, parts, copy.disk_block)
        if not known or _checksum(parts) != self._checksums[copy.disk_block]:
            for row in self._rows(copy.block):  # bits that are no number would reach its next owner: KVCache.write
                row.zero_()
            return False
        if not self._on_host:
            sent, at = read.to(self._blocks[0].device), 0
            for row in self._rows(copy.block):
                row.copy_(sent[at : at + len(row)])
                at += len(row)
        return True

    def _rows(self, block: int) -> list[Tensor]:
        return [tensor[block] for tensor in self._blocks]

    def _parts(self, block: int) -> list[memoryview]:
        """Returns the parts on the host as views, not copies."""
        return [view[block].data for view in self._views]

    def _moved(self, move: Move, parts: list[memoryview], disk_block: int) -> bool:
        """Returns whether all bytes were moved."""
        offset, rest = disk_block * self._block_bytes, iter(parts)
        try:
            while some := list(islice(rest, _PARTS_A_CALL)):
                size = sum(len(part) for part in some)
                if move(self._file.fileno(), some, offset) != size:
                    return False
                offset += size
        except OSError:
            return False
        return True


def _tensors(cache: KVCache) -> Iterator[Tensor]:
    for keys, values in zip(cache.keys, cache.values, strict=True):
        yield keys
        yield values


def _bytes(row: Tensor) -> memoryview:
    return row.numpy().data


def _checksum(parts: Iterable[memoryview]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
