"""This module judges a run: every limit with its figure's value, and the verdict with its exit status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from loadtest.runner.figures import worsened
from service.evaluation.scenarios.figures import AT_LEAST, Figures, holds, shown
from service.evaluation.scenarios.scenario import Scenario

Verdict = Literal["holds", "broken", "not measured"]
EXIT: dict[Verdict, int] = {"holds": 0, "broken": 1, "not measured": 2}


class Check(msgspec.Struct, frozen=True):
    """One limit. `against` says where it is from. `value` is None, and `holds` false, where no answer gives it."""

    figure: str
    limit: float
    value: float | None
    holds: bool
    against: Literal["scenario", "baseline"] = "scenario"

    @property
    def sentence(self) -> str:
        bound = "at least" if self.figure in AT_LEAST else "at most"
        of = ", by the baseline" if self.against == "baseline" else ""
        value = "not measured" if self.value is None else shown(self.value)
        return f"{self.figure} is {value}; {bound} {shown(self.limit)}{of}"


def checks(scenario: Scenario, found: Figures, baseline: Figures | None) -> list[Check]:
    """Returns the limits in the scenario's order, then those by the baseline. A figure that the baseline does not have
    has no limit by it."""
    made = [_check(name, limit, found[name], "scenario") for name, limit in scenario.limits.items()]
    for name, by in scenario.worse_by.items() if baseline else ():
        before = (baseline or {}).get(name)
        if before is not None:
            made.append(_check(name, worsened(name, before, by), found[name], "baseline"))
    return made


def _check(name: str, limit: float, value: float | None, against: Literal["scenario", "baseline"]) -> Check:
    return Check(name, limit, value, value is not None and holds(name, value, limit), against)


def verdict(made: Sequence[Check], counted: int, min_samples: int) -> tuple[Verdict, str]:
    """Returns the verdict and its reason. Too few samples judge nothing. A limit that is broken counts more than a
    figure that is missing: where every request fails there are no latencies."""
    if counted < min_samples:
        return "not measured", f"{counted} requests count, and the scenario needs {min_samples}"
    if broken := [check for check in made if not check.holds and check.value is not None]:
        return "broken", "; ".join(check.sentence for check in broken)
    if missing := [check.figure for check in made if check.value is None]:
        return "not measured", f"no answer gives {', '.join(missing)}"
    return "holds", ""
