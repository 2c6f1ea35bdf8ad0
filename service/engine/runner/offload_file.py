"""The offload file copies KV blocks to disk and back. A checksum proves each copy.

It knows the numbers of blocks, in memory and on disk, and bytes. It knows no contents or sequences.

disk_block   | layer 0 keys | layer 0 values | layer 1 keys | .. | layers with window blocks ..    bytes as in memory

The file has no name: no other process can open it, and it ends with the process, also after a crash.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from service.engine.runner.kv_cache import KVCache
from service.engine.sequences.batch import BlockCopy

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
        self._halves = [_Half(cache, in_windows) for in_windows in (False, True)]
        self._block_bytes = sum(half.num_bytes for half in self._halves)
        disk = os.fstatvfs(self._file.fileno())
        self.num_disk_blocks = min(max_bytes, int(disk.f_bavail * disk.f_frsize * FREE_DISK_SHARE)) // self._block_bytes
        self._checksums: dict[tuple[int, bool], int] = {}

    def copy(self, copies: Iterable[BlockCopy]) -> list[BlockCopy]:
        """Makes copies one after the other and returns the ones that failed. A failed copy left a disk block that is
        not whole, or a block of zeros because the bytes read were not the bytes written."""
        return [each for each in copies if not (self._restore(each) if each.restores else self._save(each))]

    def _save(self, copy: BlockCopy) -> bool:
        for half in self._halves:
            self._checksums.pop((copy.disk_block, half.in_windows), None)
        return all(self._save_half(half, block, copy.disk_block) for half, block in self._halves_of(copy))

    def _restore(self, copy: BlockCopy) -> bool:
        return all(self._restore_half(half, block, copy.disk_block) for half, block in self._halves_of(copy))

    def _halves_of(self, copy: BlockCopy) -> list[tuple[_Half, int]]:
        """Returns the halves of the copy's block, each with the block that holds it."""
        full, in_windows = self._halves
        if copy.window_block is None:
            return [(full, copy.block)]
        return [(full, copy.block), (in_windows, copy.window_block)]

    def _save_half(self, half: _Half, block: int, disk_block: int) -> bool:
        parts = half.parts(block)
        if not self._moved(os.pwritev, parts, self._offset(half, disk_block)):
            return False
        self._checksums[disk_block, half.in_windows] = _checksum(parts)
        return True

    def _restore_half(self, half: _Half, block: int, disk_block: int) -> bool:
        key = disk_block, half.in_windows
        read = torch.empty(0 if half.on_host else half.num_bytes, dtype=torch.uint8)
        parts = half.parts(block) if half.on_host else [_bytes(read)]
        known = key in self._checksums and self._moved(os.preadv, parts, self._offset(half, disk_block))
        if not known or _checksum(parts) != self._checksums[key]:
            for row in half.rows(block):  # bits that are no number would reach its next owner: KVCache.write
                row.zero_()
            return False
        if not half.on_host:
            half.take(read, block)
        return True

    def _offset(self, half: _Half, disk_block: int) -> int:
        return disk_block * self._block_bytes + (self._halves[0].num_bytes if half.in_windows else 0)

    def _moved(self, move: Move, parts: list[memoryview], offset: int) -> bool:
        """Returns whether all bytes were moved."""
        rest = iter(parts)
        try:
            while some := list(islice(rest, _PARTS_A_CALL)):
                size = sum(len(part) for part in some)
                if move(self._file.fileno(), some, offset) != size:
                    return False
                offset += size
        except OSError:
            return False
        return True


class _Half:
    """The bytes of the layers with blocks, or of those with window blocks: tensors [blocks, bytes] uint8."""

    def __init__(self, cache: KVCache, in_windows: bool) -> None:
        self.in_windows = in_windows
        layers = [at for at in range(len(cache.shapes)) if cache.has_window_blocks(at) == in_windows]
        tensors = [tensor for at in layers for tensor in (cache.keys[at], cache.values[at])]
        self.blocks = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
        self.on_host = cache.device.type == "cpu"
        self._views = [tensor.numpy() for tensor in self.blocks] if self.on_host else []  # quick to index
        self.num_bytes = sum(tensor.shape[1] for tensor in self.blocks)

    def rows(self, block: int) -> list[Tensor]:
        return [tensor[block] for tensor in self.blocks]

    def parts(self, block: int) -> list[memoryview]:
        """Returns the parts; on the host as views, not copies."""
        if self.on_host:
            return [view[block].data for view in self._views]
        return [_bytes(torch.cat(self.rows(block)).cpu())] if self.blocks else []

    def take(self, read: Tensor, block: int) -> None:
        """Writes the bytes read from the file into the block, on another device."""
        sent, at = read.to(self.blocks[0].device) if self.blocks else read, 0
        for row in self.rows(block):
            row.copy_(sent[at : at + len(row)])
            at += len(row)


def _bytes(row: Tensor) -> memoryview:
    return row.numpy().data


def _checksum(parts: Iterable[memoryview]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
