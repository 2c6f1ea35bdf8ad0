"""compressed-tensors' form `pack-quantized`, as llm-compressor saves W4A16: several integer codes in one 32-bit word.

<layer>.weight_packed      int32 [out, in / n]     n = 32 / bits codes by input, the lowest bits first
<layer>.weight_scale       [out, groups]           weight = (code - zero) * scale, of its group
<layer>.weight_shape       int64 [2]               out, in
<layer>.weight_zero_point  int32 [out / n, groups] codes by output; the middle code where it is not there
<layer>.weight_g_idx       int32 [in]              the group of each input; -1 where they are in order
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.safetensors_file import FLOATS, Tensor
from models.errors import InvalidSource

if TYPE_CHECKING:
    import torch

FORMAT: Final = "pack-quantized"
SUFFIX: Final = ".weight_packed"
_PARTS: Final = (SUFFIX, ".weight_scale", ".weight_shape", ".weight_zero_point", ".weight_g_idx")


def form_of(quantization: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the bits of a code and the inputs of a group, 0 for one group of all. Raises InvalidSource."""
    groups = quantization.get("config_groups")
    weights = [each["weights"] for each in groups.values() if _has_weights(each)] if isinstance(groups, dict) else []
    forms = [(each.get("type"), each.get("num_bits"), each.get("group_size")) for each in weights]
    kind, bits, size = forms[0] if forms and all(form == forms[0] for form in forms) else (None, None, None)
    if kind != "int" or type(bits) is not int or bits not in (4, 8) or not (size is None or type(size) is int):
        raise InvalidSource(
            "quantization_config: compressed-tensors packs weights here in another way than integers of 4 or 8 bits, "
            "all in one form: import the unquantized checkpoint, then quantize it here"
        )
    return bits, max(size or 0, 0)


def _has_weights(group: object) -> bool:
    return isinstance(group, dict) and isinstance(group.get("weights"), dict)


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, n] words → [rows, n * codes of a word], the lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words[:, :, None] >> shifts) & ((1 << bits) - 1)).flatten(1)


class Words:
    """One linear layer. Raises InvalidSource for tensors that are missing or do not fit each other."""

    def __init__(self, layer: str, stored: Mapping[str, tuple[Tensor, Path]], form: tuple[int, int]) -> None:
        self._layer, self._stored, (self._bits, size) = layer, stored, form
        self.parts = tuple(layer + part for part in _PARTS if layer + part in stored)
        if missing := [part for part in _PARTS[:3] if layer + part not in stored]:
            raise InvalidSource(f"{layer}{missing[0]} is missing: {FORMAT} needs it beside {SUFFIX[1:]}")
        outputs, inputs = (*self._read(".weight_shape").flatten().tolist(), 0, 0)[:2]
        self._group, codes = size or max(inputs, 1), 32 // self._bits
        groups = -(-inputs // self._group)
        shapes = {
            SUFFIX: (outputs, -(-inputs // codes)),
            ".weight_scale": (outputs, groups),
            ".weight_zero_point": (-(-outputs // codes), groups),
            ".weight_g_idx": (inputs,),
        }
        for part, shape in shapes.items():
            tensor = stored[layer + part][0] if layer + part in stored else None
            is_of_kind = tensor is None or (
                tensor.dtype in FLOATS if part == ".weight_scale" else tensor.dtype == "I32"
            )
            if min(outputs, inputs) < 1 or (tensor and (tensor.shape != shape or not is_of_kind)):
                raise InvalidSource(f"{layer}{part} does not fit a weight of {[outputs, inputs]} in groups of {size}")
        self.planned = Tensor(f"{layer}.weight", "BF16", (outputs, inputs))

    def weight(self) -> torch.Tensor:
        """Returns fp32 [out, in]."""
        import torch

        from models.weights.conversion import finite

        outputs, inputs = self.planned.shape
        codes, zeros = unpacked(self._read(SUFFIX), self._bits)[:, :inputs], torch.tensor(1 << (self._bits - 1))
        scales = finite(f"{self._layer}.weight_scale", self._read(".weight_scale").float())
        group = torch.arange(inputs) // self._group
        if (
            self._layer + ".weight_g_idx" in self._stored
            and int((own := self._read(".weight_g_idx").long()).min()) >= 0
        ):
            group = own
        if int(group.max()) >= scales.shape[1]:
            raise InvalidSource(f"{self._layer}.weight_g_idx names a group that there is not")
        if self._layer + ".weight_zero_point" in self._stored:
            zeros = unpacked(self._read(".weight_zero_point").T.contiguous(), self._bits).T[:outputs, group]
        return (codes - zeros).float() * scales[:, group]

    def _read(self, part: str) -> torch.Tensor:
        from models.weights.conversion import read

        return read(self._stored[self._layer + part][1], self._layer + part)
