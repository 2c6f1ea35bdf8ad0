"""The filters top-k, top-p, min-p and typical-p in torch operations: each says which tokens may be drawn. A filter
knows one row, its scores and weights; no chance.

Each filter gives the weights of the row with 0 for what it drops, and sees what those before it left. The first three
keep bit for bit what `native/src/sampling.h` keeps.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from service.engine.protocol.messages import SamplingParams
from service.engine.runner.sampling.weights import masses_of


def filtered(scores: Tensor, weights: Tensor, params: SamplingParams) -> Tensor:
    """The weights of what all of a request's filters keep."""
    if params.top_k > 0:
        weights = keep_top_k(scores, weights, params.top_k)
    if params.top_p < 1.0:
        weights = keep_top_p(weights, params.top_p)
    if params.min_p > 0.0:
        weights = keep_min_p(weights, params.min_p)
    if params.typical_p < 1.0:
        weights = keep_typical(weights, params.typical_p)
    return weights


def keep_top_k(scores: Tensor, weights: Tensor, count: int) -> Tensor:
    """The `count` highest scores, ties by lower id."""
    least = scores.topk(min(count, len(scores))).values[-1]
    above = scores > least
    tied = scores == least
    room = count - above.sum()
    return weights * (above | (tied & (tied.cumsum(0) <= room)))


def keep_top_p(weights: Tensor, top_p: float) -> Tensor:
    """The fewest, likeliest tokens with top_p of the mass, one at least, ties by lower id (Holtzman et al., 2020).

    Tokens lighter than (1 - top_p) / vocabulary of the mass have less than 1 - top_p of it together: they need no sort.
    """
    masses = masses_of(weights)
    total = int(masses.sum())
    light = int((1.0 - top_p) * total / len(weights)) - 2  # an integer: beside a float, masses are compared in fp32
    ids = (masses > max(0, light)).nonzero()[:, 0]
    ids = ids[weights[ids].sort(descending=True, stable=True).indices]
    before = masses[ids].cumsum(0) - masses[ids]
    wanted = min(total, max(1, math.ceil(top_p * float(total))))
    kept = ids[before < wanted]
    return torch.zeros_like(weights).index_copy_(0, kept, weights[kept])


def keep_min_p(weights: Tensor, min_p: float) -> Tensor:
    """Tokens at least min_p times as likely as the likeliest, whose weight is 1."""
    return weights * (weights >= torch.tensor(min_p, dtype=weights.dtype))


def keep_typical(weights: Tensor, typical_p: float) -> Tensor:
    """Tokens whose surprise is nearest to the entropy, until typical_p is reached (Meister et al., 2023)."""
    probabilities = weights.double() / weights.double().sum()
    entropy = torch.special.entr(probabilities).sum()
    distance = (-probabilities.log() - entropy).abs()
    nearest, order = distance.sort(stable=True)
    last = (probabilities[order].cumsum(0) < typical_p).sum().clamp_(max=len(weights) - 1)
    kept: Tensor = distance <= nearest[last]
    return weights * kept
