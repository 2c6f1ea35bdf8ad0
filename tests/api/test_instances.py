"""Two servers with data directories of their own share a PostgreSQL: either may answer, and both say the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest

from models.repository.repository import Repository
from service.storage.records import SharedRecords
from tests import postgres
from tests.fake_service import World, publish, serving
from tests.sessions import needs_postgresql
from tests.waiting import until

SHORT = {"max_new_tokens": 4}


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[World, World]]:
    url = postgres.server().new_database()
    async with AsyncExitStack() as stack:
        worlds = []
        for name in ("one", "two"):
            for _ in range(2):
                publish(Repository(tmp_path / name))
            worlds.append(await stack.enter_async_context(serving(tmp_path / name, database_url=url)))
        yield worlds[0], worlds[1]


async def move(world: World, version: str, **headers: str) -> httpx.Response:
    body = {"version": version, "override": True, "reason": "a test"}
    return await world.client.put("/v1/repository/models/demo/aliases/production", json=body, headers=headers)


def serves(world: World, reference: str) -> bool:
    return reference in [each.reference for each in world.deployments.served()]


def is_answering(world: World, version: str) -> bool:
    deployment = world.deployments.deployed(None)
    return deployment is not None and deployment.is_serving and deployment.manifest.version == version


async def answered(world: World) -> httpx.Response:
    return await world.client.post("/generate", json={"inputs": "hi", "parameters": SHORT})


async def test_a_server_alone_lists_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        response = await world.client.get("/v1/instances")
        (only,) = response.json()["data"]
        assert only["id"] == response.headers["X-Instance"]
        assert only["this"] and only["ready"] and only["living"]
        assert [each["model"] for each in only["loaded"]] == ["demo:1"]
        assert (await world.client.get("/no-such-route")).headers["X-Instance"] == only["id"]


@needs_postgresql
async def test_both_list_both(pair: tuple[World, World]) -> None:
    _, two = pair
    ids = [(await answered(each)).headers["X-Instance"] for each in pair]
    assert len(set(ids)) == 2
    async with asyncio.timeout(60):
        while True:
            found = (await two.client.get("/v1/instances")).json()["data"]
            known = [each["id"] for each in found] == ids and all(each["ready"] for each in found)
            if known and all(each["heartbeat_seconds"] < 3 and each["loaded"] for each in found):
                break
            await asyncio.sleep(0.1)
    assert [each["this"] for each in found] == [False, True]


@needs_postgresql
async def test_moves_under_load_fail_no_request_and_mix_no_answer(pair: tuple[World, World]) -> None:
    """Fifty moves, each seen by both, most within two seconds; every answer ends on the version that it began with."""
    digests: dict[str, str] = {}
    for world in pair:
        first = await move(world, "1")
        assert first.status_code == 200, first.text
        for version in ("1", "2"):
            loaded = await world.client.post("/v1/deployments", json={"model": f"demo:{version}"})
            assert loaded.status_code == 202
        for version in ("1", "2"):
            await until(partial(serves, world, f"demo:{version}"))
            digests[version] = world.deployments.resolve(f"demo:{version}").short_digest
    stop, seen = asyncio.Event(), 0

    async def ask(number: int) -> None:
        nonlocal seen
        while not stop.is_set():
            response = await answered(pair[number % 2])
            assert response.status_code == 200, response.text
            body = response.json()
            assert body["digest"] == digests[body["version"]] and response.headers["X-Model-Version"] == body["model"]
            seen += 1
            await asyncio.sleep(0.01)

    asking = [asyncio.create_task(ask(number)) for number in range(4)]
    waits = list[float]()
    for number in range(50):
        version, (mover, other) = str(number % 2 + 1), pair if number % 3 else pair[::-1]
        shown = await mover.client.get("/v1/repository/models/demo/aliases/production")
        assert shown.status_code == 200, shown.text
        before = shown.headers["ETag"]
        moved = await move(mover, version, **{"If-Match": before})
        assert moved.status_code == 200, moved.text
        began = time.monotonic()
        while (await answered(other)).json()["version"] != version:
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.01)
        waits.append(time.monotonic() - began)
    stop.set()
    await asyncio.gather(*asking)
    assert seen > 50 and median(waits) < 2


@needs_postgresql
async def test_a_chat_of_a_hundred_turns_alternates(pair: tuple[World, World]) -> None:
    session = (await pair[0].client.post("/v1/sessions", json={})).json()["id"]
    for number in range(100):
        body = {
            "session_id": session,
            "messages": [{"role": "user", "content": f"{number}"}],
            "parameters": {"max_new_tokens": 2},
        }
        response = await pair[number % 2].client.post("/generate", json=body)
        assert response.status_code == 200, response.text
        receipt = response.json()["context"]
        assert receipt["used"] == sum(receipt["parts"].values())
    for world in pair:
        texts, cursor = [], None
        while True:
            query = {"limit": 100, **({"cursor": cursor} if cursor else {})}
            page = (await world.client.get(f"/v1/sessions/{session}/messages", params=query)).json()
            texts += [each["content"] for each in page["data"] if each["role"] == "user"]
            if (cursor := page["next_cursor"]) is None:
                break
        assert texts == [str(number) for number in range(100)]


@needs_postgresql
async def test_a_wanted_deployment_is_loaded_and_unloaded_by_both(pair: tuple[World, World]) -> None:
    one, two = pair
    await move(one, "1")
    assert (await one.client.post("/v1/deployments", json={"model": "demo:2"})).status_code == 202
    await until(partial(serves, two, "demo:2"))
    refused = await two.client.delete("/v1/repository/models/demo/versions/2")
    assert refused.status_code == 409, refused.text
    assert (await two.client.delete("/v1/deployments/demo:2")).status_code == 202
    await until(lambda: not serves(one, "demo:2"))


@needs_postgresql
async def test_the_share_of_a_rollout_is_the_same_on_both(pair: tuple[World, World]) -> None:
    one, _ = pair
    await move(one, "1")
    body: dict[str, Any] = {"candidate": "2", "weight": 40, "override": True}
    put = await one.client.put("/v1/repository/models/demo/aliases/production/rollout", json=body)
    assert put.status_code == 200, put.text
    for world in pair:
        await until(partial(world.deployments.rollouts.of, "demo", "production"))
        await until(partial(serves, world, "demo:2"))
    rollouts = [world.deployments.rollouts.of("demo", "production") for world in pair]
    keys = [f"chat {number}" for number in range(500)]
    assert rollouts[0] is not None and rollouts[0] == rollouts[1]
    chosen = [[world.deployments.rollouts.choose(rollouts[0], key) for key in keys] for world in pair]
    assert chosen[0] == chosen[1] and 140 < sum(chosen[0]) < 260


@needs_postgresql
async def test_a_clock_apart_is_not_ready_and_says_by_how_much(
    pair: tuple[World, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    assert (await one.client.get("/readyz")).status_code == 200
    records = one.deployments.repository.records
    assert isinstance(records, SharedRecords)
    records._link._clock = lambda: time.time() + 30
    await until(lambda: records.unfit is not None)
    response = await one.client.get("/readyz")
    assert response.status_code == 503 and "s ahead of the database's" in response.text
    service = one.app.state.service
    swept = list[str]()

    async def sweep(name: str) -> None:
        swept.append(name)

    monkeypatch.setattr(service.files, "sweep", partial(sweep, "files"))
    monkeypatch.setattr(await service.answers.conversations.store(), "sweep", partial(sweep, "sessions"))
    service.answers.conversations._sweep_seconds = 0
    for _ in range(2):
        await service.files.expire()
        await service.answers.conversations._sweep()
    assert not swept and service.batch_worker._server.rests(), "nothing of others expires by this clock"
    records._link._clock = time.time
    await until(lambda: records.unfit is None)
    assert (await one.client.get("/readyz")).status_code == 200
    await service.files.expire()
    await service.answers.conversations._sweep()
    assert swept == ["files", "sessions"] and not service.batch_worker._server.rests()


@needs_postgresql
async def test_without_postgresql_answers_go_on_and_changes_are_503(tmp_path: Path) -> None:
    server = postgres.Server()
    try:
        for _ in range(2):
            publish(Repository(tmp_path))
        async with serving(tmp_path, database_url=server.new_database()) as world:
            assert (await move(world, "1")).status_code == 200
            await until(partial(is_answering, world, "1"))
            server.stop()
            for _ in range(3):
                assert (await answered(world)).json()["version"] == "1"
                for refused in (
                    await move(world, "2"),
                    await world.client.post("/v1/deployments", json={"model": "demo:2"}),
                    await world.client.get("/v1/instances"),
                ):
                    assert refused.status_code == 503, refused.text
                    assert int(refused.headers["Retry-After"]) > 0
            server.start()
            async with asyncio.timeout(10):
                while (await move(world, "2")).status_code != 200:
                    await asyncio.sleep(0.1)
            await until(partial(is_answering, world, "2"))
    finally:
        server.remove()
