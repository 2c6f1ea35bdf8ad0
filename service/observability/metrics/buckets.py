"""Buckets are the upper edges of histograms. Every threshold that an objective may name is an edge of every latency.

A query for a threshold that is no edge (`le="2"`) matches nothing and says so nowhere. Latencies that users notice are
spaced by a factor under 1.11, so that a quantile read from them is within 5 % of a stopwatch (half a bucket). Other
durations have four edges a decade. `_sum` and `_count` are exact.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Final

OBJECTIVES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds that objectives and alerts name."""
_FINE: Final = 1.109


def spaced(first: float, last: float, ratio: float) -> tuple[float, ...]:
    """Returns bucket bounds from `first` to beyond `last`, each `ratio` times the one before, rounded to 3 digits."""
    bounds = [first]
    while bounds[-1] < last:
        bounds.append(bounds[-1] * ratio)
    return tuple(float(f"{bound:.3g}") for bound in bounds)


def through(first: float, last: float) -> tuple[float, ...]:
    """Returns bounds from `first` to `last` through OBJECTIVES, between them evenly spaced by a factor of at most
    `_FINE`."""
    bounds = [first]
    for low, high in pairwise((first, *OBJECTIVES, last)):
        count = math.ceil(math.log(high / low) / math.log(_FINE))
        bounds += [float(f"{low * (high / low) ** (step / count):.4g}") for step in range(1, count)]
        bounds.append(high)
    return tuple(bounds)


def decades(first: float, last: float) -> tuple[float, ...]:
    """Returns the numbers 1, 2, 3 and 5 of every decade between `first` and `last`, both included."""
    numbers = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in (1, 2, 3, 5)]
    return tuple(number for number in numbers if first <= number <= last)


def joined(*bounds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set().union(*bounds)))


FELT: Final = through(0.002, 60.0)
GAP: Final = (*(bound for bound in through(0.001, 60.0) if bound <= 1.0), 2.0, 5.0, 10.0)
ANSWER: Final = decades(0.01, 200)
PART: Final = decades(0.001, 50)
STEP: Final = decades(0.001, 5)
STORE: Final = joined((0.005, 0.02, 0.1), OBJECTIVES)
PROMPT_TOKENS: Final = tuple(float(2**power) for power in range(3, 18))
ANSWER_TOKENS: Final = tuple(float(2**power) for power in range(14))
SEQUENCES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)
WINDOW_USED: Final = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)

# OpenTelemetry's advice for gen_ai.server.*, with OBJECTIVES.
GEN_AI_DURATION: Final = joined(tuple(0.01 * 2**power for power in range(14)), OBJECTIVES)
GEN_AI_PER_TOKEN: Final = joined((0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5), OBJECTIVES)
GEN_AI_FIRST: Final = joined(
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0), OBJECTIVES
)
