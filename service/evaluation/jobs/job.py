"""A job is an import, a quantization or an evaluation, as it is stored and shown. Each job has one file. This module
knows no processes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from models.repository.disk import durable
from models.repository.disk.journal import timestamp

Kind = Literal["import", "quantize", "evaluate"]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
WORKER: Final = "service.evaluation.jobs.worker"
"""The module that a job's process runs."""


class Job(msgspec.Struct, frozen=True):
    """`arguments` are the arguments of the kind's function in `worker`; `progress` is 0 to 1 and `doing` names the
    present work."""

    id: str
    kind: Kind
    arguments: dict[str, Any]
    state: State
    created_at: str
    progress: float = 0.0
    doing: str = ""
    result: dict[str, Any] | None = None
    error: str | None = None

    @classmethod
    def new(cls, kind: Kind, arguments: dict[str, Any]) -> Job:
        return cls(f"job-{uuid.uuid4().hex}", kind, arguments, "queued", timestamp(datetime.now(UTC)))

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class WorkerLine(msgspec.Struct):
    """One line of output of a job's process: its progress, or its end."""

    progress: float = 0.0
    doing: str = ""
    result: dict[str, Any] | None = None
    error: str | None = None


class JobFiles:
    """All jobs of a data directory. After a crash each file is whole or absent."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / "jobs"
        durable.make_directory(self._directory)

    def put(self, job: Job) -> None:
        durable.replace(self._directory / f"{job.id}.json", msgspec.json.encode(job))

    def all(self) -> list[Job]:
        """Returns jobs, oldest first; skips a file that is no job."""
        jobs = []
        for path in self._directory.glob("job-*.json"):
            try:
                jobs.append(msgspec.json.decode(path.read_bytes(), type=Job))
            except (OSError, msgspec.DecodeError):
                continue
        return sorted(jobs, key=lambda job: job.created_at)

    def remove(self, job: Job) -> None:
        (self._directory / f"{job.id}.json").unlink(missing_ok=True)
