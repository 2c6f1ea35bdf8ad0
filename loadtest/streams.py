"""A stream holds one answer's events as a streaming client saw them. This module also computes quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it: seconds from the request to each token, and how it ended."""

    started: float
    token_times: list[float] = field(default_factory=list)
    completion_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.token_times[0]

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_times, self.token_times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and quantiles of one figure, in milliseconds."""

    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        if not seconds:
            return cls(*[float("nan")] * 4)
        cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 99
        return cls(fmean(seconds) * 1e3, cuts[49] * 1e3, cuts[94] * 1e3, cuts[98] * 1e3)
