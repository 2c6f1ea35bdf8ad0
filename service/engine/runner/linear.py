"""Linear layers are dense (bf16, fp32) or 8-bit. `row_blocks` keeps their rows independent of the batch.

They know weights and rows, but no model. 8-bit weights are signed, with one scale per output channel. Activations are
UNSIGNED, with one scale per row, so a row's result depends on that row only. The sum is in integers, so it is exact.

    x ≈ (u - zero) * s_row          u = round(x / s_row) + zero,  s_row = max|x| / reach
    y = s_row * s_channel * Σ (u - zero) * w

Weights that have passed a Hadamard transform (`models.weights.hadamard`) are multiplied by rows that pass it too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.weights.experts import SeparateExperts
from models.weights.hadamard import transformed
from models.weights.int4 import Int4Weight, decoded
from models.weights.loading import Outliers
from service.engine.runner.native.library import library
from service.engine.runner.native.linear import NativeLinear

ACTIVATION_DTYPE = torch.uint8
"""oneDNN has fast kernels for unsigned activations only. Signed ones use a reference loop, thousands of times
slower."""


class DenseLinear(nn.Module):
    """y = x @ weight.T + bias for rows [n, in] whose number the step has padded (see `row_blocks`)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Int8Linear(nn.Module):
    """y = x @ weight.T + bias with 8-bit weights [out, in] int8 and `scale` [out] fp32. Returns x's dtype.

    4-bit weights stay 4-bit for our own kernels. Otherwise they are decoded here, to the same 8-bit layer.

    With `weight_only`, rows are not quantized. `hadamard` is the block of the transform that the weights have passed; 1
    for none. `outliers` are columns that are multiplied in bf16; their 8-bit weights
    are zeros, and rows are quantized without them.

    `weight` stays unchanged (mapped from a file it costs nothing). The kernel's form is made at first use.
    """

    def __init__(
        self,
        weight: Tensor | Int4Weight,
        scale: Tensor,
        bias: Tensor | None = None,
        outliers: Outliers | None = None,
        weight_only: bool = False,
        hadamard: int = 1,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.kernel = int8_kernel(weight.device)
        if weight_only and self.kernel != "native":
            self.kernel = "dequantized"
        self.weight = weight if self.kernel == "native" else decoded(weight)
        self.outliers = outliers
        self.weight_only = weight_only
        self.hadamard = hadamard
        self.scale = nn.Buffer(scale.float(), persistent=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.reach = activation_reach() if self.kernel == "onednn" else 127
        self._multiply: Callable[[Tensor], Tensor] | None = None
        self._native: tuple[NativeLinear, ...] = ()  # in a tuple it is no submodule

    @property
    def native(self) -> NativeLinear | None:
        """The native kernel's form of this layer, after its first use."""
        return self._native[0] if self._native else None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights in the kernel's form, without parameters and buffers."""
        return 2 * self.in_features * self.out_features if self.kernel == "dequantized" else self.weight.nbytes

    def release(self) -> None:
        """Frees the kernel's form of the weights. The next use makes it again."""
        self._multiply, self._native = None, ()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        if not len(rows):
            return x.new_zeros(*x.shape[:-1], self.out_features)
        if self._multiply is None:
            self._multiply = self._prepare()
        return self._multiply(rows).view(*x.shape[:-1], self.out_features)

    def _prepare(self) -> Callable[[Tensor], Tensor]:
        """Returns the kernel's function from rows [n, in] to outputs with bias."""
        kernels = library()
        if self.kernel == "native" and kernels is not None:
            self._native = (NativeLinear(kernels, (self,)),)
            return self._native[0].forward
        weight = decoded(self.weight)
        if self.kernel == "onednn":
            multiply = self._onednn(torch.ops.onednn.qlinear_prepack(weight.contiguous(), None))
            return multiply if self.outliers is None else self._mixed(multiply, self.outliers)
        dense = transformed(weight.float() * self.scale[:, None], self.hadamard).to(torch.bfloat16)
        if self.outliers is not None:
            dense[:, self.outliers.columns.long()] = self.outliers.weight
        return lambda rows: self._biased(F.linear(rows.to(torch.bfloat16), dense).to(rows.dtype))

    def _mixed(self, multiply: Callable[[Tensor], Tensor], outliers: Outliers) -> Callable[[Tensor], Tensor]:
        columns, weights = outliers.columns.long(), outliers.weight.float().T.contiguous()

        def run(rows: Tensor) -> Tensor:
            out = multiply(rows.index_fill(1, columns, 0)).float()
            for values, weight in zip(rows[:, columns].float().T, weights, strict=True):
                out.addcmul_(values[:, None], weight[None])  # one by one: a product's rows depend on their number
            return out.to(rows.dtype)

        return run

    def _onednn(self, packed: Tensor) -> Callable[[Tensor], Tensor]:
        zeros = torch.zeros(self.out_features, dtype=torch.int32)

        def run(rows: Tensor) -> Tensor:
            mixed = transformed(rows, self.hadamard) if self.hadamard > 1 else rows
            codes, row_scale = quantize_rows(mixed, self.reach)
            out = multiply(codes, self.reach + 1, packed, self.scale, zeros)
            return self._biased(out.mul_(row_scale).to(rows.dtype))

        return run

    def _biased(self, out: Tensor) -> Tensor:
        return out if self.bias is None else out + self.bias


def multiply(codes: Tensor, zero: int, packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """Returns scale * Σ (codes - zero) * weight in fp32 [rows, out], with `packed` from qlinear_prepack. The caller
    applies the rows' scales, because they commute with the sum."""
    out: Tensor = torch.ops.onednn.qlinear_pointwise(
        codes, 1.0, zero, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return out


def quantize_rows(rows: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Returns codes (unsigned, zero point reach + 1) and scales [rows, 1] fp32, by each row's own largest magnitude."""
    largest = torch.linalg.vector_norm(rows, float("inf"), dim=-1, keepdim=True, dtype=torch.float32)
    scale = largest.clamp_(min=1e-30).mul_(1.0 / reach)
    codes = (rows * scale.reciprocal()).add_(reach + 1).round_()
    return codes.to(ACTIVATION_DTYPE), scale


@cache
def activation_reach() -> int:
    """Returns 127 if the processor adds products in 32 bits (VNNI, AMX). Older processors add pairs in 16 bits and
    saturate; for them it returns 63 (7-bit activations), because 2 * 127 * 127 fits. It measures the worst case and
    reads no flags."""
    depth = 256
    weight = torch.full((16, depth), 127, dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    codes = torch.full((4, depth), 255, dtype=ACTIVATION_DTYPE)
    out = multiply(codes, 128, packed, torch.ones(16), torch.zeros(16, dtype=torch.int32))
    return 127 if bool((out == 127 * 127 * depth).all()) else 63


def release(model: nn.Module, everything: bool = False) -> None:
    """Calls `Int8Linear.release` for every layer whose form a fused layer cannot take over, or for `everything`. Of an
    expert it could, but not every expert has been used and has one."""
    of_experts = {part for each in model.modules() if isinstance(each, SeparateExperts) for part in each.parts}
    for module in model.modules():
        if isinstance(module, Int8Linear) and (everything or module.native is None or module in of_experts):
            module.release()


def int8_kernel(device: torch.device) -> str:
    """Returns the kernel's name. On a CPU it is `native`, our own kernel, if it is built, else `onednn` if torch has
    its operator. Otherwise it is `dequantized` (bf16 copies of the weights): correct, but not fast."""
    if device.type == "cpu" and library() is not None:
        return "native"
    has_operator = torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qlinear_pointwise")  # type: ignore[no-untyped-call]
    return "onednn" if device.type == "cpu" and has_operator else "dequantized"
