"""The objective says which of two candidates is the better. This is its one place; it measures nothing.

1. A candidate that holds the scenario's limits is better than one that does not. Of two that do not, the better one is
nearer to its limits: its worst figure is the smaller multiple of its limit. 2. In a closed loop, whose users wait for
their answers, more tokens a second are better. 3. In an open loop the schedule gives the tokens a second, so a shorter
p95 of whole answers is better. A candidate that does not keep up with the schedule breaks a limit that every open loop
has.

The candidates of one pass met the same requests within the same minute. So they are compared within each pass, by
ratios, and the ratios are averaged over the passes: what slows the machine for a while slows all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from service.evaluation.scenarios.figures import AT_LEAST, Figures, percentile, percentiles
from service.evaluation.scenarios.scenario import Load, OpenLoop, Scenario
from service.evaluation.tuning.field import Candidate

KEEPS_UP: Final = 0.9
"""The least share of the requests of an open loop's slice that end in it."""
JUDGED: Final = ("ttft", "itl", "e2e", "tokens_per_second", "requests_per_second", "failed_ratio")
"""Beginnings of the figures that an engine has; a server alone has the others."""
SLACK: Final = 1.25
"""While slices are short, a figure so many times its limit may still hold: p95 of a few answers says little."""
LEAST: Final = 1e-9


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
    totals: Figures = {
        "tokens_per_second": sum(one.tokens for one in each) / seconds if seconds else None,
        "requests_per_second": ended / seconds if seconds else None,
        "failed_ratio": failed / (ended + failed) if ended + failed else None,
    }
    for name in ("ttft", "itl", "e2e"):
        totals |= percentiles(name, [value for one in each for value in getattr(one, f"{name}_ms")])
    return totals


Passes = Mapping[int, Slice]
"""A candidate's slices by the number of their pass."""


def judged(scenario: Scenario) -> dict[str, float]:
    """Returns the limits that candidates are held to."""
    return {name: limit for name, limit in scenario.limits.items() if name.startswith(JUDGED)}


def excess(scenario: Scenario, passes: Passes) -> float:
    """Returns the worst figure as a multiple of its limit; 1 where all limits hold."""
    found = figures(passes.values())
    worst = max((_excess(name, limit, found) for name, limit in judged(scenario).items()), default=1.0)
    return max(1.0, worst, _lag(scenario.load, passes))


def broken(scenario: Scenario, passes: Passes) -> list[str]:
    """Returns the names of the limits that do not hold."""
    found = figures(passes.values())
    names = [name for name, limit in judged(scenario).items() if _excess(name, limit, found) > 1]
    return names + (["the schedule's rate"] if _lag(scenario.load, passes) > 1 else [])


def order(scenario: Scenario, measured: Mapping[Candidate, Passes], slack: float = 1.0) -> list[Candidate]:
    """Returns the candidates, the best first; of equal ones the earlier first. Up to `slack` times its limit a figure
    counts as holding."""
    means = _means(scenario.load, measured)
    past = {each: excess(scenario, passes) for each, passes in measured.items()}
    keys = {
        each: (past[each] if past[each] > slack else 1.0, -_relative(scenario.load, passes, means))
        for each, passes in measured.items()
    }
    return sorted(keys, key=lambda each: keys[each])


def ratio(load: Load, one: Passes, other: Passes) -> float | None:
    """Returns how many times as good `one` is as `other` in the passes that both ran; None without such a pass."""
    common = one.keys() & other.keys()
    if not common:
        return None
    weights = {number: one[number].seconds for number in common}
    found = sum(weights[at] * (worth(load, one[at]) - worth(load, other[at])) for at in common)
    return math.exp(found / (sum(weights.values()) or 1.0))


def worth(load: Load, one: Slice) -> float:
    """Returns the logarithm of what a slice is worth."""
    if not isinstance(load, OpenLoop):
        return math.log(max(one.tokens_per_second, LEAST))
    latency = percentile(one.e2e_ms, 95)
    return math.log(LEAST) if latency is None else -math.log(max(latency, LEAST))


def frontier(measured: Mapping[Candidate, Figures]) -> list[Candidate]:
    """Returns the candidates that no other beats in tokens a second, p95 TTFT and p95 ITL at once, most tokens
    first."""
    points = {each: _point(figures_) for each, figures_ in measured.items()}
    best = [each for each, point in points.items() if not any(_beats(other, point) for other in points.values())]
    return sorted(best, key=lambda each: points[each])


def _point(numbers: Figures) -> tuple[float, float, float]:
    """Returns numbers of which less is better."""
    ttft, itl = numbers.get("ttft_p95_ms"), numbers.get("itl_p95_ms")
    return -(numbers["tokens_per_second"] or 0.0), math.inf if ttft is None else ttft, 0.0 if itl is None else itl


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _means(load: Load, measured: Mapping[Candidate, Passes]) -> dict[int, float]:
    """Returns the mean worth of each pass that all candidates ran."""
    common = set.intersection(*(set(passes) for passes in measured.values())) if measured else set[int]()
    return {
        number: sum(worth(load, passes[number]) for passes in measured.values()) / len(measured) for number in common
    }


def _relative(load: Load, passes: Passes, means: Mapping[int, float]) -> float:
    weights = {number: passes[number].seconds for number in means}
    total = sum(weights[number] * (worth(load, passes[number]) - mean) for number, mean in means.items())
    return total / (sum(weights.values()) or 1.0)


def _excess(name: str, limit: float, numbers: Figures) -> float:
    value = numbers.get(name)
    if value is None:  # no answer began, or no answer has two tokens
        return math.inf if name.startswith(("ttft", "e2e")) else 1.0
    worse, better = (limit, value) if name in AT_LEAST else (value, limit)
    return 1.0 if worse <= better else worse / max(better, LEAST)


def _lag(load: Load, passes: Passes) -> float:
    if not isinstance(load, OpenLoop):
        return 1.0
    arrived, ended = sum(one.arrived for one in passes.values()), sum(one.ended for one in passes.values())
    return 1.0 if ended >= KEEPS_UP * arrived else KEEPS_UP * arrived / max(ended, LEAST)
