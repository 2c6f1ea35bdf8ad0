"""FP8 checkpoints hold the weights of linear layers in 8-bit floating numbers beside a scale of each tensor, of each
output, or of each block of outputs and inputs.

    <layer>.weight            F8_E4M3 or F8_E5M2 [out, in]
    <layer>.weight_scale_inv  [out / 128, in / 128]     DeepSeek, Qwen: of blocks, in spite of its name a factor
    <layer>.weight_scale      [], [1], [out], [out, 1] or of blocks: compressed-tensors, AutoFP8, ModelOpt

Micikevicius et al. 2022, FP8 Formats for Deep Learning. Scales of activations and of the KV cache are left out: nothing
here computes in FP8.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.checkpoint.safetensors_file import FLOATS, FP8, Tensor
from models.errors import InvalidSource

if TYPE_CHECKING:
    import torch

SUFFIX: Final = ".weight"
_SCALES: Final = ("_scale_inv", "_scale")
UNUSED: Final = (".input_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".activation_scale")
"""Endings of tensors that only a computation in FP8 reads."""
_BLOCK: Final = (128, 128)


def block_of(quantization: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the outputs and inputs of a block, as `quantization_config` says. Raises InvalidSource for another form
    than FP8."""
    method, groups = quantization["quant_method"], quantization.get("config_groups") or {}
    block = quantization.get("weight_block_size")
    if method == "modelopt" and quantization.get("quant_algo") != "FP8":
        raise InvalidSource(f"quantization_config: modelopt's {quantization.get('quant_algo')!r} is not read; FP8 is")
    if method == "compressed-tensors":
        of_groups = groups.values() if isinstance(groups, dict) else ()
        weights = [
            each["weights"] for each in of_groups if isinstance(each, dict) and isinstance(each.get("weights"), dict)
        ]
        if {f"{each.get('type')} {each.get('num_bits')}" for each in weights} != {"float 8"}:
            raise InvalidSource(
                f"quantization_config: compressed-tensors of the format {str(quantization.get('format'))[:40]!r} is "
                "not read; 8-bit floats and pack-quantized are: import the unquantized checkpoint, then quantize here"
            )
        block = next((each["block_structure"] for each in weights if each.get("block_structure")), None)
    if block is None:
        return _BLOCK
    if not isinstance(block, list) or len(block) != 2 or not all(type(size) is int and size > 0 for size in block):
        raise InvalidSource(f"quantization_config: blocks of {str(block)[:40]} are none: two sizes are expected")
    return block[0], block[1]


class Scaled:
    """The weights `name` of one layer. Raises InvalidSource where its scale is missing or does not fit."""

    def __init__(self, name: str, stored: Mapping[str, tuple[Tensor, Path]], block: tuple[int, int]) -> None:
        self._stored, self._block = stored, block
        weight = stored[name][0]
        scale = next((name + each for each in _SCALES if name + each in stored), None)
        if scale is None:
            raise InvalidSource(f"{name} is in FP8 without its scale, {name}_scale_inv or {name}_scale")
        shape = stored[scale][0].shape
        outputs, inputs = weight.shape if len(weight.shape) == 2 else (0, 0)
        blocks = (-(-outputs // block[0]), -(-inputs // block[1]))
        self._is_of_blocks = shape == blocks and shape != (outputs, 1)
        fits = self._is_of_blocks or shape in ((), (1,), (1, 1), (outputs,), (outputs, 1))
        if not outputs or not fits or stored[scale][0].dtype not in FLOATS:
            raise InvalidSource(f"{scale} {list(shape)} does not fit {name} {list(weight.shape)} in blocks of {block}")
        self.planned = Tensor(name, "BF16", weight.shape)
        self.parts = (name, scale)

    def weight(self) -> torch.Tensor:
        """Returns fp32 [out, in]."""
        from models.weights.conversion import finite, read

        codes, scale = (read(self._stored[part][1], part).float() for part in self.parts)
        if self._is_of_blocks:
            scale = scale.repeat_interleave(self._block[0], 0).repeat_interleave(self._block[1], 1)
            scale = scale[: codes.shape[0], : codes.shape[1]]
        elif scale.numel() > 1:
            scale = scale.view(-1, 1)
        return finite(self.parts[0], codes * scale)


def is_fp8(name: str, tensor: Tensor) -> bool:
    """Whether a tensor holds weights in FP8."""
    return tensor.dtype in FP8 and name.endswith(SUFFIX)
