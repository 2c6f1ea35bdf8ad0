"""This module judges a run: figures of its samples, every limit with its figure's value, what is worse than a
baseline, and the verdict with its exit status. It knows no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from loadtest.runner.sample import Sample
from service.evaluation.scenarios.figures import AT_LEAST, Figures, holds, percentile, percentiles, shown
from service.evaluation.scenarios.scenario import Scenario


def figures(samples: Sequence[Sample], window: tuple[float, float]) -> Figures:
    """Returns every figure of `samples`, all of which count; `window` is their time in seconds of the run.

    Latencies are those of whole answers. Rates are over the time from the window's begin to its end, or to the end of
    the last whole answer where that is later.
    """
    good = [each for each in samples if not each.error]
    found: Figures = {}
    found |= percentiles("ttft", [each.ttft_ms for each in good if each.ttft_ms is not None])
    found |= percentiles("itl", [gap for each in good for gap in each.itl_ms])
    found |= percentiles("e2e", [each.e2e_ms for each in good])
    found["send_delay_p99_ms"] = percentile([each.send_delay_ms for each in samples], 99)
    found |= _shares(samples)
    prompts = sum(each.prompt_tokens for each in good)
    found["cached_ratio"] = sum(each.cached_tokens for each in good) / prompts if prompts else None
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


def worsened(name: str, value: float, by: float) -> float:
    """Returns the worst value that is not worse than `value` by more than the ratio `by`."""
    return value * (1 - by) if name in AT_LEAST else value * (1 + by)


MOST_CACHED_APART: Final = 0.1


def cached_otherwise(found: Figures, before: Figures) -> str:
    """Returns a sentence where the server knew another part of the prompts than in the run of `before`, else nothing. A
    server that has seen a seed knows nearly all of them."""
    now, then = found.get("cached_ratio"), before.get("cached_ratio")
    if now is not None and then is not None and abs(now - then) > MOST_CACHED_APART:
        return (
            f"the server's prefix cache knew {now:.0%} of the prompts, and {then:.0%} in the baseline: start the "
            "server anew before each run"
        )
    return ""


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
