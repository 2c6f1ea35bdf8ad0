"""The server's background tasks go on after failures; one that does not go on is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from models.imports.upkeep import prune
from models.repository.disk import durable
from models.repository.repository import Repository
from models.repository.rollouts import all_running
from service.deployments import deployments, idle
from service.deployments.deployment import Deployment, DeploymentState
from service.errors import Unavailable
from service.generation.conversations import Conversations
from service.observability.metrics import Metrics
from service.storage.sessions import SessionStore, UnusableDatabase
from service.tasks import BackgroundTasks
from tests.api.reading import error
from tests.fake_service import World, publish, serving
from tests.versions import FACTS, write_weights
from tests.waiting import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (deployments, idle):
        monkeypatch.setattr(module, "_WATCH_SECONDS", 0.002)


def failures(metrics: Metrics, task: str) -> tuple[float, float]:
    """How many, and whether the last pass was one."""
    value = metrics.registry.get_sample_value
    labels = {"task": task}
    counted = value("dosirak_background_task_failures_total", labels)
    return counted or 0.0, value("dosirak_background_task_failing", labels) or 0.0


def stray(directory: Path) -> list[Path]:
    """Files in the rollouts' folder that belong to no alias: a write under way, an older version's, a stranger's."""
    folder = directory / "rollouts" / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / ".production.json.tmp", folder / ".production.json", folder / "No Alias.json"]
    for path in paths:
        path.write_text("[")
    return paths


async def test_a_file_that_is_no_rollout_keeps_no_server_from_following(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path) as world:
        assert (await world.client.post("/generate", json={"inputs": "x"})).json()["model"] == "demo:1"
        stray(tmp_path)
        repository.promote("demo", "production", "2", "second")
        await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])
        assert failures(world.metrics, "follow_aliases") == (0, 0)


async def test_a_server_that_cannot_follow_aliases_is_not_ready_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as world:
        assert (await world.client.get("/readyz")).status_code == 200
        with monkeypatch.context() as patched:
            patched.setattr(world.deployments.rollouts, "refresh", _broken)
            await until(lambda: not world.deployments.ready)
            refused = await world.client.get("/readyz")
            error(refused, 503, "unavailable")
            assert "aliases cannot be followed" in refused.json()["error"]
            counted, failing = failures(world.metrics, "follow_aliases")
            assert counted >= 5 and failing == 1
            assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200, "it still answers"
        await until(lambda: world.deployments.ready)
        assert failures(world.metrics, "follow_aliases")[1] == 0


async def test_a_start_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, start=False) as world:
        refresh, tries = world.deployments.rollouts.refresh, list[int]()

        def refreshed() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("the disk is away")
            refresh()

        monkeypatch.setattr(world.deployments.rollouts, "refresh", refreshed)
        await world.deployments.start()
        await until(lambda: world.deployments.ready and failures(world.metrics, "start") == (2, 0))


async def test_idle_versions_are_unloaded_though_aliases_cannot_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    async with serving(tmp_path, idle_unload_seconds=0.01) as world:
        monkeypatch.setattr(world.deployments.rollouts, "refresh", _broken)
        await world.deployments.ensure_loaded("demo:1")
        await until(lambda: [each.manifest.version for each in world.deployments.all()] == ["2"])


async def test_an_engine_that_cannot_be_ended_is_not_in_the_way_of_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        _break_end(world)
        assert (await world.client.delete("/v1/deployments/demo:1")).status_code == 202
        await until(lambda: not world.deployments.all())
        assert failures(world.metrics, "unload") == (1, 1)
        assert (await world.client.post("/generate", json={"inputs": "x"})).status_code == 200


async def test_a_load_whose_clean_up_fails_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def load(*_: object) -> None:
        raise OSError("no process can be ended")

    async with serving(tmp_path, start=False, preload=False) as world:
        monkeypatch.setattr(Deployment, "load", load)
        await world.deployments.start()
        await until(lambda: world.deployments.phase == "started")
        refused = error(await world.client.post("/generate", json={"inputs": "x"}), 503, "unavailable")
        assert "could not be loaded" in refused["error"], "nobody waits for what will not come"
        await until(lambda: world.deployments.all()[0].state is DeploymentState.FAILED)


async def test_one_engine_that_cannot_be_ended_keeps_no_other_from_ending(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    async with serving(tmp_path) as world:
        await world.deployments.ensure_loaded("demo:1")
        _break_end(world)
        await world.deployments.stop()
        assert [engine.state.value for engine in world.engines] == ["ready", "stopped"]


async def test_expired_sessions_are_removed_after_a_time_without_a_database(tmp_path: Path) -> None:
    metrics, tries = Metrics(), list[int]()

    async def open_store() -> SessionStore:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("the server is away")
        return await SessionStore.open(f"sqlite+aiosqlite:///{tmp_path}/sessions.db")

    tasks = BackgroundTasks(metrics.background_task, first_delay=0.001)
    conversations = Conversations(open_store, sweep_seconds=0.001, tasks=tasks)
    conversations.start()
    await until(lambda: len(tries) == 3 and failures(metrics, "expire_sessions")[1] == 0)
    assert failures(metrics, "expire_sessions")[0] > 0
    await conversations.stop()
    await tasks.stop()


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (UnusableDatabase("it is of a newer version"), "cannot be used: it is of a newer version"),
        (ImportError(name="asyncpg"), "needs the Python package asyncpg"),
        (RuntimeError("a user's text"), "its log says why"),
    ],
)
async def test_a_database_that_cannot_be_used_is_logged_once(failure: Exception, said: str) -> None:
    async def open_store() -> SessionStore:
        raise failure

    conversations = Conversations(open_store, tasks=BackgroundTasks())
    with capture_logs() as logged:
        for _ in range(3):
            with pytest.raises(Unavailable, match=said):
                await conversations.store()
            conversations._failed_at = float("-inf")
    assert [each["event"] for each in logged] == ["session_database_unusable"]
    assert said in logged[0]["reason"] and logged[0]["log_level"] == "error"
    assert bool(logged[0]["exc_info"]) == isinstance(failure, RuntimeError)


async def test_shutting_down_leaves_no_task(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with serving(tmp_path, start=False) as world:
        async with world.app.router.lifespan_context(world.app):
            await until(lambda: world.deployments.ready)
            kept = {"follow_aliases", "unload_idle", "run_jobs", "expire_sessions"}
            await until(lambda: kept <= {task.get_name() for task in asyncio.all_tasks() - before})
        await until(lambda: not asyncio.all_tasks() - before)


def test_a_search_by_ending_finds_no_write_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the rollouts' nor upkeep's, which would remove it."""
    repository = Repository(tmp_path)
    with repository.stage() as staged:
        write_weights(staged, "weights")
        manifest = repository.publish(staged, replace(FACTS), "demo")
    under_way = []
    for path in (repository.layout.report("demo", "9"), repository.layout.engine / f"{manifest.base_digest}.record"):
        path.parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(Path, "replace", lambda beside, target: under_way.append(beside))
        durable.replace(path, b"x")
        monkeypatch.undo()
    prune(repository)
    assert all(path.is_file() for path in under_way) and len(under_way) == 2
    assert all_running(repository) == []


def _broken(*_: Any) -> None:
    raise OSError("planted")


def _break_end(world: World) -> None:
    async def stop(grace: float = 0.0) -> None:
        raise OSError("planted")

    world.engines[0].stop = stop  # type: ignore[method-assign]
