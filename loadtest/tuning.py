"""This test compares `dosirak tune` with a full grid, on two models of different shapes.

    python -m loadtest.tuning [--models demo wide] [--slice 10] [--rounds 24] [--load FILE] [--grain fine]

The grid measures every candidate for `--slice` seconds. The tuner gets a quarter of the seconds that this took. Then
the grid's best and the tuner's choice are measured again in turns, `--rounds` times each for TURN seconds: what slows
the machine for a while slows both, and the best of many noisy figures is not taken at its word. Goal: a ratio of 0.95
or more; the quartiles of the rounds' ratios say how sure it is.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from loadtest.checkpoints import Shape, save
from models.imports.importing import import_source
from models.imports.starter import DEMO, WEIGHTS, publish_demo
from models.manifest import Manifest
from models.repository.repository import Repository
from models.weights.quantize import quantize
from service.evaluation.scenarios.reading import read_scenario
from service.evaluation.scenarios.scenario import Scenario
from service.evaluation.tuning import objective
from service.evaluation.tuning.driving import Broken, drive
from service.evaluation.tuning.engines import Engines, engine_of
from service.evaluation.tuning.field import GRAINS, Candidate, Grain, Reach, family, field, present
from service.evaluation.tuning.halving import Round
from service.evaluation.tuning.objective import Slice
from service.evaluation.tuning.outcome import Outcome
from service.evaluation.tuning.tuner import Tuner
from service.evaluation.tuning.workload import Workload
from service.host import usable_cores
from service.settings import Settings

SHARE: Final = 0.25
TURN: Final = 3.0
WIDE: Final = Shape("wide", 6, 1024, 16, 4, 2816, 4096, tied=False)
"""As wide as models of half a billion weights, with a quarter of their layers."""
LOAD: Final = Path(__file__).parent / "scenarios" / "tune.toml"


@dataclass(frozen=True, slots=True)
class Compared:
    """`ratio`: how good the tuner's choice is as a multiple of the grid's best, measured in turns."""

    model: str
    candidates: int
    grid_seconds: float
    tune_seconds: float
    best: Candidate
    chosen: Candidate
    ratio: float
    quartiles: Sequence[float]

    def __str__(self) -> str:
        share = self.tune_seconds / self.grid_seconds
        return (
            f"{self.model}: {self.candidates} candidates in {self.grid_seconds:.0f} s, tuned in "
            f"{self.tune_seconds:.0f} s ({share:.2f} of it): {self.ratio:.3f} of the best "
            f"(rounds {self.quartiles[0]:.3f} to {self.quartiles[-1]:.3f})\n"
            f"  grid: {self.best}\n  tune: {self.chosen}"
        )


class Told:
    """Prints what the tuner does."""

    def probing(self, candidate: Candidate) -> None: ...

    def planned(self, field: int, finest: int, rounds: int, seconds: float) -> None:
        print(f"  tune: {field} candidates of {finest}, {rounds} rounds", flush=True)

    def left_out(self, count: int) -> None:
        print(f"  tune: no time for {count} candidates", flush=True)

    def round_begins(self, number: int, left: int, plan: Round) -> None:
        print(f"  tune: round {number}, {left} left, {plan.passes} x {plan.seconds:.1f} s", flush=True)

    def measured(self, candidate: Candidate, found: Slice) -> None: ...

    def fell_out(self, candidate: Candidate, why: str) -> None:
        print(f"  out: {candidate}: {why}", flush=True)


class Comparison:
    """One model's. `grain` is the grid's; the tuner chooses its own."""

    def __init__(self, repository: Repository, name: str, scenario: Scenario, grain: Grain, seconds: float) -> None:
        self._repository = repository
        self._settings = Settings(data_dir=repository.layout.data_dir)
        self._manifest = repository.resolve(name)
        self._versions = family(repository, self._manifest)
        self._workload = Workload.of(scenario, repository, self._manifest)
        self._present = present(self._settings, self._manifest)
        self._field = partial(field, self._present, self._versions, cores=usable_cores())
        self._grain = grain
        self._slice = seconds

    async def compare(self, rounds: int) -> Compared:
        began = time.monotonic()
        measured, reach = await self._grid()
        took = time.monotonic() - began
        best = objective.order(self._workload.scenario, measured)[0]
        began = time.monotonic()
        found = await self._tune(took * SHARE)
        tuned = time.monotonic() - began
        assert found.chosen is not None
        chosen = found.chosen.candidate
        ratios = [1.0] * 2 if chosen == best else await self._in_turns(chosen, best, rounds)
        low, middle, high = statistics.quantiles(ratios, n=4)
        count = len(self._field(reach, self._grain))
        return Compared(self._manifest.name, count, took, tuned, best, chosen, middle, (low, high))

    async def _grid(self) -> tuple[dict[Candidate, dict[int, Slice]], Reach]:
        measured = dict[Candidate, dict[int, Slice]]()
        async with self._engines() as engines:
            first = await drive(await engines.engine(self._present), self._workload, 0, self._slice, 8)
            reach = Reach(first.most_at_once, first.most_at_once * first.longest_prompt)
            for each in self._field(reach, self._grain):
                try:
                    measured[each] = {1: await drive(await engines.engine(each), self._workload, 1, self._slice)}
                except Broken as error:
                    print(f"  out: {each}: {error}", flush=True)
                    continue
                print(f"  grid: {measured[each][1].tokens_per_second:7.0f} tokens/s  {each}", flush=True)
        return measured, reach

    async def _tune(self, seconds: float) -> Outcome:
        async with self._engines() as engines:
            return await Tuner(self._workload, engines, self._present, self._field, seconds, Told()).run()

    async def _in_turns(self, chosen: Candidate, best: Candidate, rounds: int) -> list[float]:
        """Returns how many times as good the tuner's choice was in each round."""
        slices: dict[Candidate, dict[int, Slice]] = {chosen: {}, best: {}}
        async with self._engines() as engines:
            for number in range(1, rounds + 1):
                for each in (chosen, best) if number % 2 else (best, chosen):
                    slices[each][number] = await drive(await engines.engine(each), self._workload, number, TURN)
        load = self._workload.scenario.load
        rounds_of = zip(slices[chosen].items(), slices[best].items(), strict=True)
        return [objective.ratio(load, dict([mine]), dict([theirs])) or 0.0 for mine, theirs in rounds_of]

    def _engines(self) -> _Closing:
        return _Closing(Engines(self._repository, self._versions, partial(engine_of, self._settings, self._repository)))


