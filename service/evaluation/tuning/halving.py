"""Halving divides a budget of seconds among rounds: each measures the candidates that are left and keeps the better
half. It is arithmetic; it knows no clock and no candidates.

    round     1            2      3   4
    field     ########     ####   ##  #     each round gets the same seconds, so slices grow as the field shrinks
    a slice   .            ..     ....

Successive halving: Karnin, Koren, Somekh, "Almost Optimal Exploration in Multi-Armed Bandits", ICML 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_PASSES: Final = 4


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: `start` of an engine, and of the `least` slice that says something. `kept` engines stay between slices.
    Where a whole field can be kept, as many as `at_once` start in the time of one."""

    start: float
    least: float
    kept: int
    at_once: float = 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """Each candidate is measured `passes` times, for `seconds` each."""

    passes: int
    seconds: float


def counts(field: int) -> list[int]:
    """Returns the candidates of each round; the last round is between two, unless there is only one."""
    found = [field]
    while found[-1] > 2:
        found.append(kept_of(found[-1]))
    return found


def kept_of(field: int) -> int:
    return -(-field // 2)


def needed(field: int, costs: Costs) -> float:
    """Returns the least seconds for a field of so many candidates, none of which is started."""
    return sum(_starts(field, costs, field) + [count * costs.least for count in counts(field)])


def next_round(field: int, seconds: float, costs: Costs, started: int = 0) -> Round | None:
    """Returns the next round of a field of which `started` have an engine, so that all rounds fit into `seconds`. None
    where that is too little for even one slice each."""
    rounds, starting = counts(field), _starts(field, costs, field - started)
    share = (seconds - sum(starting)) / len(rounds) / field
    if share < costs.least:  # the later rounds get what is left
        share = costs.least
        if starting[0] + field * share > seconds:
            return None
    passes = min(MOST_PASSES, int(share // costs.least)) if field <= costs.kept else 1
    return Round(passes, share / passes)


def _starts(field: int, costs: Costs, missing: int) -> list[float]:
    """Returns the seconds of each round for starts: first of the engines that are `missing`, later of those that could
    not be kept."""
    first, *later = counts(field)
    again = [count * costs.start if count > costs.kept else 0.0 for count in later]
    return [missing * costs.start / costs.at_once if first <= costs.kept else first * costs.start, *again]
