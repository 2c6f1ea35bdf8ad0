"""Reports that a server makes by itself: for which versions, when, and that requests end the work at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import structlog

from models.errors import Conflict
from models.manifest import Manifest
from models.repository.gate import Limits
from models.repository.repository import Repository
from models.repository.standing import Gate
from service.deployments.activity import Activity
from service.evaluation.jobs.idle_reports import IdleReports
from service.evaluation.jobs.jobs import Jobs
from service.tasks import BackgroundTasks
from tests.fakes import FakeClock
from tests.reports import report
from tests.versions import publish
from tests.waiting import until

PLENTY = 1 << 40


@dataclass
class Server:
    """The parts of a server that idle reports know. Time of `activity` passes only when told to."""

    repository: Repository
    jobs: Jobs
    activity: Activity
    clock: FakeClock
    served: list[Manifest]
    memory: int = PLENTY


@asynccontextmanager
async def running(
    data_dir: Path,
    seconds: str,
    versions: int = 1,
    memory: int = PLENTY,
    serves: bool = True,
    gate: Gate = lambda alias: None,
) -> AsyncIterator[Server]:
    """A server whose reports take so many real seconds. It has been idle for long."""
    repository, clock, tasks = Repository(data_dir), FakeClock(), BackgroundTasks(first_delay=0.01)
    published = [publish(repository, f"version {number}") for number in range(versions)]
    served = published if serves else []
    env = {**os.environ, "DOSIRAK_DATA_DIR": str(data_dir), "FAKE_JOB_SECONDS": seconds}
    jobs, activity = Jobs(repository, env, worker="tests.fake_report_job", tasks=tasks), Activity(clock)
    server = Server(repository, jobs, activity, clock, served, memory)
    reports = IdleReports(
        repository,
        jobs,
        activity,
        lambda: server.served,
        tasks,
        gate,
        lambda: server.memory,
        idle_seconds=10.0,
        look_seconds=0.01,
    )
    await jobs.start()
    reports.start()
    clock.advance(11)
    try:
        yield server
    finally:
        await tasks.stop()


async def looks(count: int = 5) -> None:
    """Waits while the server has looked a few times for something to measure."""
    await asyncio.sleep(count * 0.02)


async def test_each_served_version_without_a_report_gets_one(tmp_path: Path) -> None:
    async with running(tmp_path, "0", versions=2) as server:
        await until(lambda: all(server.repository.is_measured(each) for each in server.served))
        await looks()
        assert [job.kind for job in server.jobs.all()] == ["evaluate"] * 2, "each once"
        assert [job.arguments["effort"] for job in server.jobs.all()] == ["quick"] * 2


async def test_a_check_of_seconds_is_followed_by_a_report(tmp_path: Path) -> None:
    async with running(tmp_path, "0", serves=False) as server:
        (version,) = server.repository.versions("demo")
        checked = msgspec.structs.replace(report(version, None), effort="check")
        server.repository.put_report(version, checked)
        server.served.append(version)
        await until(lambda: server.repository.is_measured(version))


async def test_production_that_breaks_its_gate_by_the_new_report_is_logged(tmp_path: Path) -> None:
    """Its present report is a check, which said nothing of that."""
    limits = Limits(decode_ratio=5.0)
    with structlog.testing.capture_logs() as logs:
        async with running(tmp_path, "0", versions=2, serves=False, gate={"production": limits}.get) as server:
            server.repository.promote("demo", "production", "2", "a test")
            server.repository.promote("demo", "staging", "1", "a test")
            server.served += server.repository.versions("demo")
            await until(lambda: any(each["event"] == "gate_broken" for each in logs))
            await until(lambda: all(server.repository.is_measured(each) for each in server.served))
            await looks()
    (told,) = [each for each in logs if each["event"] == "gate_broken"]
    assert (told["model"], told["alias"], told["log_level"]) == ("demo:2", "production", "warning")
    assert "decode at 1 1.80x, at least 5x of demo:1" in told["limits"]


async def test_a_version_with_a_report_is_left_alone(tmp_path: Path) -> None:
    """Also where the report is damaged: a later release may have written it."""
    async with running(tmp_path, "0", versions=2, serves=False) as server:
        one, two = server.repository.versions("demo")
        server.repository.put_report(one, report(one, None))
        server.repository.put_report(two, report(two, None))
        server.repository.layout.report("demo", "2").write_text("damaged")
        server.served += [one, two]
        await looks()
        assert server.jobs.all() == []


async def test_not_before_the_server_is_idle(tmp_path: Path) -> None:
    async with running(tmp_path, "0", serves=False) as server:
        (version,) = server.repository.versions("demo")
        with server.activity.busy():
            server.served.append(version)
            server.clock.advance(60)
            await looks()
            assert server.jobs.all() == [], "a request is there"
        server.clock.advance(9.9)
        await looks()
        assert server.jobs.all() == [], "it was there a moment ago"
        server.clock.advance(0.2)
        await until(lambda: server.repository.is_measured(version))


async def test_a_request_ends_the_work_at_once_and_it_comes_again_later(tmp_path: Path) -> None:
    async with running(tmp_path, "60") as server:
        (version,) = server.served
        await until(lambda: server.repository.is_being_measured(version))
        with server.activity.busy():
            await until(lambda: not server.repository.is_being_measured(version))
            await until(lambda: server.jobs.all() == [])
            assert list((tmp_path / "jobs").iterdir()) == [], "as if it had never been submitted"
        server.clock.advance(15)
        await looks()
        assert server.jobs.all() == [], "it waits twice as long now"
        server.clock.advance(6)
        await until(lambda: server.repository.is_being_measured(version))
        assert not server.repository.is_measured(version)


async def test_another_job_goes_first(tmp_path: Path) -> None:
    async with running(tmp_path, "60") as server:
        (version,) = server.served
        await until(lambda: server.repository.is_being_measured(version))
        waiting = server.jobs.submit("evaluate", {"model": "demo:1"})
        await until(lambda: server.jobs.get(waiting.id).state == "running")
        await until(lambda: server.jobs.all() == [server.jobs.get(waiting.id)])


async def test_a_report_that_cannot_be_made_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, "no number") as server:
        await until(lambda: server.jobs.all() and server.jobs.is_idle)
        await looks()
        (job,) = server.jobs.all()
        assert job.state == "failed" and "no number" in (job.error or "")


async def test_a_report_without_memory_for_it_is_skipped_with_one_line(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        async with running(tmp_path, "0", memory=1 << 20) as server:
            await until(lambda: lines)
            await looks()
            assert [(line["event"], line["free_bytes"]) for line in lines] == [("idle_report_skipped", 1 << 20)]
            assert server.jobs.all() == []
            server.memory = PLENTY
            await until(lambda: server.repository.is_measured(server.served[0]))


async def test_no_version_is_measured_twice_at_once(tmp_path: Path) -> None:
    """Another process, as `dosirak model evaluate`, measures it now."""
    async with running(tmp_path, "0", serves=False) as server:
        (version,) = server.repository.versions("demo")
        with server.repository.measuring(version):
            server.served.append(version)
            await looks()
            assert server.jobs.all() == []
            with (
                pytest.raises(Conflict, match="demo:1 is being measured already"),
                server.repository.measuring(version),
            ):
                pass
        await until(lambda: server.repository.is_measured(version))


async def test_a_job_that_is_cancelled_while_its_process_starts_ends(tmp_path: Path) -> None:
    """The process is not known yet when the job is cancelled."""
    async with running(tmp_path, "60", serves=False) as server:
        job = server.jobs.submit("evaluate", {"model": "demo:1"})
        await until(lambda: server.jobs.get(job.id).state == "running")
        async with asyncio.timeout(30):
            await server.jobs.withdraw(job.id)
        assert server.jobs.is_idle and server.jobs.all() == []
