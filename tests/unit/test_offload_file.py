"""Blocks' bytes there and back, and what a disk can do to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.engine.kv_cache.kv_size import LayerShape
from service.engine.runner.kv_cache import KVCache
from service.engine.runner.offload_file import OffloadFile
from service.engine.sequences.batch import BlockCopy

BLOCKS = 5


def cache_of(dtype: torch.dtype = torch.bfloat16, layers: int = 3) -> KVCache:
    """Random bits, numbers or not; keys and values of different sizes."""
    torch.manual_seed(3)
    cache = KVCache([LayerShape(2, 8, 6)] * layers, BLOCKS, 8, dtype, torch.device("cpu"))
    for tensor in (*cache.keys, *cache.values):
        bits = tensor.view(torch.uint8)
        bits.copy_(torch.randint(0, 256, bits.shape, dtype=torch.uint8))
    return cache


def bits(cache: KVCache, block: int) -> torch.Tensor:
    return torch.cat([tensor[block].reshape(-1).view(torch.uint8) for tensor in (*cache.keys, *cache.values)])


@pytest.fixture(params=[True, False], ids=["host", "device"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., OffloadFile]:
    """The way over a buffer, as from a device, gives the same."""

    def made(cache: KVCache, max_bytes: int = 1 << 20) -> OffloadFile:
        file = OffloadFile(cache, str(tmp_path), max_bytes)
        for half in file._halves:
            half.on_host = request.param
        return file

    return made


@pytest.mark.parametrize(
    ("dtype", "layers"), [(torch.bfloat16, 3), (torch.int8, 3), (torch.float32, 1), (torch.int8, 400)]
)
def test_every_bit_comes_back(make: Callable[..., OffloadFile], dtype: torch.dtype, layers: int) -> None:
    cache = cache_of(dtype, layers)
    file = make(cache)
    before = [bits(cache, block).clone() for block in range(BLOCKS)]
    assert file.copy([BlockCopy(0, 3), BlockCopy(1, 0), BlockCopy(2, 1)]) == []
    there_and_elsewhere = [
        BlockCopy(4, 3, restores=True),
        BlockCopy(0, 1, restores=True),
        BlockCopy(0, 3),
        BlockCopy(1, 3, restores=True),
    ]
    assert file.copy(there_and_elsewhere) == []
    for block, was in enumerate([2, 2, 2, 3, 0]):
        assert torch.equal(bits(cache, block), before[was]), block


def test_the_file_has_no_name(make: Callable[..., OffloadFile], tmp_path: Path) -> None:
    file = make(cache_of())
    file.copy([BlockCopy(0, 0)])
    assert list(tmp_path.iterdir()) == []
    status = os.fstat(file._file.fileno())
    assert (status.st_nlink, status.st_mode & 0o777, os.get_inheritable(file._file.fileno())) == (0, 0o600, False)


def test_as_many_slots_as_the_bytes_hold_and_the_disk_has_room(
    make: Callable[..., OffloadFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of()
    slot = len(bits(cache, 0))
    assert make(cache, 10 * slot + 1).num_disk_blocks == 10
    monkeypatch.setattr(os, "fstatvfs", lambda file: SimpleNamespace(f_bavail=slot, f_frsize=45))
    assert make(cache, 10 * slot).num_disk_blocks == 4, "a tenth of what is free"


def _full(*args: Any) -> int:
    raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize("pwritev", [_full, lambda file, parts, offset: 100], ids=["full", "nearly full"])
def test_what_was_not_written_does_not_come_back(
    make: Callable[..., OffloadFile], pwritev: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of()
    file = make(cache)
    assert file.copy([BlockCopy(0, 0)]) == []
    with monkeypatch.context() as disk:
        disk.setattr(os, "pwritev", pwritev)
        assert file.copy([BlockCopy(1, 0)]) == [BlockCopy(1, 0)]
    assert file.copy([BlockCopy(2, 0, restores=True)]) == [BlockCopy(2, 0, restores=True)], "nor what was there"
    assert not bits(cache, 2).any()


def _changed(file: OffloadFile) -> None:
    os.pwrite(file._file.fileno(), b"\x00\x01", 40)


def _cut(file: OffloadFile) -> None:
    os.ftruncate(file._file.fileno(), 100)


@pytest.mark.parametrize("harm", [_changed, _cut])
def test_what_is_read_is_what_was_written_or_zeros(
    make: Callable[..., OffloadFile], harm: Callable[[OffloadFile], None]
) -> None:
    cache = cache_of()
    file = make(cache)
    file.copy([BlockCopy(0, 0), BlockCopy(1, 1)])
    harm(file)
    back = BlockCopy(2, 0, restores=True)
    assert file.copy([back]) == [back]
    assert not bits(cache, 2).any(), "rubbish may hold bits that are no number"


def test_a_read_that_fails(make: Callable[..., OffloadFile], monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_of()
    file = make(cache)
    file.copy([BlockCopy(0, 0)])
    monkeypatch.setattr(os, "preadv", _full)
    assert file.copy([BlockCopy(0, 0, restores=True)]) == [BlockCopy(0, 0, restores=True)]


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        OffloadFile(cache_of(), str(tmp_path / "missing"), 1 << 20)


def test_window_blocks_come_back_where_they_were_saved(make: Callable[..., OffloadFile]) -> None:
    shapes = [LayerShape(2, 8, 6), LayerShape(2, 8, 6, window=20)]
    cache = KVCache(shapes, BLOCKS, 8, torch.float32, torch.device("cpu"), num_window_blocks=3)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    assert [len(tensor) for tensor in cache.keys] == [BLOCKS + 1, 4]
    file = make(cache)
    full, window = cache.keys[0][1].clone(), cache.values[1][2].clone()
    assert file.copy([BlockCopy(1, 4, False, 2), BlockCopy(2, 0)]) == []
    assert file.copy([BlockCopy(3, 4, True, 0), BlockCopy(4, 0, True)]) == []
    assert torch.equal(cache.keys[0][3], full) and torch.equal(cache.values[1][0], window)
    assert file.copy([BlockCopy(3, 0, True, 1)]) == [BlockCopy(3, 0, True, 1)], "saved without"
    assert not cache.keys[1][1].any(), "what could not be read is zeros"
    file.copy([BlockCopy(2, 4)])
    assert file.copy([BlockCopy(3, 4, True, 1)]), "the disk block has another content now"
