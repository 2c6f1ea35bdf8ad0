"""Jobs run one after the other in processes of their own, report progress, end at once when told, and outlive
nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from models.errors import Conflict as RepositoryConflict
from models.errors import InvalidSource
from models.progress import silent
from models.repository.repository import Repository
from service.errors import Conflict, NotFound, Overloaded
from service.evaluation.jobs import child
from service.evaluation.jobs.job import Job, JobFiles
from service.evaluation.jobs.jobs import LONGEST_LINE, MOST_KEPT, MOST_QUEUED, Jobs
from service.evaluation.jobs.worker import run, shortened
from service.host import BACKGROUND_NICENESS
from service.settings import Settings
from service.tasks import BackgroundTasks
from tests.checkpoints import save_llama
from tests.e2e.server import command_of
from tests.waiting import until

FAKE = "tests.fake_job"


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    made = Jobs(Repository(tmp_path), worker="tests.fake_job")
    await made.start()
    yield made
    await made.stop()


def told_ends(jobs: Jobs) -> list[str]:
    """The states of the jobs whose end is told, as they come."""
    told = list[str]()

    async def tell(job: Job) -> None:
        told.append(job.state)

    jobs.on_end = tell
    return told


def children() -> list[psutil.Process]:
    """Workers that run; one that ended and was not yet reaped, or was just now, does not."""
    return [child for child in psutil.Process().children() if "tests.fake_job" in command_of(child)]


async def test_a_job_tells_its_progress_and_its_result(jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit("import", {"until": str(tmp_path / "go on")})
    assert (job.state, job.progress) == ("queued", 0.0)
    await until(lambda: jobs.get(job.id).progress == 0.5)
    assert (jobs.get(job.id).state, jobs.get(job.id).doing) == ("running", "half way")
    (tmp_path / "go on").touch()
    await until(lambda: jobs.get(job.id).ended)
    assert jobs.get(job.id).result == {"model": "demo", "version": "1"}
    assert JobFiles(tmp_path).all() == [jobs.get(job.id)], "also on disk"


async def test_one_at_a_time_in_order(jobs: Jobs) -> None:
    first, second = jobs.submit("import", {"wait": 0.3}), jobs.submit("import", {})
    await until(lambda: jobs.get(first.id).state == "running")
    assert jobs.get(second.id).state == "queued" and len(children()) <= 1
    await until(lambda: jobs.get(second.id).ended)
    assert [job.id for job in jobs.all()] == [second.id, first.id]


async def test_a_full_disk_stops_no_job(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.evaluation.jobs.jobs.REWRITE_SECONDS", 0.05)
    first, second = jobs.submit("import", {"wait": 0.2}), jobs.submit("import", {})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("models.repository.disk.durable.write", full)
        with pytest.raises(OSError, match="No space"):
            jobs.submit("import", {})
        await until(lambda: jobs.get(second.id).ended)
        assert [job.state for job in jobs.all()] == ["succeeded"] * 2 and len(jobs.all()) == 2
        assert {job.state for job in JobFiles(tmp_path).all()} <= {"queued", "running"}
    await until(lambda: [job.state for job in JobFiles(tmp_path).all()] == ["succeeded"] * 2)
    assert JobFiles(tmp_path).all() == [jobs.get(first.id), jobs.get(second.id)]


def test_a_job_tells_its_failure_though_the_log_is_on_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "service.evaluation.jobs.worker"],
            input=b'{"kind": "no such kind", "arguments": {}}',
            stdout=subprocess.PIPE,
            stderr=full,
            env={**os.environ, "DOSIRAK_DATA_DIR": str(tmp_path)},
        )
    assert json.loads(ended.stdout)["error"] == "KeyError: 'no such kind'"


async def test_failures_are_told(jobs: Jobs) -> None:
    refused, died = jobs.submit("import", {"error": "no such directory"}), jobs.submit("import", {"exit": 3})
    await until(lambda: jobs.get(died.id).ended)
    assert (jobs.get(refused.id).state, jobs.get(refused.id).error) == ("failed", "no such directory")
    assert jobs.get(died.id).error == "The job's process ended with exit code 3"


@pytest.mark.parametrize(
    "lines",
    [["x" * (LONGEST_LINE + 1)], ["{torn"], ["[1]"], ['{"progress": "half"}'], ['{"result": 1}'], ["", ""]],
    ids=["too long", "torn", "a list", "a wrong type", "no result", "empty"],
)
async def test_a_process_that_says_what_is_no_news_ends_its_job_alone(jobs: Jobs, lines: list[str]) -> None:
    broken, next_one = jobs.submit("import", {"lines": lines, "wait": 60}), jobs.submit("import", {})
    await until(lambda: jobs.get(next_one.id).ended)
    assert jobs.get(broken.id).state == "failed" and "line" in (jobs.get(broken.id).error or "")
    assert jobs.get(next_one.id).state == "succeeded"


async def test_a_result_of_more_than_a_pipes_buffer_is_told(jobs: Jobs) -> None:
    """asyncio's own limit for a line is 64 KiB; passing it ended the task that runs jobs."""
    job = jobs.submit("import", {"lines": [f'{{"result": {{"text": "{"x" * 200_000}"}}}}']})
    await until(lambda: jobs.get(job.id).ended)
    assert len((jobs.get(job.id).result or {})["text"]) == 200_000


