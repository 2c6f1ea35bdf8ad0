"""MXFP4 packs a checkpoint's fused experts: 4-bit floating codes in blocks of 32 that share a power of two, as gpt-oss
is published.

    <tensor>_blocks  uint8 [experts, out, blocks, 16]    a byte holds two codes, the first in its lower half
    <tensor>_scales  uint8 [experts, out, blocks]        weight = value(code) * 2 ^ (scale - 127)
    unpacked         bf16  [experts, blocks * 32, out]   <tensor>

OCP Microscaling Formats, version 1.0, 2023: elements E2M1, scales E8M0.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.checkpoint.config_policy import MXFP4
from models.checkpoint.safetensors_file import Tensor
from models.errors import InvalidSource

if TYPE_CHECKING:
    import torch

SUFFIX: Final = "_blocks"
_SCALES: Final = "_scales"
_BYTES: Final = 16
_BIAS: Final = 127
_NOT_A_NUMBER: Final = 255
_MAGNITUDES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Blocks:
    """One fused tensor, `name`. Raises InvalidSource for parts that are missing or do not fit each other."""

    def __init__(self, name: str, stored: Mapping[str, tuple[Tensor, Path]]) -> None:
        self.name, self._stored = name, stored
        if name + _SCALES not in stored:
            raise InvalidSource(f"{name}{_SCALES} is missing: {MXFP4} needs it beside {SUFFIX}")
        codes, scales = stored[name + SUFFIX][0], stored[name + _SCALES][0]
        fits = len(codes.shape) == 4 and codes.shape[:3] == scales.shape and codes.shape[3] == _BYTES
        if not fits or codes.dtype != "U8" or scales.dtype != "U8":
            raise InvalidSource(f"{name}: {SUFFIX} and {_SCALES} do not fit each other in blocks of {2 * _BYTES}")
        experts, outputs, blocks = scales.shape
        self.planned = Tensor(name, "BF16", (experts, blocks * 2 * _BYTES, outputs))
        self.parts = (name + SUFFIX, name + _SCALES)

    def weight(self) -> torch.Tensor:
        """Returns bf16 [experts, in, out]. Raises InvalidSource for a scale that is no number."""
        import torch

        from models.weights.conversion import read

        codes, scales = (read(self._stored[part][1], part) for part in self.parts)
        if bool((scales == _NOT_A_NUMBER).any()):
            raise InvalidSource(f"{self.name}{_SCALES} has a scale that is no number; the checkpoint is damaged")
        values = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)])
        out = torch.empty(self.planned.shape, dtype=torch.bfloat16)
        for expert, (blocks, powers) in enumerate(zip(codes, scales, strict=True)):
            pairs = torch.stack((values[(blocks & 15).int()], values[(blocks >> 4).int()]), dim=-1).flatten(-2)
            exact = torch.ldexp(pairs, powers.int()[..., None] - _BIAS)
            out[expert] = exact.flatten(1).T
        return out
