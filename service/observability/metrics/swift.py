"""A swift histogram is observed once a token. The library's takes 2 µs for one observation, a lock and a look at every
edge below it; this one takes a quarter of that, and counts up when a scrape asks.

One thread observes. A scrape in another thread may see the newest observation in the sum and not yet in a bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


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

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, observations in list(self._known.items()):
            buckets = list(zip(self._edges, map(float, accumulate(list(observations.counts))), strict=True))
            family.add_metric(values, buckets, observations.total)
        yield family
