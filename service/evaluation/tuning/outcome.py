"""An outcome is what tuning found: every candidate's figures, the frontier, the chosen one; and `tuned.env`, its
settings as lines that `dosirak serve --settings` reads, with comments on where they are from. The module measures
nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from models import __version__
from models.manifest import Manifest
from models.repository.disk import durable
from service.evaluation.host import machine
from service.evaluation.scenarios.figures import FigureName, Figures, NotMeasured, shown
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import objective
from service.evaluation.tuning.field import Candidate
from service.evaluation.tuning.objective import Passes, figures

NAME = "tuned.env"
WORTH_SAYING = ("tokens_per_second", "ttft_p95_ms", "itl_p95_ms", "e2e_p95_ms")


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


def require_writable(path: Path) -> None:
    """Raises NotMeasured where the file could not be written: nobody wants to learn that after five minutes."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a directory")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise NotMeasured(f"{path} cannot be written ({error.strerror}): name another file by --out") from None


def write(
    path: Path, words: str, model: Manifest, chosen: Manifest, result: Outcome, command: str, beside: str
) -> None:
    """Replaces the file at once. `words` named `model`; `chosen` is the version of the chosen candidate. `beside`:
    what ran meanwhile. Raises
    NotMeasured where it cannot be written."""
    assert result.chosen is not None
    variables = result.chosen.candidate.variables(words, model.reference)
    lines = [f"# {line}" if line else "#" for line in _comments(chosen, result, result.chosen, command, beside)]
    text = "\n".join([*lines, *(f"{name}={value}" for name, value in variables.items()), ""])
    try:
        durable.replace(path, text.encode())
    except OSError as error:
        raise NotMeasured(f"{path} cannot be written ({error.strerror}): name another file by --out") from None


def described(scenario: Scenario) -> str:
    """Returns the load in one line."""
    load = scenario.load
    if load.kind == "closed":
        return f"{scenario.name}, closed loop of {load.users} users, digest {scenario.digest}"
    return f"{scenario.name}, {load.arrivals} arrivals, {load.rate:g} a second, digest {scenario.digest}"


def said(numbers: Figures) -> str:
    return ", ".join(f"{name} {shown(numbers.get(name))}" for name in WORTH_SAYING)


def _comments(chosen: Manifest, result: Outcome, row: Row, command: str, beside: str) -> Iterator[str]:
    processor, memory = machine.processor(), machine.memory()
    yield f"Written by {command}"
    yield "Read by dosirak serve --settings FILE; variables of the environment win over it."
    yield ""
    yield f"date   {datetime.now(UTC).isoformat(timespec='seconds')}, dosirak {__version__}"
    yield f"host   {processor.name}, {processor.usable_cores} cores, {memory.total / 1e9:.1f} GB of memory"
    yield f"model  {chosen.reference} {chosen.precision}, digest {chosen.digest}"
    yield f"load   {described(result.scenario)}"
    yield f"found  {said(row.figures)}, in {row.seconds:.0f} s"
    if present := next((each for each in result.rows if each.candidate == result.present), None):
        yield f"before {said(present.figures)}, in {present.seconds:.0f} s"
    if result.gain is not None:
        yield f"       {result.gain:.2f} times as good in the passes that both ran"
    if beside:
        yield f"BESIDE another server: {beside}"
    for name in row.broken:
        yield f"BROKEN {name}: {_limit(result.scenario.limits, name)}, and no candidate holds all limits"


def _limit(limits: Mapping[FigureName, float], name: str) -> str:
    limit = next((limit for each, limit in limits.items() if each == name), None)
    return "it was not kept up with" if limit is None else f"the limit is {limit:g}"
