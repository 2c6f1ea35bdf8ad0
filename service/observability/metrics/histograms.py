"""The edges of every histogram's buckets, and a swift histogram for what is observed once a token: the library's takes
2 µs for one observation, a lock and a look at every edge below it; this one takes a quarter of that, and counts up when
a scrape asks.

One thread observes. A scrape in another thread may see the newest observation in the sum and not yet in a bucket.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

OBJECTIVES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds that objectives and alerts name."""
_FINE: Final = 1.109
PROMPT_TOKENS: Final = tuple(float(2**power) for power in range(3, 18))
ANSWER_TOKENS: Final = tuple(float(2**power) for power in range(14))
SEQUENCES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0, 256.0)
WINDOW_USED: Final = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


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

# OpenTelemetry's advice for gen_ai.server.*, with OBJECTIVES.
GEN_AI_DURATION: Final = joined(tuple(0.01 * 2**power for power in range(14)), OBJECTIVES)
GEN_AI_PER_TOKEN: Final = joined((0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5), OBJECTIVES)
GEN_AI_FIRST: Final = joined(
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0), OBJECTIVES
)


class Observations:
    """Those of one set of label values."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Of each bucket alone; the last one has no upper edge."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.total += value


class SwiftHistogram(Collector):
    """A family of such histograms. `labels` makes the series as the library does."""

    def __init__(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._edges = [*(floatToGoString(bound) for bound in bounds), "+Inf"]  # type: ignore[no-untyped-call]
        self._known: dict[tuple[str, ...], Observations] = {}
        registry.register(self)

    def labels(self, *values: str) -> Observations:
        """Returns the observations of these label values, made at their first use."""
        if values not in self._known:
            self._known[values] = Observations(self._bounds)
        return self._known[values]

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Takes the series with these label values away, as the library does."""
        self._known.pop(tuple(labels[name] for name in self._labels), None)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, observations in list(self._known.items()):
            buckets = list(zip(self._edges, map(float, accumulate(list(observations.counts))), strict=True))
            family.add_metric(values, buckets, observations.total)
        yield family
