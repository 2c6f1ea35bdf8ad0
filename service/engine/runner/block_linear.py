"""A block layer multiplies by the blocks of a GGUF file as they are, with our own kernels.

The kernels quantize rows by groups of 32, as `blocks.h` says. Without kernels, and on a GPU, the blocks are dequantized
to bf16, and rows stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.blocks import BlockWeight
from models.weights.int4 import Int4Weight
from models.weights.loading import Outliers
from service.engine.runner.linear import Int8Linear
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import NativeLinear


class BlockLinear(nn.Module):
    """y = x @ weight.T + bias. Returns x's dtype. `weight` stays unchanged (mapped from a file it costs nothing). The
    kernel's form is made at first use."""

    def __init__(self, weight: BlockWeight, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.out_features, self.in_features = weight.shape
        self.is_native = weight.device.type == "cpu" and library() is not None
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self._made: tuple[NativeLinear | Tensor, ...] = ()  # in a tuple it is no submodule

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in the form that is computed, without the bias."""
        return self.weight.nbytes if self.is_native else 2 * self.in_features * self.out_features

    def release(self) -> None:
        """Frees the made form of the weights. The next use makes it again."""
        self._made = ()

    def _form(self) -> NativeLinear | Tensor:
        kernels = library() if self.is_native else None
        return self.weight.dequantized(torch.bfloat16) if kernels is None else NativeLinear(kernels, (self,))

    def forward(self, x: Tensor) -> Tensor:
        if not self._made:
            self._made = (self._form(),)
        made = self._made[0]
        if isinstance(made, Tensor):
            out = F.linear(x.to(torch.bfloat16), made).to(x.dtype)
            return out if self.bias is None else out + self.bias
        rows = x.reshape(-1, self.in_features)
        found: Tensor = made(rows) if len(rows) else rows.new_zeros(0, self.out_features)
        return found.view(*x.shape[:-1], self.out_features)


def coded_linear(
    weight: Tensor | Int4Weight | BlockWeight,
    scale: Any,
    bias: Tensor | None = None,
    outliers: Outliers | None = None,
    weight_only: bool = False,
    hadamard: int = 1,
) -> nn.Module:
    """Returns the layer of weights that are no floats (`models.weights.loading.LinearFactory`)."""
    if isinstance(weight, BlockWeight):
        return BlockLinear(weight, bias)
    return Int8Linear(weight, scale, bias, outliers, weight_only, hadamard)


def release(model: nn.Module) -> None:
    """Frees the kernel's form of all block layers: a fused layer makes its own."""
    for module in model.modules():
        if isinstance(module, BlockLinear):
            module.release()
