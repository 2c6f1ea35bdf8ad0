"""Row blocks make every row of a matrix product independent of the other rows, on libraries that promise nothing.

A library chooses another kernel, or divides the sum among threads in another way, as the number of rows changes. Then a
row's result changes in its last bits, and a request alone gets other tokens than in a batch. So products get their rows
in blocks whose sizes are known to agree, bit for bit: multiples of `quantum`, at most `most` rows each.

    rows   0 ........ 255 | 256 ........ 511 | 512 .. 575      most 256: the last block has what is left,
                                                               and the step has padded it to a multiple of `quantum`

The module knows products, and no layers by their meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALL_QUANTA: Final = (1, 2, 4, 8, 16)
"""A padded decode of at most 16 rows still waits for its weights, not for its products."""


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """Products of `quantum`, 2 * `quantum`, … up to `most` rows give each row the same bits. `most` is a multiple of
    `quantum`."""

    quantum: int
    most: int


LAST_RESORT: Final = RowBlocks(64, 64)
"""Always the same shape, for a library none of whose shapes agree with another."""
# In order: padding costs every decode, small blocks cost long prompts only.
CANDIDATES: Final = (
    *(RowBlocks(quantum, most) for most in (256, 128, 64) for quantum in SMALL_QUANTA),
    *(RowBlocks(quantum, most) for quantum in (32, 64) for most in (256, 128)),
    RowBlocks(32, 64),
    LAST_RESORT,
)
CUDA_CANDIDATES: Final = (*(RowBlocks(quantum, 2048) for quantum in SMALL_QUANTA), *CANDIDATES)
"""A GPU wants more rows in one product than a CPU."""
HEAD_CANDIDATES: Final = tuple(blocks for blocks in CANDIDATES if blocks.most == 64)
_WITNESSES: Final = (32, 2048)
"""The fewest and the most rows that are computed in blocks of each size."""
_VALUES: Final = 1 << 17
"""So many results are compared for each size, if the most rows have them. bf16 hides most differences of sums: one
result in 16,000 differed between one row and more, on a processor with AVX-512."""
_HEAD_WIDTH: Final = 16384
"""A layer with more outputs is a model's head: it gets few rows, and many would take long to measure."""


def row_blocks(weight: Tensor) -> RowBlocks:
    """Returns blocks that suit `F.linear` with this weight [out, in]: measured, because kernels differ by processor and
    switch by shape."""
    candidates = CUDA_CANDIDATES if weight.is_cuda else CANDIDATES
    if len(weight) > _HEAD_WIDTH:
        candidates = HEAD_CANDIDATES
    least, most = _WITNESSES
    witnesses = max(least, min(most, _VALUES // len(weight)))
    whole_blocks = -(-witnesses // candidates[0].most)
    rows = _noise(whole_blocks * candidates[0].most, weight.shape[1]).to(weight.device, weight.dtype)

    @cache
    def whole(most: int) -> Tensor:
        return torch.cat([F.linear(block, weight) for block in torch.split(rows, most)])

    def agree(blocks: RowBlocks) -> bool:
        windows = _windows(blocks, witnesses)
        return all(torch.equal(F.linear(rows[some], weight), whole(blocks.most)[some]) for some in windows)

    return next(each for each in candidates if each == LAST_RESORT or agree(each))


def divide_rows(module: nn.Module, most: int) -> None:
    """Makes a layer of rows [..., in] compute at most `most` rows in one product. Its hooks still see all rows."""
    whole: Callable[[Tensor], Tensor] = module.forward

    def forward(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        if len(rows) <= most:
            return whole(x)
        return torch.cat([whole(block) for block in torch.split(rows, most)]).view(*x.shape[:-1], -1)

    module.forward = forward


def bmm_row_quantum(depth: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
    """Returns the smallest quantum for batched products of [rows, depth] by [depth, width]."""
    most = CANDIDATES[0].most
    left = _noise(most, depth).expand(4, -1, -1).to(device, dtype)
    right = _noise(width, depth).expand(4, -1, -1).to(device, dtype).transpose(1, 2)
    whole = torch.bmm(left, right)
    for quantum in SMALL_QUANTA:
        windows = _windows(RowBlocks(quantum, most), most)
        if all(torch.equal(torch.bmm(left[:, some].contiguous(), right), whole[:, some]) for some in windows):
            return quantum
    return SMALL_QUANTA[-1]


def _windows(blocks: RowBlocks, witnesses: int) -> Iterator[slice]:
    """Yields rows to compute by themselves: for each size as many windows as have `witnesses` rows in all. One row
    alone may agree by chance."""
    for size in _sizes(blocks):
        for first in range(0, max(1, witnesses - size + 1), size):
            yield slice(first, first + size)


def _sizes(blocks: RowBlocks) -> Iterator[int]:
    """Yields numbers of rows to try: small ones, and some between the sizes at which kernels were seen to switch. Few,
    because a library makes a kernel for each."""
    few = (blocks.quantum * times for times in (1, 2, 3, 5, 8))
    sizes = {*few, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224, 240, 320, 512, 1024, 1536}
    yield from sorted(size for size in sizes if size < blocks.most and size % blocks.quantum == 0)


def _noise(rows: int, depth: int) -> Tensor:
    return torch.randn(rows, depth, generator=torch.Generator().manual_seed(0))
