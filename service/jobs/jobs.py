"""The jobs of one server: queued, run one at a time in processes of their own, told, cancelled. Lives in the event
loop.

What a crash of the server interrupts is marked failed at the next start, and what it left on disk is removed: nothing
was published, so the job can simply be asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import structlog

from models.repository import Repository
from models.upkeep import sweep
from service.errors import Conflict, NotFound, Overloaded
from service.jobs.job import Job, JobFiles, Kind

log = structlog.get_logger(__name__)

WORKER: Final = "service.jobs.worker"
MOST_KEPT: Final = 200
MOST_QUEUED: Final = 32
_END_SECONDS: Final = 5.0  # between a job's last word and its process's end


class Jobs:
    """`start` before anything else; `stop` ends the running job as a cancellation would, but leaves it to be told as
    interrupted at the next start."""

    def __init__(self, repository: Repository, env: Mapping[str, str] | None = None, worker: str = WORKER) -> None:
        self._repository = repository
        self._files = JobFiles(repository.layout.data_dir)
        self._env = env
        self._worker = worker
        self._jobs: dict[str, Job] = {}
        self._wanted = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._running = ""
        self._runner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read what there is, mark what was interrupted, begin to run what comes."""
        await asyncio.to_thread(sweep, self._repository)
        for job in self._files.all():
            if not job.ended:
                job = msgspec.structs.replace(
                    job, state="failed", error="The server stopped while this job ran; ask for it again"
                )
                self._files.put(job)
            self._jobs[job.id] = job
        self._runner = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)

    def submit(self, kind: Kind, arguments: dict[str, Any]) -> Job:
        """Queue a job. Raises Overloaded when too many wait."""
        if sum(job.state == "queued" for job in self._jobs.values()) >= MOST_QUEUED:
            raise Overloaded(f"{MOST_QUEUED} jobs wait already: let some end or cancel them", retry_after=30)
        job = Job.new(kind, arguments)
        self._put(job)
        self._wanted.set()
        return job

    def get(self, id: str) -> Job:
        """Raises NotFound."""
        try:
            return self._jobs[id]
        except KeyError:
            raise NotFound(f"There is no job {id[:80]!r}; GET /v1/jobs lists what there is", param="id") from None

    def all(self) -> list[Job]:
        """Newest first."""
        return list(reversed(self._jobs.values()))

    def cancel(self, id: str) -> Job:
        """End a job that waits or runs; what it published stays. Raises NotFound, or Conflict for an ended
        one."""
        job = self.get(id)
        if job.ended:
            raise Conflict(f"{job.id} has {job.state}; there is nothing to cancel")
        job = self._change(job, state="cancelled", doing="")
        if self._process is not None and self._running == id:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        return job

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            waiting = [job for job in self._jobs.values() if job.state == "queued"]
            if not waiting:
                await self._wanted.wait()
                continue
            await self._run_one(waiting[0])

    async def _run_one(self, job: Job) -> None:
        self._running = job.id
        self._change(job, state="running")
        log.info("job_started", job=job.id, kind=job.kind)
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._worker), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._env
        )
        try:
            await self._follow(job.id, process)
            code = await asyncio.wait_for(process.wait(), _END_SECONDS)  # a kill here could take its exit code
        except (TimeoutError, msgspec.DecodeError):
            process.kill()
            code = await process.wait()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        finally:
            self._process = None
        ended = self.get(job.id)
        if not ended.ended:
            ended = self._change(ended, state="failed", error=f"The job's process ended with exit code {code}")
        if ended.state != "succeeded":
            await asyncio.to_thread(sweep, self._repository, 0.0)
        log.info("job_" + ended.state, job=job.id, kind=job.kind, reason=ended.error)

    async def _follow(self, id: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # both are pipes
        job = self.get(id)
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.json.encode({"kind": job.kind, "arguments": job.arguments}))
            await process.stdin.drain()
            process.stdin.close()
        async for line in process.stdout:
            news = msgspec.json.decode(line)
            job = self.get(id)
            if job.ended:
                continue  # cancelled; its process is on its way out
            if "result" in news:
                self._change(job, state="succeeded", progress=1.0, doing="", result=news["result"])
            elif "error" in news:
                self._change(job, state="failed", doing="", error=news["error"])
            else:
                self._jobs[id] = msgspec.structs.replace(job, progress=news["progress"], doing=news["doing"])

    def _change(self, job: Job, **changes: Any) -> Job:
        changed = msgspec.structs.replace(job, **changes)
        self._put(changed)
        return changed

    def _put(self, job: Job) -> None:
        self._files.put(job)
        self._jobs[job.id] = job
        ended = [each for each in self._jobs.values() if each.ended]
        for old in ended[: max(0, len(ended) - MOST_KEPT)]:
            self._files.remove(old)
            del self._jobs[old.id]
