"""Intervals say how far a measured figure may lie from the true one: 95 % intervals of means, shares, differences and
medians. The module measures nothing.

Tokens of one text depend on each other, so a text is one observation, not a token (clustered standard errors: Miller,
Adding Error Bars to Evals, arXiv:2411.00640, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Annotated, Final

import msgspec

_PROBABILITY: Final = 0.975
_Z: Final = NormalDist().inv_cdf(_PROBABILITY)
LARGEST_EXPONENT: Final = 700.0
"""exp of more overflows a double."""
Range = tuple[float, float]


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The 95 % interval of a figure, and the number of `items` that the figure rests on: scored tokens, answers,
    questions or rounds."""

    low: float
    high: float
    items: Annotated[int, msgspec.Meta(ge=0)]


def mean_of_groups(sums: Sequence[float], sizes: Sequence[int]) -> Range | None:
    """Returns the interval of the mean of all items, which come in independent groups; None for fewer than two groups.

    With m = Σ sum / Σ size over k groups: m ± t(k - 1) · sqrt(k / (k - 1) · Σ (sum - m · size)²) / Σ size, Student's t.
    Source: the ratio estimator of Cochran, Sampling Techniques, 3rd edition, 1977, section 6.4.
    """
    error = _standard_error(sums, sizes)
    if error is None:
        return None
    mean, reach = sum(sums) / sum(sizes), _student(len(sums) - 1) * error
    return mean - reach, mean + reach


def mean(values: Sequence[float]) -> Range | None:
    """Returns the interval of the mean of independent values (Student's t); None for fewer than two."""
    return mean_of_groups(values, [1] * len(values))


def of_exponential(logarithms: Range | None) -> Range | None:
    """Returns the interval of exp(x) - 1 by the interval of x."""
    if logarithms is None:
        return None
    low, high = (math.expm1(min(each, LARGEST_EXPONENT)) for each in logarithms)
    return low, high


def share(right: float, total: float) -> Range:
    """Returns the interval of a share of independent items. Source: Wilson, Probable Inference, 1927."""
    p, z2 = right / total, _Z * _Z
    middle = (p + z2 / (2 * total)) / (1 + z2 / total)
    reach = _Z / (1 + z2 / total) * math.sqrt(p * (1 - p) / total + z2 / (4 * total * total))
    return min(p, max(0.0, middle - reach)), max(p, min(1.0, middle + reach))  # p, against rounding at 0 and 1


def share_of_groups(rights: Sequence[int], sizes: Sequence[int]) -> Range:
    """Returns the interval of a share of items that come in groups: Wilson's, with as many items as independent ones
    would have to be for the groups' variance. Source: Korn and Graubard, Survey Methodology 24, 1998."""
    right, total = sum(rights), sum(sizes)
    p, error = right / total, _standard_error(rights, sizes) or 0.0
    effect = max(1.0, error * error * total / (p * (1 - p))) if 0 < right < total else 1.0
    return share(right / effect, total / effect)


def difference_of_shares(first: tuple[int, int], second: tuple[int, int]) -> Range:
    """Returns the interval of the first share less the second; each is (right, asked).

    Source: method 10 of Newcombe, Interval Estimation for the Difference between Independent Proportions, 1998.
    """
    (a, b), (low_a, high_a), (low_b, high_b) = (r / n for r, n in (first, second)), share(*first), share(*second)
    return a - b - math.hypot(a - low_a, high_b - b), a - b + math.hypot(high_a - a, b - low_b)


def median(values: Sequence[float]) -> Range | None:
    """Returns the interval of the median: the order statistics that a fair coin places around it. None for fewer than
    six values, which have no such interval. Source: Conover, Practical Nonparametric Statistics, 3rd edition, 3.2."""
    count, tail, cut = len(values), 0.0, 0
    while 2 * (tail + math.comb(count, cut) / 2**count) <= 2 * (1 - _PROBABILITY):
        tail += math.comb(count, cut) / 2**count
        cut += 1
    ordered = sorted(values)
    return (ordered[cut - 1], ordered[count - cut]) if cut else None


def _standard_error(sums: Sequence[float], sizes: Sequence[int]) -> float | None:
    groups, items = len(sums), sum(sizes)
    if groups < 2:
        return None
    center = sum(sums) / items
    squares = math.fsum((each - center * size) ** 2 for each, size in zip(sums, sizes, strict=True))
    return math.sqrt(groups / (groups - 1) * squares) / items


def _student(freedom: int) -> float:
    """Returns the 97.5 % point of Student's t: exact for 1 and 2 degrees of freedom, else within 1 % (Abramowitz and
    Stegun, Handbook of Mathematical Functions, 26.7.5)."""
    if freedom == 1:
        return math.tan(math.pi * (_PROBABILITY - 0.5))
    if freedom == 2:
        return (2 * _PROBABILITY - 1) / math.sqrt(2 * _PROBABILITY * (1 - _PROBABILITY))
    z, v = _Z, freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
