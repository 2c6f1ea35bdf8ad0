"""A form says what a version stores of a quantized layer, and makes it of the layer's weights: in 8 bits, or in 4 bits
where groups of inputs have scales of their own. `models.weights.quantize` has the names and what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

from models.checkpoint.safetensors_file import Tensor
from models.weights import gptq
from models.weights.experts import Expert
from models.weights.gptq import Moments
from models.weights.hadamard import of_weights
from models.weights.int4 import encode, error_of
from models.weights.int8 import quantize_rows, row_scale
from models.weights.names import (
    COLUMNS_SUFFIX,
    GROUP_BASE_SUFFIX,
    GROUP_SCALE_SUFFIX,
    HADAMARD_SUFFIX,
    KEPT_SUFFIX,
    SCALE_SUFFIX,
)
from models.weights.skeleton import Linear

WEIGHT: Final = ".weight"
_ROWS: Final = 4096
"""Outputs that are rounded at a time, so that few of them are wide at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What the inputs of the layers are like on `tokens` of text, by the layers' modules: outlier columns, mean squares
    or second moments, as the precision uses them; and the block of the Hadamard transform that they pass, 1 for none.
    """

    tokens: int
    block: int
    outliers: dict[str, torch.Tensor] = field(default_factory=dict)
    importance: dict[str, torch.Tensor] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)

    def importance_of(self, linear: Linear) -> torch.Tensor | None:
        """Returns the importance of a layer's inputs; for gate and up of an expert it is that of the whole mixture."""
        expert = Expert.of_name(linear.module)
        return self.importance.get(linear.module if expert is None or expert.is_down else expert.module)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """The tensors of a layer by their suffixes, and the share of the squares of its outputs that it loses, if known."""

    tensors: dict[str, torch.Tensor]
    error: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EightBits:
    """Codes, and a scale for each output. `hadamard` is the block of the transform, 1 for none. `columns` (ascending)
    stay in 16 bits."""

    hadamard: int = 1
    columns: torch.Tensor | None = None

    def tensors(self, module: str, shape: tuple[int, int]) -> list[Tensor]:
        """Returns what is stored of a layer with weights of this shape [out, in]; its weight comes first."""
        tensors = [Tensor(module + WEIGHT, "I8", shape), Tensor(module + SCALE_SUFFIX, "F32", shape[:1])]
        tensors += _of_transform(module, self.hadamard)
        if self.columns is not None:
            count = len(self.columns)
            tensors.append(Tensor(module + COLUMNS_SUFFIX, "I32", (count,)))
            tensors.append(Tensor(module + KEPT_SUFFIX, "BF16", (shape[0], count)))
        return tensors

    def made(self, weight: torch.Tensor, linear: Linear, inputs: Inputs) -> Made:
        """Makes these tensors of the layer's weights [out, in]."""
        tensors = _transform(self.hadamard)
        if self.columns is not None:
            columns = self.columns.long()
            tensors |= {COLUMNS_SUFFIX: self.columns, KEPT_SUFFIX: weight[:, columns].to(torch.bfloat16)}
            weight = weight.index_fill(1, columns, 0)
        moments = inputs.moments.get(linear.module)
        codes, scales = zip(*(self._rounded(part, moments) for part in torch.split(weight, _ROWS)), strict=True)
        return Made({WEIGHT: torch.cat(codes), SCALE_SUFFIX: torch.cat(scales), **tensors})

    def _rounded(self, weight: torch.Tensor, moments: Moments | None) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = _mixed(weight, self.hadamard)
        return quantize_rows(mixed) if moments is None else gptq.quantize_rows(mixed, self.hadamard, moments)


@dataclass(frozen=True, slots=True, eq=False)
class FourBits:
    """Codes of half a byte, a scale for each output, and a scale and a base for each `group` of inputs. `hadamard` is
    as in EightBits."""

    group: int
    hadamard: int = 1

    def tensors(self, module: str, shape: tuple[int, int]) -> list[Tensor]:
        """Does as EightBits.tensors."""
        out, depth = shape
        return [
            Tensor(module + WEIGHT, "U8", (out, depth // 2)),
            Tensor(module + SCALE_SUFFIX, "F32", (out,)),
            Tensor(module + GROUP_SCALE_SUFFIX, "U8", (out, depth // self.group)),
            Tensor(module + GROUP_BASE_SUFFIX, "I8", (out, depth // self.group)),
            *_of_transform(module, self.hadamard),
        ]

    def made(self, weight: torch.Tensor, linear: Linear, inputs: Inputs) -> Made:
        """Does as EightBits.made."""
        mixed = _mixed(weight, self.hadamard)
        scale = row_scale(mixed)
        moments = inputs.moments.get(linear.module) if self.hadamard > 1 else None
        if moments is None:
            importance = inputs.importance_of(linear) if self.hadamard == 1 else None
            coded = encode(mixed, scale, self.group, importance)
            error = error_of(coded, mixed, scale, importance)
        else:
            coded = gptq.quantize_groups(mixed, scale, self.group, self.hadamard, moments)
            error = gptq.loss_of(coded.decoded() * scale[:, None], mixed, self.hadamard, moments)
        groups = {GROUP_SCALE_SUFFIX: coded.group_scale, GROUP_BASE_SUFFIX: coded.group_base}
        return Made({WEIGHT: coded.codes, SCALE_SUFFIX: scale, **groups, **_transform(self.hadamard)}, error)


Form = EightBits | FourBits


def _mixed(weight: torch.Tensor, block: int) -> torch.Tensor:
    return of_weights(weight, block) if block > 1 else weight


def _transform(block: int) -> dict[str, torch.Tensor]:
    return {HADAMARD_SUFFIX: torch.tensor([block], dtype=torch.int32)} if block > 1 else {}


def _of_transform(module: str, block: int) -> list[Tensor]:
    return [Tensor(module + HADAMARD_SUFFIX, "I32", (1,))] if block > 1 else []
