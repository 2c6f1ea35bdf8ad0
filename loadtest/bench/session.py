"""A session is one run of the comparison: every system in turn, round after round. It writes each figure at once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Final

from loadtest.bench.cache import ROOT, Cache
from loadtest.bench.journal import Journal, Record
from loadtest.bench.running import Failed, Running, Served
from loadtest.bench.systems import System
from loadtest.bench.wave import Asked, random_prompts
from loadtest.bench.works import Figures, Work

MACHINE: Final = "machine"
"""The name under which its limits are recorded, as if it were a system."""
START: Final = "start"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: `cell_seconds` for one work of one system, `until` for the run (time.monotonic())."""

    cell_seconds: float
    until: float

    @property
    def spent(self) -> bool:
        return time.monotonic() >= self.until


class Session:
    """Measures what the journal does not hold yet."""

    def __init__(self, cache: Cache, journal: Journal, limits: Limits) -> None:
        self._cache, self._journal, self._limits = cache, journal, limits
        self._commit = commit()

    async def run(self, systems: Sequence[System], works: Sequence[Work], rounds: int) -> bool:
        """Interleaved: each round starts every system once, the first one of a round moves on. False when the time was
        spent before everything was measured; what is left is measured when it is run again."""
        for round_ in range(rounds):
            self._measure_machine(round_)
            turn = round_ % len(systems)
            for system in (*systems[turn:], *systems[:turn]):
                left = [work for work in works if work.applies(system)]
                left = [work for work in left if not self._journal.holds(system.name, work.name, round_)]
                if left and self._limits.spent:
                    return False
                if left:
                    await self._measure(system, left, round_)
        return True

    def _measure_machine(self, round_: int) -> None:
        if self._journal.holds(MACHINE, "limits", round_):
            return
        command = [sys.executable, "-m", "loadtest.bench.limits"]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        self._note(MACHINE, "limits", round_, json.loads(shown.stdout))

    async def _measure(self, system: System, works: Sequence[Work], round_: int) -> None:
        running: Running | None = None
        try:
            running = await system.start(self._cache)
            self._note(system.name, START, round_, start_figures(running))
            await self._warm(running, system)
            await self._all(running, system, works, round_)
        except (Failed, OSError, ValueError, TimeoutError) as error:
            for work in works:
                self._note(system.name, work.name, round_, {}, f"did not start: {error or type(error).__name__}")
        finally:
            if running is not None:
                await running.end()

    async def _all(self, running: Running, system: System, works: Sequence[Work], round_: int) -> None:
        for number, work in enumerate(works):
            if not await self._one(running, system, work, round_):
                for missed in works[number + 1 :]:
                    self._note(system.name, missed.name, round_, {}, f"not reached: {work.name} failed before it")
                return

    async def _warm(self, running: Running, system: System) -> None:
        prompts = random_prompts(system.shape, 2, 64, Random(f"warm {system.shape.name}"))
        await running.wave([Asked(ids, 4) for ids in prompts])

    async def _one(self, running: Running, system: System, work: Work, round_: int) -> bool:
        """False when the system is of no more use this round."""
        slow = self._too_slow(system, work)
        if slow:
            self._note(system.name, work.name, round_, {}, slow)
            return True
        draw = Random(f"{work.name} {system.shape.name} {round_}")
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._limits.cell_seconds):
                figures = await work.run(running, system.shape, draw)
        except (Failed, OSError, ValueError, TimeoutError) as error:
            spent = f"over {self._limits.cell_seconds:.0f} s" if isinstance(error, TimeoutError) else str(error)
            self._note(system.name, work.name, round_, {}, spent)
            return False
        seconds = time.perf_counter() - started
        self._note(system.name, work.name, round_, {**figures, "took_s": seconds, "resident": running.resident()})
        return True

    def _too_slow(self, system: System, work: Work) -> str:
        """A reason where eight at once already tell that 32 would pass the time for one work."""
        took = self._journal.figure(system.name, "decode-8", "took_s")
        if work.name not in ("decode-32", "burst") or took is None or took * 2 < self._limits.cell_seconds:
            return ""
        return f"eight at once took {took:.0f} s; not tried with {self._limits.cell_seconds:.0f} s allowed"

    def _note(self, system: str, work: str, round_: int, figures: Figures, error: str = "") -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._journal.add(Record(system, work, round_, figures, self._commit, now, error))
        shown = error or ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if name != "resident")
        print(f"{now[11:19]}  round {round_ + 1}  {system:28} {work:13} {shown}", flush=True)


def start_figures(running: Running) -> Figures:
    engine = {"engine_bytes": float(running.engine_resident())} if isinstance(running, Served) else {}
    return {"ready_s": running.ready_seconds, "bytes": float(running.resident()), **engine}


def commit() -> str:
    """The commit in use, marked where files differ from it."""
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return shown.stdout.strip() or "unknown"
