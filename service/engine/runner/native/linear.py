"""A native linear layer computes with the native kernels. It knows weights and rows."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.blocks import BlockWeight, plain
from models.weights.hadamard import is_block
from models.weights.int4 import INT4, Int4Weight, decoded
from models.weights.loading import LowRankWeights, Outliers
from service.engine.runner.memory import lazy_zeros
from service.engine.runner.native.library import KEPT_WIDTH, KINDS, WEIGHT_ONLY, Library, address
from service.engine.runner.native.structs import AddedStruct, LinearStruct, LowRankStruct


class NativeLinear(nn.Module):
    """The outputs of `parts` side by side: y = x @ weight.T + bias for rows [n, in], in x's dtype. A row's result does
    not depend on the other rows.

    A part is a module with a `weight` [out, in] of fp32, bf16, int8 or int4 (the latter two with `scale` [out]) and an
    optional `bias`. An 8-bit part also has `weight_only` (rows are not quantized), `hadamard` (the block of the
    transform that its weights have passed) and `outliers`. The parts can be dropped. Raises ValueError for weights of
    mixed or other dtypes, for parts with different outliers or transforms, and for scales, biases and outliers that do
    not fit the weights.

    4-bit parts stay 4-bit if all parts are, in groups of one size, and the kernels have that. Otherwise they are
    decoded. A file's blocks stay so if all parts are blocks, and types change between panels; else they become bf16.
    """

    def __init__(self, library: Library, parts: Seq[Any]) -> None:
        super().__init__()
        weights = _alike(library, [part.weight for part in parts])
        dtypes = {weight.dtype for weight in weights}
        if len(dtypes) > 1 or not dtypes <= set(KINDS):
            raise ValueError(f"no kernel for weights of {', '.join(sorted(map(str, dtypes)))}")
        self._library = library
        self.dtype = dtypes.pop()
        self.in_features: int = weights[0].shape[1]
        self.out_features = sum(len(weight) for weight in weights)
        self.group = weights[0].group if isinstance(weights[0], Int4Weight) else 0
        self._hadamard = _block(parts)
        self.kind = WEIGHT_ONLY if getattr(parts[0], "weight_only", False) else KINDS[self.dtype]
        packed, sums = _packed(library, parts, weights, self.kind)
        self.weight = torch.empty(self.out_features, self.in_features, dtype=self.dtype, device="meta")  # for its type
        self.packed, self.sums = nn.Buffer(packed, persistent=False), nn.Buffer(sums, persistent=False)
        self.scale = _buffer([part.scale for part in parts] if self.dtype in (torch.int8, INT4) else [])
        biased = any(getattr(part, "bias", None) is not None for part in parts)
        self.bias = _buffer([_bias(part) for part in parts] if biased else [])
        columns, kept = _outliers([getattr(part, "outliers", None) for part in parts])
        if any(len(each) != self.out_features for each in (self.scale, self.bias) if each is not None):
            raise ValueError(f"scales or biases of another number than the {self.out_features} outputs")
        if len(columns) and not (int(columns.min()) >= 0 and int(columns.max()) < self.in_features):
            raise ValueError(f"outliers that are not among the {self.in_features} columns of the weights")
        self.columns, self.kept = nn.Buffer(columns, persistent=False), nn.Buffer(kept, persistent=False)

    @property
    def struct(self) -> LinearStruct:
        """The kernels' view of the layer, valid as long as this layer lives."""
        tensors = (self.packed, self.scale, self.sums, self.bias)
        outliers = (len(self.columns), address(self.columns), address(self.kept))
        return LinearStruct(
            self.kind,
            self.out_features,
            self.in_features,
            *map(address, tensors),
            *outliers,
            self.group,
            self._hadamard,
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self._library.linear(self.struct, x.reshape(-1, self.in_features))
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)


def rounds_rows(library: Library) -> bool:
    """Returns whether the kernels round rows to bf16 before they multiply them by bf16 weights."""
    finer = torch.full((1, 16), 1 + 2.0**-10)
    weights = SimpleNamespace(weight=torch.eye(16, dtype=torch.bfloat16))
    return not torch.equal(NativeLinear(library, (weights,)).forward(finer), finer)


def _packed(library: Library, parts: Seq[Any], weights: Seq[Any], kind: int) -> tuple[Tensor, Tensor]:
    if isinstance(weights[0], BlockWeight):
        return library.pack_blocks(weights)
    return _joined(library, parts) or library.pack(weights, kind)


def _alike(library: Library, weights: Seq[Any]) -> list[Any]:
    """Returns the weights, with 4-bit ones decoded, and blocks dequantized, where no kernel multiplies all of them
    together."""
    blocks = [isinstance(weight, BlockWeight) for weight in weights]
    if any(blocks):
        fit = all(blocks) and library.joins_blocks(weights)
        return list(weights) if fit else [plain(weight, torch.bfloat16) for weight in weights]
    groups = {weight.group if isinstance(weight, Int4Weight) else 0 for weight in weights}
    return list(weights) if library.has_int4 and len(groups) == 1 else [decoded(weight) for weight in weights]


def _joined(library: Library, parts: Seq[Any]) -> tuple[Tensor, Tensor] | None:
    """Returns the joined packed forms of the parts, which give them up, if the forms can be joined."""
    taken: list[NativeLinear | None] = [getattr(part, "native", None) for part in parts]
    forms = [one for one in taken if one is not None]
    if len(forms) < len(parts) or any(one.out_features % library.panel for one in forms[:-1]):
        return None
    if len({(one.kind, one.group) for one in forms}) > 1:  # such as 8-bit keys beside 4-bit queries
        return None
    for part in parts:
        part.release()
    if len(forms) == 1:
        return forms[0].packed, forms[0].sums
    packed = lazy_zeros((sum(len(one.packed) for one in forms),), torch.uint8, huge=True)
    return torch.cat([one.packed for one in forms], out=packed), torch.cat([one.sums for one in forms])


def _block(parts: Seq[Any]) -> int:
    """Returns the block of the parts' Hadamard transform."""
    blocks = {getattr(part, "hadamard", 1) for part in parts}
    if len(blocks) > 1 or not all(map(is_block, blocks)):
        raise ValueError(f"layers that read the same rows have Hadamard transforms of {sorted(blocks)}")
    return int(blocks.pop())


def _outliers(of_parts: Seq[Outliers | None]) -> tuple[Tensor, Tensor]:
    """Returns columns int32 [n] and their weights bf16 [n, outputs] for the kernels; none if no part has outliers."""
    found = Outliers.joined(of_parts)
    if found is None:
        return torch.zeros(0, dtype=torch.int32), torch.zeros(0, 0, dtype=torch.bfloat16)
    return found.columns, F.pad(found.weight.T, (0, -len(found.weight) % KEPT_WIDTH)).contiguous()


def _buffer(tensors: Seq[Tensor]) -> Tensor | None:
    return nn.Buffer(torch.cat([t.detach().float() for t in tensors]), persistent=False) if tensors else None


def _bias(part: Any) -> Tensor:
    bias: Tensor | None = getattr(part, "bias", None)
    return torch.zeros(len(part.weight)) if bias is None else bias


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
