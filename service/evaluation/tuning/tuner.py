"""The tuner measures candidates by rounds within a budget of seconds, and keeps the better half each time.

It knows engines and the load, no files and no terminal. `Listener` hears what happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from service.evaluation.scenarios.figures import NotMeasured
from service.evaluation.scenarios.scenario import ClosedLoop, Scenario
from service.evaluation.tuning import halving, objective
from service.evaluation.tuning.driving import Broken, drive
from service.evaluation.tuning.engines import Engines
from service.evaluation.tuning.field import GRAINS, Candidate, Grain, Reach
from service.evaluation.tuning.halving import Costs, Round
from service.evaluation.tuning.objective import Slice
from service.evaluation.tuning.outcome import Outcome, outcome
from service.evaluation.tuning.workload import Workload
from service.host import usable_cores

LEAST_SECONDS: Final = 0.5
"""The shortest slice, however fast answers are."""
PROBE_SHARE: Final = 0.1
PROBE_ANSWERS: Final = (8, 64)
"""The fewest and the most answers that the probe waits for; between them one of each user."""
PARALLEL: Final = 0.75
"""How much of each further core helps when several engines start at once."""
MARGIN: Final = 1.1
"""Of the seconds that a start is expected to take."""
ROOM: Final = 2.0
"""How many of the least slices a field should have seconds for: many candidates that are hardly measured are worse than
few that are."""
Candidates = Callable[[Reach, Grain], list[Candidate]]


class Listener(Protocol):
    """Hears of the tuning as it goes."""

    def probing(self, candidate: Candidate) -> None: ...

    def planned(self, field: int, finest: int, rounds: int, seconds: float) -> None:
        """`field` candidates are measured, of `finest` in the finest field."""
        ...

    def left_out(self, count: int) -> None:
        """There is no time for so many candidates."""
        ...

    def round_begins(self, number: int, left: int, plan: Round) -> None: ...

    def measured(self, candidate: Candidate, result: Slice) -> None: ...

    def fell_out(self, candidate: Candidate, why: str) -> None: ...


@dataclass(slots=True)
class Tuner:
    """`run` measures; `outcome` is what is known so far, also after a run that was cut off."""

    workload: Workload
    engines: Engines
    present: Candidate
    candidates: Candidates
    seconds: float
    listener: Listener
    out: dict[Candidate, str] = field(default_factory=dict)
    _measured: dict[Candidate, dict[int, Slice]] = field(default_factory=dict)
    _in: list[Candidate] = field(default_factory=list)
    _passes: int = 0
    _until: float = 0.0

    @property
    def scenario(self) -> Scenario:
        return self.workload.scenario

    @property
    def outcome(self) -> Outcome:
        """Returns what is known so far. Candidates are compared by the passes that all of them ran."""
        return outcome(self.scenario, self.present, self._measured, self._in, self.out)

    async def run(self) -> Outcome:
        """Measures within the seconds. Ends no engine. Raises NotMeasured where the seconds are too few, or where the
        present settings cannot serve the load."""
        self._until = time.monotonic() + self.seconds
        costs, reach = await self._probe()
        self._in = self._choose_field(costs, reach)
        await self._start_all(costs)
        number = 1
        while plan := self._plan(costs):
            self.listener.round_begins(number, len(self._in), plan)
            await self._round(plan)
            if not await self._halve():
                break
            number += 1
        if self._in and not self._measured:
            enough = _round_up(2 * self.seconds)
            raise NotMeasured(f"engines started so slowly that no time was left: take more, as --seconds {enough}")
        return self.outcome

    def _plan(self, costs: Costs) -> Round | None:
        if not self._in:
            return None
        return halving.next_round(len(self._in), self._left, costs, len(self.engines.started() & set(self._in)))

    async def _start_all(self, costs: Costs) -> None:
        """Starts the engines of the whole field where all can be kept. Those that there was no time for are left out:
        starts may take longer than thought."""
        if len(self._in) > costs.kept:
            return
        candidates, free = set(self._in), replace(costs, start=0.0, least=costs.least * ROOM)

        def has_time() -> bool:
            started = len(self.engines.started() & candidates)
            return halving.needed(started + usable_cores(), free) + self.engines.start_seconds <= self._left

        for each, why in (await self.engines.start_all(self._in, has_time)).items():
            self._drop(each, why)
        started = self.engines.started()
        if late := [each for each in self._in if each not in started]:
            self.listener.left_out(len(late))
            self._in = [each for each in self._in if each in started]

    def _drop(self, candidate: Candidate, why: str) -> None:
        self.out[candidate] = why
        self._measured.pop(candidate, None)
        self._in.remove(candidate)
        self.listener.fell_out(candidate, why)

    async def _halve(self) -> bool:
        """Keeps the better half. Returns whether there is something left to compare."""
        final = len(self._in) <= 2
        measured = {each: self._measured[each] for each in self._in}
        ranked = objective.order(self.scenario, measured, 1.0 if final else objective.SLACK)
        kept = halving.kept_of(len(ranked))
        self._in = ranked[:kept]
        for each in ranked[kept:]:
            await self.engines.end(each)
        return len(self._in) > 1

    @property
    def _left(self) -> float:
        return self._until - time.monotonic()

    async def _probe(self) -> tuple[Costs, Reach]:
        """Returns what a start and a slice cost, and what the load reaches, with the present settings. The second start
        counts: the first one reads files that no cache holds yet."""
        self.listener.probing(self.present)
        try:
            await self.engines.engine(self.present)
            await self.engines.end(self.present)
            engine = await self.engines.engine(self.present)
            enough, began = self._wave(), time.monotonic()
            result = await drive(engine, self.workload, 0, self.seconds * PROBE_SHARE, enough)
        except Broken as error:
            raise NotMeasured(f"the present settings cannot serve this load: {error}") from None
        took, answers = time.monotonic() - began, result.ended + result.failed
        if not result.ended:
            raise NotMeasured(
                f"no answer came within {took:.0f} s: give more time, as --seconds {_round_up(self.seconds * 4)}, or "
                "take a lighter load"
            )
        least = max(LEAST_SECONDS, took * max(1.0, enough / answers))
        load = self.scenario.load
        seqs = result.most_at_once if isinstance(load, ClosedLoop) else 2 * result.most_at_once
        reach = Reach(seqs, seqs * result.longest_prompt)
        at_once = max(1.0, usable_cores() * PARALLEL)
        return Costs(self.engines.start_seconds * MARGIN, least, self.engines.kept, at_once), reach

    def _wave(self) -> int:
        """Returns the answers after which every user of a closed loop has had about one."""
        load, (fewest, most) = self.scenario.load, PROBE_ANSWERS
        return min(most, max(fewest, load.users if isinstance(load, ClosedLoop) else fewest))

    def _choose_field(self, costs: Costs, reach: Reach) -> list[Candidate]:
        """Returns the finest field that the seconds suffice for, what matters most first. Raises NotMeasured where none
        does."""
        fields = [self.candidates(reach, grain) for grain in GRAINS]
        coarse_first = list(dict.fromkeys(each for candidates in reversed(fields) for each in candidates))
        roomy = replace(costs, least=costs.least * ROOM)
        for candidates in fields:
            if halving.needed(len(candidates), costs if candidates is fields[-1] else roomy) <= self._left:
                rounds = len(halving.counts(len(candidates)))
                self.listener.planned(len(candidates), len(fields[0]), rounds, self.seconds)
                return [each for each in coarse_first if each in candidates]
        used = self.seconds - self._left
        enough = _round_up(used + halving.needed(len(fields[-1]), costs) * MARGIN)
        raise NotMeasured(
            f"{self.seconds:g} seconds are too few: {len(fields[-1])} candidates at least, an engine that starts in "
            f"{costs.start:.1f} s and slices of {costs.least:.1f} s need about {enough}: --seconds {enough}"
        )

    async def _round(self, plan: Round) -> None:
        """Measures every candidate in each pass, every second pass in the opposite order: a machine that grows slower
        with time does not favour the first."""
        for _ in range(plan.passes):
            self._passes += 1
            for each in self._in[:: 1 if self._passes % 2 else -1]:
                if self._left > 0:
                    await self._slice(each, plan.seconds)
        if late := [each for each in self._in if each not in self._measured]:
            self.listener.left_out(len(late))
            self._in = [each for each in self._in if each in self._measured]

    async def _slice(self, candidate: Candidate, seconds: float) -> None:
        try:
            engine = await self.engines.engine(candidate)
            result = await drive(engine, self.workload, self._passes, seconds)
        except Broken as error:
            self._drop(candidate, str(error))
            await self.engines.end(candidate)
            return
        self._measured.setdefault(candidate, {})[self._passes] = result
        self.listener.measured(candidate, result)


def _round_up(seconds: float) -> int:
    return -(-int(seconds) // 10) * 10 + 10
