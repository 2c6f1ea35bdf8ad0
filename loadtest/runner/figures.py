"""This module computes a run's figures from its samples, and says which of two values of a figure is the better.

It knows no scenario and no file. Percentiles are linear between the two nearest observations, as numpy's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Final, Literal

from loadtest.runner.sample import Sample

FigureName = Literal[
    "ttft_p50_ms",
    "ttft_p95_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p95_ms",
    "itl_p99_ms",
    "e2e_p50_ms",
    "e2e_p95_ms",
    "e2e_p99_ms",
    "send_delay_p99_ms",
    "failed_ratio",
    "refused_ratio",
    "error_ratio",
    "tokens_per_second",
    "requests_per_second",
    "versions",
]
Figures = dict[str, float | None]
"""By `FigureName`; None where no observation gives the figure."""

AT_LEAST: Final = frozenset({"tokens_per_second", "requests_per_second", "versions"})
"""Of these more is better; of all others less is."""
RATIOS: Final = frozenset({"failed_ratio", "refused_ratio", "error_ratio"})
PERCENTILES: Final = (50, 95, 99)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Returns the percentile of unsorted `values`; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures(samples: Sequence[Sample], window: tuple[float, float]) -> Figures:
    """Returns every figure of `samples`, all of which count; `window` is their time in seconds of the run.

    Latencies are those of whole answers. Rates are over the time from the window's begin to its end, or to the end of
    the last whole answer where that is later.
    """
    good = [each for each in samples if not each.error]
    found: Figures = {}
    latencies = {
        "ttft": [each.ttft_ms for each in good if each.ttft_ms is not None],
        "itl": [gap for each in good for gap in each.itl_ms],
        "e2e": [each.e2e_ms for each in good],
    }
    for name, values in latencies.items():
        found |= {f"{name}_p{percent}_ms": percentile(values, percent) for percent in PERCENTILES}
    found["send_delay_p99_ms"] = percentile([each.send_delay_ms for each in samples], 99)
    found |= _shares(samples)
    seconds = max([window[1], *(each.ended for each in good)]) - window[0]
    found["tokens_per_second"] = sum(each.tokens for each in good) / seconds
    found["requests_per_second"] = len(good) / seconds
    found["versions"] = float(len({each.model for each in good if each.model}))
    return found


def _shares(samples: Sequence[Sample]) -> Figures:
    """Failed is every request without a whole answer. Of these some are refused politely, the others are errors."""
    if not samples:
        return {"failed_ratio": None, "refused_ratio": None, "error_ratio": None}
    failed = sum(bool(each.error) for each in samples) / len(samples)
    refused = sum(each.refused for each in samples) / len(samples)
    errors = sum(bool(each.error) and not each.refused for each in samples) / len(samples)
    return {"failed_ratio": failed, "refused_ratio": refused, "error_ratio": errors}


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def holds(name: str, value: float, limit: float) -> bool:
    return value >= limit if name in AT_LEAST else value <= limit


def worsened(name: str, value: float, by: float) -> float:
    """Returns the worst value that is not worse than `value` by more than the ratio `by`."""
    return value * (1 - by) if name in AT_LEAST else value * (1 + by)
