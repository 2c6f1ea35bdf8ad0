"""Buckets: the objectives are edges, fine ones stay fine, and the swift histogram is the library's."""

from __future__ import annotations

import random
from itertools import pairwise

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest

from service.observability.metrics import histograms
from service.observability.metrics.histograms import SwiftHistogram


def test_objectives_are_edges_of_every_latency() -> None:
    assert histograms.OBJECTIVES == (0.2, 0.5, 1.0, 2.0, 5.0)
    for name in ("FELT", "GAP", "ANSWER", "PART", "STEP", "STORE"):
        bounds = getattr(histograms, name)
        assert set(histograms.OBJECTIVES) <= set(bounds)
        assert list(bounds) == sorted(set(bounds))
    for bounds in (histograms.GEN_AI_DURATION, histograms.GEN_AI_FIRST, histograms.GEN_AI_PER_TOKEN):
        assert set(histograms.OBJECTIVES) <= set(bounds)


def test_a_quantile_of_what_users_feel_is_within_five_percent() -> None:
    assert all(high / low < 1.11 for low, high in pairwise(histograms.FELT))
    assert all(high / low < 1.11 for low, high in pairwise(histograms.GAP) if high <= 1.0)
    assert all(high / low <= 2 for low, high in pairwise(histograms.PART)), "four edges a decade"


def test_the_swift_histogram_says_what_the_librarys_says() -> None:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    library, swift, rng = CollectorRegistry(), CollectorRegistry(), random.Random(3)
    names, edges = ("model", "version"), histograms.GAP
    theirs = Histogram("gap_seconds", "A gap.", names, buckets=edges, registry=library)
    ours = SwiftHistogram("gap_seconds", "A gap.", names, edges, swift)
    for labels in (("demo", "1"), ("demo", "2")):
        for value in (*edges, 0.0, 99.0, *(rng.lognormvariate(-4, 2) for _ in range(500))):
            theirs.labels(*labels).observe(value)
            ours.labels(*labels).observe(value)
    theirs.labels("demo", "3")
    ours.labels("demo", "3")
    assert generate_latest(swift) == generate_latest(library)
