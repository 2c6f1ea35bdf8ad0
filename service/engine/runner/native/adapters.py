"""Native adapters add to linear layers with the native kernels. They know matrices and rows, but no model."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from models.weights.loading import LowRankWeights
from service.engine.runner.native.library import KINDS, AddedStruct, Library, LowRankStruct, address

Placed = tuple[LowRankWeights, int]
"""One part's matrices, and the first output of the layer that they add to."""


class NativeAdded:
    """The addition of one adapter to one linear layer. `struct` is valid as long as this object lives."""

    def __init__(self, parts: Seq[Placed]) -> None:
        self._kept = parts
        self._ranks = sum(len(weights.a) for weights, _ in parts)
        self._structs = (LowRankStruct * len(parts))(*(_struct(weights, first) for weights, first in parts))
        self.struct = AddedStruct(len(parts), self._structs)

    def add(self, library: Library, x: Tensor, y: Tensor) -> None:
        """Adds to y [n, outputs] fp32, for rows x [n, depth] fp32; both are contiguous."""
        library.add(self.struct, x, torch.empty(len(x), self._ranks), y)


def _struct(weights: LowRankWeights, first: int) -> LowRankStruct:
    rank, outputs = weights.b.shape
    return LowRankStruct(
        KINDS[weights.a.dtype], rank, first, outputs, address(weights.a), address(weights.b), weights.scale
    )