@dataclass(frozen=True, slots=True)
class _Closing:
    engines: Engines

    async def __aenter__(self) -> Engines:
        return self.engines

    async def __aexit__(self, *error: object) -> None:
        await self.engines.close()


def publish(repository: Repository, name: str) -> Manifest:
    """Has the model's bf16 and int8 versions, with production on the latter."""
    if repository.versions(name):
        return repository.resolve(name)
    if name == DEMO:
        return publish_demo(repository, WEIGHTS)[1]
    with tempfile.TemporaryDirectory(dir=repository.layout.data_dir) as directory:
        save(WIDE, Path(directory) / name)
        small = quantize(repository, import_source(repository, str(Path(directory) / name), name))
    repository.promote(name, "production", small.version, "loadtest.tuning")
    return small


@contextmanager
def a_repository(given: Path | None) -> Iterator[Repository]:
    if given is not None:
        yield Repository(given)
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Repository(Path(directory))


def compared(repository: Repository, name: str, load: Path, grain: Grain, seconds: float, rounds: int) -> Compared:
    publish(repository, name)
    comparison = Comparison(repository, name, read_scenario(load), grain, seconds)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(comparison.compare(rounds))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=(DEMO, WIDE.name), default=[DEMO, WIDE.name])
    parser.add_argument("--slice", type=float, default=10.0, help="seconds of each candidate of the grid")
    parser.add_argument("--rounds", type=int, default=24, help="of the comparison in turns")
    parser.add_argument("--load", type=Path, default=LOAD)
    parser.add_argument("--grain", choices=[grain.name for grain in GRAINS], default=GRAINS[0].name)
    parser.add_argument("--repository", type=Path, help="where the models are kept; else a new one")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    grain = next(grain for grain in GRAINS if grain.name == chosen.grain)
    with a_repository(chosen.repository) as repository:
        for name in chosen.models:
            print(compared(repository, name, chosen.load, grain, chosen.slice, chosen.rounds), flush=True)


if __name__ == "__main__":
    main()
