"""A slice holds what one candidate did with the load for some seconds. It knows no engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from service.evaluation.scenarios.figures import Figures, percentiles


@dataclass(slots=True)
class Slice:
    """`seconds` are counted ones, after the warm-up. `ttft_ms`, `itl_ms` and `e2e_ms` begin at the time at which a
    request was due. `arrived` requests were due in these seconds, `ended` ones ended in them, `failed` ones without a
    whole answer. `most_at_once` counts sequences, `longest_prompt` tokens."""

    seconds: float = 0.0
    tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    itl_ms: list[float] = field(default_factory=list)
    e2e_ms: list[float] = field(default_factory=list)
    arrived: int = 0
    ended: int = 0
    failed: int = 0
    most_at_once: int = 0
    longest_prompt: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def figures(slices: Iterable[Slice]) -> Figures:
    """Returns the figures of all slices of a candidate together."""
    each = list(slices)
    seconds, ended = sum(one.seconds for one in each), sum(one.ended for one in each)
    failed = sum(one.failed for one in each)
    found: Figures = {
        "tokens_per_second": sum(one.tokens for one in each) / seconds if seconds else None,
        "requests_per_second": ended / seconds if seconds else None,
        "failed_ratio": failed / (ended + failed) if ended + failed else None,
    }
    for name in ("ttft", "itl", "e2e"):
        found |= percentiles(name, [value for one in each for value in getattr(one, f"{name}_ms")])
    return found