async def test_a_process_that_cannot_be_run_ends_its_job_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = list[int]()
    tasks = BackgroundTasks(lambda name, count: failures.append(count), first_delay=0.001)
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job", tasks=tasks)
    told = told_ends(jobs)
    await jobs.start()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nonexistent/python")
        job = jobs.submit("import", {})
        await until(lambda: jobs.get(job.id).ended)
    assert jobs.get(job.id).state == "failed" and "its log says why" in (jobs.get(job.id).error or "")
    later = jobs.submit("import", {})
    await until(lambda: jobs.get(later.id).state == "succeeded")
    assert max(failures) == 1
    await until(lambda: told == ["failed", "succeeded"])
    await tasks.stop()


async def test_an_end_is_told_though_what_the_job_left_cannot_be_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swept(*_: object) -> None:
        raise RepositoryConflict("demo is being changed by somebody else; try again")

    monkeypatch.setattr("service.evaluation.jobs.jobs.sweep", swept)
    tasks = BackgroundTasks(first_delay=0.001)
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job", tasks=tasks)
    told = told_ends(jobs)
    await jobs.start()
    jobs.submit("import", {"error": "no such model"})
    later = jobs.submit("import", {})
    await until(lambda: jobs.get(later.id).state == "succeeded")
    await until(lambda: told == ["failed", "succeeded"])
    await tasks.stop()


async def test_a_repository_that_cannot_be_swept_at_once_does_not_keep_a_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may hold a model's lock for longer than a start waits for it."""
    sweeps = list[int]()

    def swept(*_: object) -> None:
        sweeps.append(1)
        if len(sweeps) < 3:
            raise RepositoryConflict("demo is being changed by somebody else; try again")

    monkeypatch.setattr("service.evaluation.jobs.jobs.sweep", swept)
    tasks = BackgroundTasks(first_delay=0.001)
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job", tasks=tasks)
    await jobs.start()
    await until(lambda: len(sweeps) == 3)
    await tasks.stop()


def test_a_reason_of_any_length_fits_a_line() -> None:
    assert shortened("short") == "short"
    assert len(shortened("도" * 10**6).encode()) < LONGEST_LINE


async def test_a_cancelled_job_ends_at_once_and_leaves_nothing(jobs: Jobs, tmp_path: Path) -> None:
    running, waiting = jobs.submit("import", {"wait": 60}), jobs.submit("import", {"wait": 60})
    await until(lambda: jobs.get(running.id).progress)
    (tmp_path / "tmp" / "stage-of-it").mkdir()
    for job in (waiting, running):
        assert jobs.cancel(job.id).state == "cancelled"
    await until(lambda: not children())
    await until(lambda: not list((tmp_path / "tmp").iterdir()))
    with pytest.raises(Conflict, match="has cancelled"):
        jobs.cancel(running.id)
    third = jobs.submit("import", {})
    await until(lambda: jobs.get(third.id).state == "succeeded")


