"""Weights and masses of a row's tokens in torch operations, bit for bit those of `native/src/sampling.h`.

weight  e^((score - largest) / temperature) in fp32: at most 1, and 0 below e^CUT
mass    the weight in units of 2^-40, an integer: sums of masses are exact, and so do not depend on their order
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

CUT: Final = -27.5
UNIT: Final = float(2**40)
_SHIFT: Final = 12582912.0  # 1.5 · 2^23: adding and subtracting it rounds to an integer, ties to even
_POLYNOMIAL: Final = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
)  # fmt: skip


def weights_of(scores: Tensor, temperature: float) -> Tensor:
    """[vocabulary], for a finite largest score. The exponential is Cephes' expf without fused operations."""
    x = (scores - scores.max()) * (1.0 / temperature)
    z = x.clamp(min=CUT)
    n = (z * 1.44269504088896341 + _SHIFT) - _SHIFT
    r = (z + n * -0.693359375) + n * 2.12194440e-4
    p = torch.full_like(r, _POLYNOMIAL[0])
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + coefficient
    p = (p * (r * r) + r) + 1.0
    power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    return (p * power).masked_fill_(x < CUT, 0.0)


def masses_of(weights: Tensor) -> Tensor:
    """int64, at most 2^40 each."""
    return (weights.double() * UNIT).round_().long()
