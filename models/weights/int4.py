"""This module encodes weights in 4 bits, as a compressed form of 8-bit weights, and decodes them.

A group of neighbouring inputs of one output shares a scale and a base. Together they turn a code into an 8-bit weight:

    weight8 = base + (code * group_scale >> 4)      code 0 to 15, group_scale 1 to 255, base -128 to 127
    weight  ~ weight8 * scale                       scale: one for each output, as in `models.weights.int8`

All is in whole numbers up to the last line. So a 4-bit layer is exactly the 8-bit layer of its decoded weights, with
every kernel. A group of 32 takes 4.5 bits a weight, a group of 128 takes 4.125.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

INT4: Final[torch.dtype] = torch.uint4  # type: ignore[attr-defined]
"""The dtype that stands for an Int4Weight where tensors have theirs."""
GROUPS: Final = (32, 128)
"""Inputs of one output that share a scale; the first one is the default."""
_STEPS: Final = 16
"""A group's scale counts in sixteenths of an 8-bit step."""
_LARGEST_CODE: Final = 15
_WIDTHS: Final = (1.0, 0.9, 0.8, 15 / 14, 15 / 13, 15 / 12)
"""Widths that the search begins with, in widths of the group. A narrower one is more exact for all but the extremes. A
wider one has 14, 13 or 12 steps in the group: so the steps of weights are found that were in 4 bits before."""
_REFINEMENTS: Final = 2
_SAMPLE: Final = 512
"""Outputs that are looked at together."""
_CHUNK: Final = 1 << 18
"""Weights that are searched at a time, so that they stay in the processor's cache."""