async def test_what_a_crash_interrupted_is_told_at_the_next_start(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    interrupted = Job("job-1", "import", {}, "running", "2026-01-01T00:00:00Z")
    files.put(interrupted)
    (tmp_path / "jobs" / "job-2.json").write_text("{torn")
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job")
    await jobs.start()
    assert jobs.get("job-1").state == "failed" and "ask for it again" in (jobs.get("job-1").error or "")
    with pytest.raises(NotFound):
        jobs.get("job-2")
    await jobs.stop()


async def test_a_stopping_server_ends_the_running_job(tmp_path: Path) -> None:
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job")
    await jobs.start()
    job = jobs.submit("import", {"wait": 60})
    await until(lambda: jobs.get(job.id).progress)
    started = time.monotonic()
    await jobs.stop()
    assert time.monotonic() - started < 10 and not children()


async def test_no_more_wait_or_are_kept_than_so_many(tmp_path: Path) -> None:
    jobs = Jobs(Repository(tmp_path), worker="tests.fake_job")  # not started: nothing runs
    waiting = [jobs.submit("import", {}) for _ in range(MOST_QUEUED)]
    with pytest.raises(Overloaded):
        jobs.submit("import", {})
    for _ in range(MOST_KEPT):
        jobs.cancel(jobs.submit("import", {}).id) if len(jobs.all()) < MOST_QUEUED else jobs.cancel(waiting.pop().id)
        waiting.append(jobs.submit("import", {}))
    ended = [job for job in jobs.all() if job.ended]
    assert len(ended) == MOST_KEPT == len([job for job in JobFiles(tmp_path).all() if job.ended])


def test_what_jobs_publish_says_who_asked(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    asked = {"author": "key:1a2b3c4d", "evaluate": "none"}
    source = str(save_llama(tmp_path / "source"))
    imported = {"source": source, "name": "tiny", "version": None, "precision": None, "revision": None}
    run("import", imported | asked, settings, silent)
    run("quantize", {"model": "tiny:1", "precision": "int8"} | asked, settings, silent)
    published = Repository(settings.data_dir).versions("tiny")
    assert [each.lineage.author for each in published] == ["key:1a2b3c4d", "key:1a2b3c4d"]
    assert [each.precision for each in published] == ["bf16", "int8"]


def test_an_import_renders_chats_as_a_server_does(tmp_path: Path) -> None:
    settings, source = Settings(data_dir=tmp_path / "data"), save_llama(tmp_path / "source")
    (source / "chat_template.jinja").write_text("{{ 'a' * 200000000 }}")
    asked = {"source": str(source), "name": "tiny", "version": None, "precision": None, "revision": None}
    with pytest.raises(InvalidSource, match="writes too much text"):
        run("import", asked | {"author": "", "evaluate": "none"}, settings, silent)


def test_result_and_progress() -> None:
    seen: list[tuple[float, str]] = []
    done = child.run("import", {}, os.environ, lambda *step: seen.append(step), FAKE)
    assert done == {"model": "demo", "version": "1"}
    assert seen == [(0.5, "half way")]


def test_its_sentence_is_raised() -> None:
    with pytest.raises(InvalidSource, match="its weights are odd"):
        child.run("import", {"error": "its weights are odd"}, os.environ, worker=FAKE)


def test_an_end_without_a_sentence() -> None:
    with pytest.raises(InvalidSource, match="process of the import ended with status 7"):
        child.run("import", {"exit": 7}, os.environ, worker=FAKE)


def test_a_person_who_waits_is_served_at_the_priority_of_the_command() -> None:
    """The server's own jobs stand back behind its answers; beside a busy machine they hardly run."""
    source = "import os, sys\nfrom unittest import mock\nfrom service.evaluation.jobs import worker\n"
    source += "with mock.patch.object(worker, 'run', lambda *_: {'nice': os.nice(0)}): worker.main()"
    nices = []
    for job in ('{"kind": "import", "arguments": {}, "awaited": true}', '{"kind": "import", "arguments": {}}'):
        command = [sys.executable, "-c", source]
        shown = subprocess.run(command, input=job, capture_output=True, text=True, check=True).stdout
        nices.append(json.loads(shown)["result"]["nice"])
    assert nices == [os.nice(0), min(19, os.nice(0) + BACKGROUND_NICENESS)]
