"""Weights in the blocks of a GGUF file, as they are: `file` versions store and compute them without another rounding.

A version's files hold them as uint8 [out, bytes of a row] (`checkpoint.block_types`). A row is one output's blocks,
one after the other. llama.cpp's own package says what a block means (`dequantized`); the native kernels multiply by the
same blocks (`blocks.h`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from models.checkpoint.block_types import type_of

BLOCKS: Final[torch.dtype] = torch.bits8
"""The dtype that stands for a BlockWeight where tensors have theirs."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """Weights [out, in] of one type of blocks: `data` uint8 [out, bytes of a row]."""

    data: Tensor
    type: str

    @property
    def dtype(self) -> torch.dtype:
        return BLOCKS

    @property
    def number(self) -> int:
        """The type's number in GGUF files, which the kernels know it by."""
        from gguf import GGMLQuantizationType

        return int(GGMLQuantizationType[self.type])

    @property
    def shape(self) -> torch.Size:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        inputs, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.type]]
        return torch.Size((self.data.shape[0], self.data.shape[1] // size * inputs))

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def data_ptr(self) -> int:
        """Returns what tells one matrix from another."""
        return self.data.data_ptr()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, some: slice) -> BlockWeight:
        """Returns the weights of some outputs."""
        return BlockWeight(self.data[some], self.type)

    def rows(self, outputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the weights of some outputs [..] in `dtype`, [.., in]."""
        some = BlockWeight(self.data[outputs.reshape(-1)], self.type)
        return some.dequantized(dtype).view(*outputs.shape, -1)

    def to(self, device: torch.device) -> BlockWeight:
        return BlockWeight(self.data.to(device), self.type)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns the weights [out, in] in `dtype`, on the same device."""
        from gguf import GGMLQuantizationType, dequantize

        out = torch.empty(self.shape, dtype=dtype)
        step = max(1, (1 << 22) // max(1, self.shape[1]))
        for first in range(0, len(out), step):  # the package's own arrays are several times as large
            part = self.data[first : first + step].cpu().contiguous().numpy()
            out[first : first + step] = torch.from_numpy(dequantize(part, GGMLQuantizationType[self.type]))
        return out.to(self.device)


def plain(weight: Tensor | BlockWeight, dtype: torch.dtype) -> Tensor:
    """Returns blocks dequantized to `dtype`, and other weights as they are."""
    return weight.dequantized(dtype) if isinstance(weight, BlockWeight) else weight


def taken(names: Iterable[str], take: Callable[[str], Tensor]) -> dict[str, BlockWeight]:
    """Takes the tensors of blocks among `names`. Returns them by module."""
    blocks = ((name, type_of(name)) for name in names)
    return {block[0]: BlockWeight(take(name), block[1]) for name, block in blocks if block}
