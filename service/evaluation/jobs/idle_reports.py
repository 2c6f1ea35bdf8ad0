"""Idle reports are the quick reports that a server makes by itself, for versions that it serves and that have none.

    no work for some seconds ─▶ a version without a report ─▶ memory for it? ─▶ job ─ended─▶ report
          ▲                                                                      │ a request, or another job
          └────────────── twice the seconds, ten minutes at most ◀── withdrawn ◀─┘

A request never waits for a report: its arrival kills the job's process, which has a low priority anyway. The work until
then is lost and begun again later. The event loop owns the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from models.manifest import Manifest
from models.repository.published import baseline_of
from models.repository.repository import Repository
from models.repository.standing import Gate, standings
from service.deployments.activity import Activity
from service.deployments.needs import report_bytes
from service.evaluation.jobs.jobs import Jobs
from service.host import available_memory
from service.tasks import BackgroundTasks, cancelled

log = structlog.get_logger(__name__)

REPORT_WHEN_IDLE: Final = "report_when_idle"
IDLE_SECONDS: Final = 10.0
LONGEST_IDLE_SECONDS: Final = 600.0
LOOK_SECONDS: Final = 1.0


class IdleReports:
    """`served` returns the versions that answer requests now; `gate` has the limits of an alias."""

    def __init__(
        self,
        repository: Repository,
        jobs: Jobs,
        activity: Activity,
        served: Callable[[], Iterable[Manifest]],
        tasks: BackgroundTasks,
        gate: Gate = lambda alias: None,
        memory: Callable[[], int] = available_memory,
        idle_seconds: float = IDLE_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        self._repository = repository
        self._jobs = jobs
        self._activity = activity
        self._served = served
        self._tasks = tasks
        self._gate = gate
        self._memory = memory
        self._first_idle_seconds = self._idle_seconds = idle_seconds
        self._look_seconds = look_seconds
        self._given_up: set[str] = set()
        """Digests of versions whose report failed or was cancelled; this server does not try them again."""
        self._too_large: set[str] = set()
        """Digests of versions that memory had no room for, so that the log says so once."""

    def start(self) -> None:
        self._tasks.keep(REPORT_WHEN_IDLE, self._look)

    async def _look(self) -> None:
        """Looks once, and makes one report where there is time and memory for it."""
        await asyncio.sleep(self._look_seconds)
        if self._activity.idle_seconds < self._idle_seconds or not self._jobs.is_idle:
            return
        missing = await asyncio.to_thread(self._missing, tuple(self._served()))
        if missing is not None and self._jobs.is_idle and not self._activity.is_busy:
            await self._measure(missing)

    def _missing(self, served: Iterable[Manifest]) -> Manifest | None:
        """Returns a version without a report that no process measures, and that memory has room for."""
        for manifest in served:
            if manifest.digest in self._given_up or self._repository.is_measured(manifest):
                continue
            if not self._repository.is_being_measured(manifest) and self._fits(manifest):
                return manifest
        return None

    def _fits(self, manifest: Manifest) -> bool:
        """Returns whether the version and its baseline can be loaded a second time beside the serving engines."""
        baseline = baseline_of(self._repository, manifest)
        needed = report_bytes(manifest, baseline)
        free = self._memory()
        if needed <= free:
            self._too_large.discard(manifest.digest)
            return True
        if manifest.digest not in self._too_large:
            self._too_large.add(manifest.digest)
            log.warning("idle_report_skipped", model=manifest.reference, needed_bytes=needed, free_bytes=free)
        return False

    async def _measure(self, manifest: Manifest) -> None:
        arguments = {"model": manifest.reference, "effort": "quick", "text_file": None}
        job = self._jobs.submit("evaluate", arguments)
        log.info("idle_report_started", model=manifest.reference, job=job.id)
        waits = [asyncio.create_task(self._jobs.until_wanted(job.id)), asyncio.create_task(self._activity.begins())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(waits)
        ended = self._jobs.get(job.id)
        if not ended.ended:
            await self._jobs.withdraw(job.id)
            self._idle_seconds = min(2 * self._idle_seconds, LONGEST_IDLE_SECONDS)
            log.info("idle_report_postponed", model=manifest.reference, idle_seconds=self._idle_seconds)
            return
        self._idle_seconds = self._first_idle_seconds
        if not await asyncio.to_thread(self._is_made_or_being_made, manifest):
            self._given_up.add(manifest.digest)
            log.warning("idle_report_failed", model=manifest.reference, reason=ended.error or ended.state)
        await asyncio.to_thread(self._warn, manifest)

    def _warn(self, manifest: Manifest) -> None:
        """Logs each gated alias that points to a version which breaks its limits, as the new report says."""
        for each in standings(self._repository, self._gate, [manifest.name]):
            if each.broken and each.version == manifest.version:
                log.warning("gate_broken", model=manifest.reference, alias=each.alias, limits=each.broken)

    def _is_made_or_being_made(self, manifest: Manifest) -> bool:
        return self._repository.is_measured(manifest) or self._repository.is_being_measured(manifest)
