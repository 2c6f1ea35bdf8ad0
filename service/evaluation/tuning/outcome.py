"""An outcome is what tuning found: every candidate's figures, the frontier, the chosen one. It measures nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from service.evaluation.scenarios.figures import Figures
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import objective
from service.evaluation.tuning.candidate import Candidate
from service.evaluation.tuning.objective import Passes
from service.evaluation.tuning.slices import figures


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate's figures over `seconds` in all. `broken` names limits that do not hold."""

    candidate: Candidate
    figures: Figures
    seconds: float
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rows` has every measured candidate, in the order of the field, and `frontier` those that no other beats. `out`
    are the others, with the reason. `gain`: how many times as good the chosen one is as the present settings."""

    scenario: Scenario
    present: Candidate
    rows: tuple[Row, ...]
    frontier: tuple[Row, ...]
    out: dict[Candidate, str]
    chosen: Row | None
    gain: float | None

    @property
    def passed_over(self) -> list[str]:
        """Returns the scenario's limits that only a server's figures can break."""
        return sorted(self.scenario.limits.keys() - objective.judged(self.scenario).keys())


def outcome(
    scenario: Scenario,
    present: Candidate,
    measured: Mapping[Candidate, Passes],
    left: Collection[Candidate],
    out: Mapping[Candidate, str],
) -> Outcome:
    """Returns the outcome of `measured`, in the order of the field. The best of those that are `left` is chosen."""
    rows = {each: _row(scenario, each, passes) for each, passes in measured.items()}
    ranked = objective.order(scenario, {each: passes for each, passes in measured.items() if each in left})
    best = ranked[0] if ranked else None
    gain = None
    if best is not None and present in rows:
        gain = objective.ratio(scenario.load, measured[best], measured[present])
    frontier = objective.frontier({each: row.figures for each, row in rows.items()})
    return Outcome(
        scenario,
        present,
        tuple(rows.values()),
        tuple(rows[each] for each in frontier),
        dict(out),
        rows[best] if best is not None else None,
        gain,
    )


def _row(scenario: Scenario, candidate: Candidate, passes: Passes) -> Row:
    seconds = sum(one.seconds for one in passes.values())
    return Row(candidate, figures(passes.values()), seconds, tuple(objective.broken(scenario, passes)))
