"""Jobs queues the jobs of one server, runs them one at a time in processes of their own, reports and cancels them. It
lives in the event loop.

A crash of the server interrupts a job: the next start marks it failed and removes what it left on disk. Nothing was
published, so a client can simply submit the job again.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from models.imports.upkeep import sweep
from models.repository.repository import Repository
from service.errors import Conflict, NotFound, Overloaded
from service.evaluation.jobs.job import WORKER, Job, JobFiles, Kind, WorkerLine
from service.tasks import BackgroundTasks

log = structlog.get_logger(__name__)

MOST_KEPT: Final = 200
MOST_QUEUED: Final = 32
RUN_JOBS: Final = "run_jobs"
SWEEP: Final = "sweep_repository"
REWRITE_SECONDS: Final = 10.0
LONGEST_LINE: Final = 1 << 20
"""The most bytes of one line of a job's process."""
_END_SECONDS: Final = 5.0  # between a job's last line and its process's end


class Jobs:
    """`start` comes before every other call. `stop` ends the running job as a cancellation would, but the next start
    reports that job as interrupted."""

    def __init__(
        self,
        repository: Repository,
        env: Mapping[str, str] | None = None,
        worker: str = WORKER,
        tasks: BackgroundTasks | None = None,
    ) -> None:
        self._repository = repository
        self._files = JobFiles(repository.layout.data_dir)
        self._env = env
        self._worker = worker
        self._jobs: dict[str, Job] = {}
        self._submitted = asyncio.Event()
        self._changed = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._running = ""
        self._unwritten: set[str] = set()
        """Jobs whose files say less than is known."""
        self._tasks = tasks or BackgroundTasks()
        self.on_end: Callable[[Job], Awaitable[object]] = _nothing
        """Is awaited with each job that has run, when it has ended."""

    async def start(self) -> None:
        """Reads the stored jobs and marks interrupted ones; begins to run new jobs and to remove what crashes left."""
        for job in self._files.all():
            if not job.ended:
                job = msgspec.structs.replace(
                    job, state="failed", error="The server stopped while this job ran; ask for it again"
                )
                self._write(job)
            self._jobs[job.id] = job
        self._tasks.retry(SWEEP, partial(asyncio.to_thread, sweep, self._repository))
        self._tasks.keep(RUN_JOBS, self._run_next)

    async def stop(self) -> None:
        await self._tasks.stop([SWEEP, RUN_JOBS])

    def submit(self, kind: Kind, arguments: dict[str, Any]) -> Job:
        """Queues a job. Raises Overloaded when too many wait, OSError where the disk does not take it."""
        if sum(job.state == "queued" for job in self._jobs.values()) >= MOST_QUEUED:
            raise Overloaded(f"{MOST_QUEUED} jobs wait already: let some end or cancel them", retry_after=30)
        job = Job.new(kind, arguments)
        self._files.put(job)
        self._note_change(job)
        self._submitted.set()
        return job

    def get(self, id: str) -> Job:
        """Returns a job. Raises NotFound."""
        try:
            return self._jobs[id]
        except KeyError:
            raise NotFound(f"There is no job {id[:80]!r}; GET /v1/jobs lists what there is", param="id") from None

    def all(self) -> list[Job]:
        """Returns jobs, newest first."""
        return list(reversed(self._jobs.values()))

    def cancel(self, id: str) -> Job:
        """Ends a job that waits or runs; what it published stays. Raises NotFound, or Conflict for a job that has
        ended."""
        job = self.get(id)
        if job.ended:
            raise Conflict(f"{job.id} has {job.state}; there is nothing to cancel")
        job = self._change(job, state="cancelled", doing="")
        self._kill(id)
        return job

    @property
    def is_idle(self) -> bool:
        """Returns whether no job waits or runs."""
        return not self._running and all(job.ended for job in self._jobs.values())

    async def until_wanted(self, id: str) -> Job:
        """Waits until a job has ended, or until another job waits for its place. Returns the job. One caller at a
        time."""
        while not (self.get(id).ended or self._waits_behind(id)):
            self._changed.clear()
            await self._changed.wait()
        return self.get(id)

    async def withdraw(self, id: str) -> None:
        """Ends a job at once and forgets it, as if it had never been submitted. A job that has ended stays. Writes no
        file before the job's process has ended, because a request waits for the processor."""
        job = self.get(id)
        if job.ended:
            return
        self._jobs[id] = msgspec.structs.replace(job, state="cancelled")
        self._kill(id)
        while self._running == id:
            self._changed.clear()
            await self._changed.wait()
        await asyncio.to_thread(self._files.remove, job)
        self._jobs.pop(id, None)

    def _waits_behind(self, id: str) -> bool:
        return any(job.state == "queued" for job in self._jobs.values() if job.id != id)

    def _kill(self, id: str) -> None:
        if self._process is not None and self._running == id:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _run_next(self) -> None:
        """Waits until a job is queued, and runs the oldest."""
        while (job := next((each for each in self._jobs.values() if each.state == "queued"), None)) is None:
            self._submitted.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REWRITE_SECONDS if self._unwritten else None):
                    await self._submitted.wait()
            self._unwritten &= self._jobs.keys()
            for id in sorted(self._unwritten):
                self._write(self._jobs[id])
        await self._run_one(job)

    async def _run_one(self, job: Job) -> None:
        self._running = job.id
        try:
            await self._run_to_end(job)
        finally:
            self._running = ""
            self._changed.set()

    async def _run_to_end(self, job: Job) -> None:
        self._change(job, state="running")
        log.info("job_started", job=job.id, kind=job.kind)
        try:
            end = await self._run_process(job.id)
        except Exception:
            await self._end(job.id, "The server could not run the job's process; its log says why")
            raise
        ended = await self._end(job.id, end)
        if ended.state != "succeeded":
            await asyncio.to_thread(sweep, self._repository, 0.0)

    async def _end(self, id: str, reason: str) -> Job:
        """Tells of the job's end, and returns the job as it ended; failed with `reason` where its process reported no
        end."""
        job = self.get(id)
        ended = job if job.ended else self._change(job, state="failed", error=reason)
        log.info("job_" + ended.state, job=id, kind=ended.kind, reason=ended.error)
        await self.on_end(ended)
        return ended

    async def _run_process(self, id: str) -> str:
        """Runs a job to the end of its process. Returns how the process ended."""
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._worker),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._env,
            limit=LONGEST_LINE,
        )
        if self.get(id).ended:  # cancelled while the process started
            process.kill()
        try:
            await self._follow(id, process)
            code = await asyncio.wait_for(process.wait(), _END_SECONDS)  # a kill here could take its exit code
            return f"The job's process ended with exit code {code}"
        except TimeoutError:
            return f"The job's process did not end within {_END_SECONDS:g} s of its last word"
        except (ValueError, msgspec.DecodeError):
            return "The job's process wrote a line that is too long or no message"
        finally:
            self._process = None
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _follow(self, id: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        job = self.get(id)
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode({"kind": job.kind, "arguments": job.arguments}))
            await process.stdin.drain()
            process.stdin.close()
        async for text in process.stdout:
            self._note(id, msgspec.json.decode(text, type=WorkerLine))

    def _note(self, id: str, line: WorkerLine) -> None:
        job = self.get(id)
        if job.ended:
            return  # cancelled; its process is ending
        if line.result is not None:
            self._change(job, state="succeeded", progress=1.0, doing="", result=line.result)
        elif line.error is not None:
            self._change(job, state="failed", doing="", error=line.error)
        else:
            self._jobs[id] = msgspec.structs.replace(job, progress=line.progress, doing=line.doing)

    def _change(self, job: Job, **changes: Any) -> Job:
        """Changes the job in memory first: a full disk must neither stop a job nor leave an ended one as running."""
        changed = msgspec.structs.replace(job, **changes)
        self._note_change(changed)
        self._write(changed)
        return changed

    def _write(self, job: Job) -> None:
        """Writes the job's file. What the disk does not take is written later: a start before finds the file as it
        was."""
        try:
            self._files.put(job)
            self._unwritten.discard(job.id)
        except OSError as error:
            if not self._unwritten:
                log.warning("job_not_written", job=job.id, reason=error.strerror)
            self._unwritten.add(job.id)

    def _note_change(self, job: Job) -> None:
        self._jobs[job.id] = job
        self._changed.set()
        ended = [each for each in self._jobs.values() if each.ended]
        for old in ended[: max(0, len(ended) - MOST_KEPT)]:
            with contextlib.suppress(OSError):
                self._files.remove(old)
            del self._jobs[old.id]


async def _nothing(job: Job) -> None:
    """Tells nobody of the job's end."""
