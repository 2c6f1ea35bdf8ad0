"""The filters top-k, top-p, min-p and typical-p in torch operations: each says which tokens may be drawn. A filter
knows one row, its scores and weights; no chance.

Each filter gives the weights of the row with 0 for what it drops, and sees what those before it left. The first three
keep bit for bit what `native/src/sampling.h` keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from service.engine.protocol.messages import NEUTRAL, SamplingParams

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


def filtered(scores: Tensor, weights: Tensor, params: SamplingParams) -> Tensor:
    """The weights of what all of a request's filters keep."""
    for name, keep in KEEP.items():
        if (value := getattr(params, name)) != NEUTRAL[name]:
            weights = keep(scores, weights, value)
    return weights


def is_native(params: SamplingParams) -> bool:
    """Whether the native kernels have all of a request's filters."""
    return all(getattr(params, name) == NEUTRAL[name] for name in KEEP if name not in NATIVE)


def keep_top_k(scores: Tensor, weights: Tensor, count: int) -> Tensor:
    """The `count` highest scores, ties by lower id."""
    least = scores.topk(min(count, len(scores))).values[-1]
    above = scores > least
    tied = scores == least
    room = count - above.sum()
    return weights * (above | (tied & (tied.cumsum(0) <= room)))


def keep_top_p(scores: Tensor, weights: Tensor, top_p: float) -> Tensor:
    """The fewest, likeliest tokens with top_p of the mass, one at least, ties by lower id (Holtzman et al., 2020).

    Tokens lighter than (1 - top_p) / vocabulary of the mass have less than 1 - top_p of it together: they need no sort.
    """
    masses = masses_of(weights)
    total = int(masses.sum())
    light = int((1.0 - top_p) * total / len(weights)) - 2  # an integer: beside a float, masses are compared in fp32
    ids = (masses > max(0, light)).nonzero()[:, 0]
    ids = ids[weights[ids].sort(descending=True, stable=True).indices]
    before = masses[ids].cumsum(0) - masses[ids]
    mass = min(total, max(1, math.ceil(top_p * float(total))))
    kept = ids[before < mass]
    return torch.zeros_like(weights).index_copy_(0, kept, weights[kept])


def keep_min_p(scores: Tensor, weights: Tensor, min_p: float) -> Tensor:
    """Tokens at least min_p times as likely as the likeliest, whose weight is 1."""
    return weights * (weights >= torch.tensor(min_p, dtype=weights.dtype))


def keep_typical(scores: Tensor, weights: Tensor, typical_p: float) -> Tensor:
    """Tokens whose surprise is nearest to the entropy, until typical_p is reached (Meister et al., 2023)."""
    probabilities = weights.double() / weights.double().sum()
    entropy = torch.special.entr(probabilities).sum()
    distance = (-probabilities.log() - entropy).abs()
    nearest, order = distance.sort(stable=True)
    last = (probabilities[order].cumsum(0) < typical_p).sum().clamp_(max=len(weights) - 1)
    kept: Tensor = distance <= nearest[last]
    return weights * kept


def keep_top_n_sigma(scores: Tensor, weights: Tensor, count: float) -> Tensor:
    """Tokens whose logit is at most `count` standard deviations of all finite logits below the largest one that is left
    (Tang et al., 2024); typical_p may have dropped the likeliest token."""
    finite = scores[scores.isfinite()].double()
    largest = scores[masses_of(weights) > 0].max()
    return weights * (scores >= largest - count * finite.std(correction=0))


KEEP: Final[Mapping[str, Callable[[Tensor, Tensor, Any], Tensor]]] = {
    "top_k": keep_top_k,
    "top_p": keep_top_p,
    "min_p": keep_min_p,
    "typical_p": keep_typical,
    "top_n_sigma": keep_top_n_sigma,
}
"""The filters in the order in which they act, by their parameters."""
NATIVE: Final = frozenset({"top_k", "top_p", "min_p"})
