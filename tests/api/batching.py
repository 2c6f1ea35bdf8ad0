"""Helpers of the tests of batches: a server with its batch worker, input files, and what comes out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.tasks import BackgroundTasks
from tests.api.conftest import Serve
from tests.fake_service import World, serving
from tests.waiting import until

URL = "/v1/chat/completions"
Lines = list[dict[str, Any]]


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.generation.batches.worker.RENEW_SECONDS", 0.05)
    monkeypatch.setattr("service.generation.batches.worker.IDLE_SECONDS", 0.05)


def with_batches(directory: Path) -> Serve:
    """Serves with a data directory of its own, and with its batch worker."""

    @asynccontextmanager
    async def serve(**settings: Any) -> AsyncIterator[World]:
        async with serving(directory, **settings) as world:
            tasks = BackgroundTasks(first_delay=0.005)
            world.app.state.service.batch_worker.start(tasks)
            yield world
            await tasks.stop()

    return serve


def request(custom_id: str, url: str = URL, method: str = "POST", **body: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": f"say {custom_id}"}], "max_tokens": 4, **body}
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def jsonl(lines: Lines) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in lines).encode()


async def upload(world: World, data: bytes) -> str:
    sent = {"files": {"file": ("in.jsonl", data)}, "data": {"purpose": "batch"}}
    response = await world.client.post("/v1/files", **sent)  # type: ignore[arg-type]
    assert response.status_code == 200, response.text
    return str(response.json()["id"])


async def create(world: World, data: bytes, endpoint: str = URL, **more: Any) -> dict[str, Any]:
    body = {"input_file_id": await upload(world, data), "endpoint": endpoint, "completion_window": "24h", **more}
    response = await world.client.post("/v1/batches", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def get(world: World, batch: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await world.client.get(f"/v1/batches/{batch['id']}")).json()
    return found


async def ended(world: World, batch: dict[str, Any], *statuses: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while (now := await get(world, batch))["status"] not in (statuses or ("completed", "failed", "cancelled")):
            await asyncio.sleep(0.02)
    return now


async def content(world: World, id: str | None) -> Lines:
    if id is None:
        return []
    text = (await world.client.get(f"/v1/files/{id}/content")).text
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


async def hold_the_rest(world: World) -> asyncio.Event:
    """Waits until some lines are answered. Those that are not yet stay so until what this returns is set."""
    await until(lambda: len(world.engine.requests) - len(world.engine.alive) >= 3)
    world.engine.hold = asyncio.Event()
    return world.engine.hold
