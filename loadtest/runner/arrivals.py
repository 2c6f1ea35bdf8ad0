"""This module knows an open loop's arrivals: what is sent at each due time, and which requests of a run got no answer
before its end. Those were in flight then, or were never sent, since all users waited; each has a failed sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from loadtest.runner.sample import Sample
from service.evaluation.scenarios.requests import Drawn, due_times, one_request
from service.evaluation.scenarios.scenario import OpenLoop, Scenario

CUT: Final = "no whole answer before the end of the run"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request without an answer: `due` and `sent` are seconds of the run."""

    id: str
    due: float
    sent: float
    route: str


def request_at(scenario: Scenario, due: float) -> Drawn:
    """Returns the request of a due time: the same for the same seed."""
    return one_request(scenario.requests, Random(f"{scenario.load.seed} {due!r}"))


def unanswered(
    scenario: Scenario, answered: Sequence[Sample], in_flight: Iterable[InFlight], end: float
) -> list[Sample]:
    """Returns a failed sample of each request without an answer; `end` is the run's last second."""
    load = scenario.load
    found = [_failed(scenario, each, end, CUT) for each in in_flight]
    if isinstance(load, OpenLoop):
        known = {each.due for each in (*answered, *found)}
        reason = f"never sent: each of the {load.users} users waited for an answer; raise users or lower rate"
        missed = [due for due in due_times(load) if round(due, 6) not in known]
        unsent = [InFlight("", round(due, 6), end, request_at(scenario, due).kind.route) for due in missed]
        found += [_failed(scenario, each, end, reason) for each in unsent]
    return found


def _failed(scenario: Scenario, request: InFlight, end: float, reason: str) -> Sample:
    begin, stop = scenario.load.window
    return Sample(
        id=request.id,
        due=request.due,
        sent=round(request.sent, 6),
        route=request.route,
        error=reason,
        counts=begin <= request.due < stop,
        e2e_ms=round((end - request.due) * 1e3, 3),
    )
