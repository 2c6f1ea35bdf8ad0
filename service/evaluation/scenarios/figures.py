"""The figures that a scenario limits, which of two values of one is the better, and the error of a measurement that
has none. The module knows no scenario and no sample. Percentiles are linear between the two nearest observations, as
numpy's are."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Final, Literal

from service.errors import DosirakError

AT_LEAST: Final = frozenset({"cached_ratio", "tokens_per_second", "requests_per_second", "versions"})
"""Of these more is better; of all others less is."""
RATIOS: Final = frozenset({"cached_ratio", "failed_ratio", "refused_ratio", "error_ratio"})
PERCENTILES: Final = (50, 95, 99)


class NotMeasured(DosirakError):
    """There is no verdict; exit status 2."""


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
    "cached_ratio",
    "tokens_per_second",
    "requests_per_second",
    "versions",
]
Figures = dict[str, float | None]
"""By `FigureName`; None where no observation gives the figure."""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Returns the percentile of unsorted `values`; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(name: str, values: Sequence[float]) -> Figures:
    """Returns the figures of a latency: `name` with each percentile."""
    return {f"{name}_p{percent}_ms": percentile(values, percent) for percent in PERCENTILES}


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def holds(name: str, value: float, limit: float) -> bool:
    return value >= limit if name in AT_LEAST else value <= limit