_Found = tuple[Tensor, Tensor, Tensor, Tensor]
"""The error of each group, and codes, group scales and bases in whole numbers, as floats."""


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight:
    """4-bit weights [out, in]: codes uint8 [out, in / 2], two inputs in a byte, the first in its lower half;
    group_scale uint8 and group_base int8 [out, in / group]."""

    codes: Tensor
    group_scale: Tensor
    group_base: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return INT4

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.codes.shape[0], 2 * self.codes.shape[1]))

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def group(self) -> int:
        return int(self.shape[1] // self.group_scale.shape[1])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.group_scale.nbytes + self.group_base.nbytes

    def __len__(self) -> int:
        return len(self.codes)

    def to(self, device: torch.device) -> Int4Weight:
        return Int4Weight(self.codes.to(device), self.group_scale.to(device), self.group_base.to(device))

    def decoded(self) -> Tensor:
        """Returns the 8-bit weights, int8 [out, in]."""
        out, groups = self.group_scale.shape
        codes = torch.stack((self.codes & _LARGEST_CODE, self.codes >> 4), dim=-1).view(out, groups, -1)
        steps = (codes.to(torch.int16) * self.group_scale[..., None].to(torch.int16)) >> 4
        return (steps + self.group_base[..., None]).to(torch.int8).view(self.shape)


def decoded(weight: Tensor | Int4Weight) -> Tensor:
    """Returns 8-bit weights [out, in] of 4-bit ones; other weights as they are."""
    return weight.decoded() if isinstance(weight, Int4Weight) else weight


def joined(weights: Sequence[Tensor | Int4Weight]) -> Tensor | Int4Weight:
    """Returns the weights one below the other; in 4 bits if all are, in groups of one size."""
    found = [weight for weight in weights if isinstance(weight, Int4Weight)]
    if len(found) < len(weights) or len({weight.group for weight in found}) > 1:
        return torch.cat([decoded(weight) for weight in weights])
    fields = zip(*((weight.codes, weight.group_scale, weight.group_base) for weight in found), strict=True)
    return Int4Weight(*(torch.cat(each) for each in fields))


def fits(in_features: int, group: int) -> bool:
    """Whether a layer of so many inputs can have 4-bit weights."""
    return in_features % group == 0


def encode(weight: Tensor, scale: Tensor, group: int, importance: Tensor | None = None) -> Int4Weight:
    """Returns the 4-bit form of weights [out, in] for the outputs' scales [out]. It minimizes the squared error of each
    group, times the `importance` [in] of the inputs, such as their mean square. The weights are at most 127 scales."""
    out, depth = weight.shape
    share = _share(importance, depth, group)
    codes = torch.empty(out, depth, dtype=torch.uint8)
    steps, bases = (torch.empty(out, depth // group) for _ in range(2))
    rows = max(1, _CHUNK // depth)
    for first in range(0, out, rows):
        some = slice(first, first + rows)
        weight8 = (weight[some].float() / scale[some, None]).view(-1, depth // group, group)
        _, rounded, steps[some], bases[some] = _search(weight8, share)
        codes[some] = rounded.view(-1, depth).to(torch.uint8)
    return packed(codes, steps, bases)


def packed(codes: Tensor, steps: Tensor, bases: Tensor) -> Int4Weight:
    """Returns the 4-bit form of codes uint8 [out, in], and of group scales and bases in whole numbers, as floats
    [out, in / group]."""
    pairs = codes.view(len(codes), -1, 2)
    return Int4Weight(pairs[..., 0] | pairs[..., 1] << 4, steps.to(torch.uint8), bases.to(torch.int8))


def lines_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the group scales and bases [..] of 8-bit weights before rounding, [.., group], that a search finds."""
    _, _, steps, bases = _search(x, torch.ones(x.shape[-1]))
    return steps, bases


def nearest(x: Tensor, steps: Tensor, bases: Tensor, out: Tensor | None = None) -> Tensor:
    """Returns the codes of 8-bit weights before rounding, as floats; shapes broadcast."""
    codes = torch.mul(x - bases + 0.5, _STEPS / steps, out=out)
    return codes.round_().clamp_(0, _LARGEST_CODE)


def values_of(codes: Tensor, steps: Tensor, bases: Tensor) -> Tensor:
    """Returns the 8-bit weights of codes, as floats; shapes broadcast."""
    return (codes * steps / _STEPS).floor_().add_(bases)


def rough_error(weight: Tensor, scale: Tensor, group: int, importance: Tensor | None = None) -> float:
    """Returns the error of 4-bit weights without a search, as a share of the weights' own squares, both times the
    importance: a quick measure of how much a layer loses. It looks at no more than _SAMPLE outputs."""
    some = sampled(weight)
    exact, share = weight[some].float(), _share(importance, weight.shape[1], group).view(-1)
    error = roughly(weight[some], scale[some], group) - exact
    return float((error.square() * share).sum() / (exact.square() * share).sum().clamp(min=1e-30))


def sampled(weight: Tensor, most: int = _SAMPLE) -> slice:
    """Returns no more than so many outputs of weights [out, in], evenly apart."""
    return slice(0, None, -(-len(weight) // most))


def roughly(weight: Tensor, scale: Tensor, group: int) -> Tensor:
    """Returns the weights [out, in], fp32, that 4 bits without a search stand for."""
    x = (weight.float() / scale[:, None]).view(len(weight), -1, group)
    low, high = x.amin(-1), x.amax(-1)
    line = _rounded(x, torch.ones(group), (high - low) * (_STEPS / _LARGEST_CODE), low)
    values = values_of(line[1], line[2][..., None], line[3][..., None])
    return values.view(weight.shape) * scale[:, None]


def error_of(coded: Int4Weight, weight: Tensor, scale: Tensor, importance: Tensor | None = None) -> float:
    """Returns the error of 4-bit weights as `rough_error` does, of all outputs."""
    share = _share(importance, weight.shape[1], coded.group).view(-1)
    wrong = whole = 0.0
    for first in range(0, len(weight), _SAMPLE):
        some = slice(first, first + _SAMPLE)
        part = Int4Weight(coded.codes[some], coded.group_scale[some], coded.group_base[some])
        exact = weight[some].float()
        error = part.decoded() * scale[some, None] - exact
        wrong += float((error.square_() * share).sum())
        whole += float((exact.square() * share).sum())
    return wrong / max(whole, 1e-30)


def _share(importance: Tensor | None, depth: int, group: int) -> Tensor:
    """Returns how much each input counts, [groups, group]: 1 in the mean, and nearly nothing at least. An importance
    that is no number, as of a model that overflows on the text, tells nothing."""
    is_known = importance is not None and bool(importance.isfinite().all())
    share = importance.float() if importance is not None and is_known else torch.ones(depth)
    return (share / share.mean().clamp(min=1e-30) + 1e-4).view(-1, group)


def _search(x: Tensor, share: Tensor) -> _Found:
    """Returns the best line of each group of 8-bit weights before rounding, [.., group]. Each width of the search is
    refined by weighted least squares: the line that turns codes into weights."""
    low, high = x.amin(-1), x.amax(-1)
    total = share.sum(-1)
    best = _rounded(x, share, (high - low) * (_STEPS / _LARGEST_CODE), low)
    for times in _WIDTHS:
        width = (high - low) * times
        steps, base = width * (_STEPS / _LARGEST_CODE), (low + high - width) / 2
        for _ in range(_REFINEMENTS):
            line = _rounded(x, share, steps, base)
            best = _better(best, line)
            codes = line[1]
            mean_code, mean = ((codes * share).sum(-1) / total, (x * share).sum(-1) / total)
            spread = codes - mean_code[..., None]
            slope = (spread * x * share).sum(-1) / (spread.square() * share).sum(-1).clamp(min=1e-9)
            steps, base = slope * _STEPS, mean - slope * mean_code
        best = _better(best, _rounded(x, share, steps, base))
    return best


def _rounded(x: Tensor, share: Tensor, steps: Tensor, base: Tensor) -> _Found:
    """Returns what whole numbers near these scales and bases give."""
    steps = steps.round().clamp(1, 255)
    reach = (steps * _LARGEST_CODE / _STEPS).floor()
    at = steps[..., None]
    codes = ((x - base[..., None]) * _STEPS / at).round_().clamp_(0, _LARGEST_CODE)
    values = values_of(codes, at, torch.zeros(()))
    base = ((x - values) * share).sum(-1).div_(share.sum(-1)).round_()
    base = torch.minimum(base.clamp(min=-128), 127 - reach)
    codes = nearest(x, at, base[..., None])
    error = values_of(codes, at, base[..., None]).sub_(x).square_().mul_(share).sum(-1)
    return error, codes, steps, base


def _better(one: _Found, other: _Found) -> _Found:
    """Returns, for each group, the finding with the smaller error."""
    choose = other[0] < one[0]
    error, steps, base = (torch.where(choose, other[at], one[at]) for at in (0, 2, 3))
    return error, torch.where(choose[..., None], other[1], one[1]), steps, base
