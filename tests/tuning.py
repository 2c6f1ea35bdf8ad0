"""A world for tuning without engines: candidates with known rates, noise that short slices have, and a clock that only
moves when something is done. Usable from a REPL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from service.evaluation.scenarios.reading import parse
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import tuner
from service.evaluation.tuning.driving import Broken
from service.evaluation.tuning.field import Candidate, Grain, Reach
from service.evaluation.tuning.halving import Round
from service.evaluation.tuning.objective import Slice
from service.evaluation.tuning.tuner import Tuner

CLOSED: dict[str, Any] = {
    "name": "closed",
    "load": {"kind": "closed", "users": 8, "seconds": 20, "min_samples": 100},
    "requests": [{"route": "/generate_stream"}],
    "limits": {"failed_ratio": 0},
}
OPEN: dict[str, Any] = {
    **CLOSED,
    "name": "open",
    "load": {"kind": "open", "rate": 10, "seconds": 20, "min_samples": 100},
}


def scenario(given: dict[str, Any] = CLOSED, **limits: float) -> Scenario:
    return parse({**given, "limits": limits or given["limits"]})


def candidate(number: int, replicas: int = 1) -> Candidate:
    return Candidate("demo:1", "bf16", number + 1, 2048, 1, replicas)


def slice_of(rate: float, seconds: float = 1.0, ttft: float = 10.0, itl: float = 1.0, e2e: float = 50.0) -> Slice:
    """A slice with a request each tenth of a second, all alike."""
    ended = max(1, round(seconds * 10))
    return Slice(
        seconds, round(rate * seconds), [ttft] * ended, [itl] * ended, [e2e] * ended, ended, ended, 0, most_at_once=8
    )


@dataclass
class Silent:
    """A listener that remembers."""

    rounds: list[tuple[int, int, Round]] = field(default_factory=list)
    fields: list[tuple[int, int, int]] = field(default_factory=list)
    out: list[tuple[Candidate, str]] = field(default_factory=list)
    slices: list[tuple[Candidate, float]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def probing(self, candidate: Candidate) -> None: ...

    def planned(self, field: int, finest: int, rounds: int, seconds: float) -> None:
        self.fields.append((field, finest, rounds))

    def left_out(self, count: int) -> None:
        self.late.append(count)

    def round_begins(self, number: int, left: int, plan: Round) -> None:
        self.rounds.append((number, left, plan))

    def measured(self, candidate: Candidate, found: Slice) -> None:
        self.slices.append((candidate, found.seconds))

    def fell_out(self, candidate: Candidate, why: str) -> None:
        self.out.append((candidate, why))


@dataclass
class World:
    """`rates`: true tokens a second of each candidate, the first is the present one. `noise`: relative, of a slice of
    one second. `drift`: how much slower the machine is after each slice. Engines cannot start, or end in a slice, for
    what is in `no_start` and `dies`."""

    rates: list[float]
    noise: float = 0.0
    drift: float = 1.0
    start: float = 1.0
    at_once: float = 1.5
    kept: int = 100
    no_start: frozenset[int] = frozenset()
    dies: frozenset[int] = frozenset()
    seed: int = 0
    now: float = 0.0
    alive: dict[Candidate, int] = field(default_factory=dict)
    starts: int = 0
    start_seconds: float = 0.0
    drawn: Random = field(init=False)
    listener: Silent = field(default_factory=Silent)
    make: Callable[[float, float], Slice] = slice_of

    def __post_init__(self) -> None:
        self.drawn = Random(self.seed)
        self.field = [candidate(number) for number in range(len(self.rates))]

    @property
    def best(self) -> float:
        return max(self.rates)

    def rate(self, of: Candidate) -> float:
        return self.rates[of.max_num_seqs - 1]

    def tuner(self, monkeypatch: pytest.MonkeyPatch, seconds: float, load: Scenario | None = None) -> Tuner:
        monkeypatch.setattr(tuner, "drive", self.drive)
        monkeypatch.setattr(tuner, "usable_cores", lambda: 2)
        monkeypatch.setattr("service.evaluation.tuning.tuner.time.monotonic", lambda: self.now)
        workload: Any = type("Workload", (), {"scenario": load or scenario()})()
        engines: Any = self
        return Tuner(workload, engines, self.field[0], self.candidates, seconds, self.listener)

    def candidates(self, reach: Reach, grain: Grain) -> list[Candidate]:
        return self.field[: {"fine": None, "middle": len(self.field) // 2, "coarse": 4, "bare": 2}[grain.name]]

    async def drive(self, engine: int, workload: object, number: int, seconds: float, enough: int = 0) -> Slice:
        which = engine
        self.now += min(seconds, 0.5) if enough else seconds
        if which in self.dies and not enough:
            raise Broken("its engine process ended while it was measured")
        self.rates = [rate * self.drift for rate in self.rates]
        factor = max(0.01, 1 + self.drawn.gauss(0, self.noise) / seconds**0.5)
        return self.make(self.rates[which] * factor, seconds * 0.75)

    def started(self) -> set[Candidate]:
        return set(self.alive)

    async def engine(self, wanted: Candidate) -> int:
        number = wanted.max_num_seqs - 1
        if wanted not in self.alive:
            self.now += self.start
            self.starts += 1
            self.start_seconds = self.start
            if number in self.no_start:
                raise Broken("its engine could not start: no memory")
        self.alive.pop(wanted, None)
        self.alive[wanted] = number
        while len(self.alive) > self.kept:
            del self.alive[next(iter(self.alive))]
        return number

    async def start_all(self, wanted: list[Candidate], has_time: Callable[[], bool]) -> dict[Candidate, str]:
        out = dict[Candidate, str]()
        for each in wanted:
            before = self.now
            if has_time():
                try:
                    await self.engine(each)
                except Broken as error:
                    out[each] = str(error)
            self.now = before + (self.now - before) / self.at_once
        return out

    async def end(self, ended: Candidate) -> None:
        self.alive.pop(ended, None)
