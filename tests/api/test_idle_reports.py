"""Reports in idle time in a whole server: its requests end them, and a setting turns them off."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.evaluation.jobs.idle_reports import REPORT_WHEN_IDLE, IdleReports
from service.tasks import BackgroundTasks
from tests.fake_service import World, serving
from tests.waiting import until

VERSION = "/v1/repository/models/demo/versions/1"


async def state(world: World) -> str:
    return str((await world.client.get(VERSION)).json()["report_state"])


async def test_a_served_version_is_measured_until_a_request_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOSIRAK_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("FAKE_JOB_SECONDS", "60")
    async with serving(tmp_path, worker="tests.fake_report_job") as world:
        service, tasks, repository = world.app.state.service, BackgroundTasks(), world.deployments.repository
        (manifest,) = repository.versions("demo")
        assert await state(world) == "not_measured"
        parts = repository, service.jobs, world.deployments.activity, world.deployments.served, tasks
        IdleReports(*parts, idle_seconds=0.05, look_seconds=0.01).start()
        await until(lambda: repository.is_being_measured(manifest))
        assert await state(world) == "measuring"
        answer = await world.client.post("/generate", json={"inputs": "hello", "parameters": {"max_new_tokens": 2}})
        assert answer.status_code == 200
        await until(lambda: not repository.is_being_measured(manifest))
        await tasks.stop()


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_setting_turns_them_off(tmp_path: Path, wanted: bool) -> None:
    async with serving(tmp_path, start=False, idle_reports=wanted) as world:
        async with world.app.router.lifespan_context(world.app):
            shown = world.metrics.exposition().decode()
        assert (f'task="{REPORT_WHEN_IDLE}"' in shown) == wanted
