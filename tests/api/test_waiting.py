"""Counts, previews, repetitions of a key and loads take no place of running sequences, and have an end in number and in
time; whoever waits for a load or a drain is answered after it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve
from tests.fake_service import World, publish, serving
from tests.waiting import until

CHAT = [{"role": "user", "content": "hi"}]
READ: dict[str, dict[str, Any] | None] = {
    "/tokenize": {"inputs": "hi"},
    "/detokenize": {"tokens": [1]},
    "/chat_tokenize": {"messages": CHAT},
    "/tokenizer_info": None,
    "/v1/context/preview": {"messages": CHAT},
    "/v1/messages/count_tokens": {"model": "demo", "messages": CHAT},
    "/v1/responses/input_tokens": {"model": "demo", "input": "hi"},
}
"""Paths of what is read, with their bodies."""


async def ask(world: World, path: str, body: dict[str, Any] | None, **headers: str) -> httpx.Response:
    return await world.client.request("POST" if body else "GET", path, json=body, headers=headers)


def asking(world: World, count: int, path: str, body: dict[str, Any] | None, **headers: str) -> Any:
    return asyncio.gather(*(ask(world, path, body, **headers) for _ in range(count)))


def assert_refused(response: httpx.Response, path: str, code: str) -> None:
    assert response.status_code == 503 and int(response.headers["retry-after"]) >= 1, (path, response.text)
    body = response.json()
    told = body["error"] if path.startswith(("/v1/messages", "/v1/responses")) else body
    assert told["code"] == code, (path, response.text)
    assert path != "/v1/messages/count_tokens" or told["type"] == "overloaded_error"


async def test_what_is_read_is_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(max_in_progress=2) as world:
        reading, goes_on = world.app.state.service.answers.reading, asyncio.Event()
        ensure_loaded = world.deployments._ensure_loaded

        async def slowly(reference: Any) -> Any:
            await goes_on.wait()
            return await ensure_loaded(reference)

        monkeypatch.setattr(world.deployments, "_ensure_loaded", slowly)
        for path, body in READ.items():
            goes_on.clear()
            first = asking(world, 2, path, body)
            await until(lambda: reading.in_progress == 2)
            assert_refused(await asyncio.wait_for(ask(world, path, body), 5), path, "overloaded")
            with monkeypatch.context() as patched:
                patched.setattr("service.generation.admission.LONGEST_WAIT_SECONDS", 0.01)
                reading.leave(1)
                assert_refused(await asyncio.wait_for(ask(world, path, body), 5), path, "unavailable")
                reading.enter(1)
            goes_on.set()
            assert [each.status_code for each in await first] == [200, 200], path
            assert reading.in_progress == 0, path
        refused = 'dosirak_admission_rejected_total{reason="overloaded"}'
        assert f"{refused} {len(READ)}.0" in (await world.client.get("/metrics")).text


async def test_repetitions_of_a_key_are_bounded(serve: Serve, tmp_path: Path) -> None:
    held, path, body = asyncio.Event(), "/v1/completions", {"model": "demo", "prompt": "hi", "max_tokens": 1}
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serve(engine={"hold": held}, database_url=url, max_in_progress=2) as world:
        key, waiting = {"Idempotency-Key": "k"}, world.app.state.service.answers.waiting
        first = asking(world, 1, path, body, **key)
        await until(lambda: world.engine.alive)
        others = asking(world, 2, path, body, **key)
        await until(lambda: waiting.in_progress == 2)
        refused = await asyncio.wait_for(ask(world, path, body, **key), 5)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert "retry-after" in refused.headers
        another = asking(world, 1, path, body, **{"Idempotency-Key": "k2"})
        await until(lambda: len(world.engine.alive) == 2)
        held.set()
        answers = [*await first, *await others, *await another]
        assert [each.status_code for each in answers] == [200] * 4 and waiting.in_progress == 0


LOADS = {
    "ollama": ("/api/generate", {"model": "other"}, "/api/generate", {"model": "other", "keep_alive": 0}),
    "kserve": ("/v2/repository/models/other/load", {}, "/v2/repository/models/other/unload", {}),
}


async def test_who_waits_for_a_load_takes_no_place_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 2}}
    async with serving(tmp_path, max_in_progress=1) as world:
        publish(world.deployments.repository, "other")
        waiting, started, start = world.app.state.service.answers.waiting, asyncio.Event(), type(world.engine).start

        async def slowly(engine: Any, on_loading: Any = None) -> None:
            await started.wait()
            await start(engine, on_loading)

        monkeypatch.setattr(type(world.engine), "start", slowly)
        loads = asking(world, 1, "/generate", {**body, "model": "other"})
        await until(lambda: waiting.in_progress == 1)
        assert (await ask(world, "/generate", body)).status_code == 200
        assert_refused(await ask(world, "/generate", {**body, "model": "other"}), "/generate", "overloaded")
        started.set()
        assert [each.status_code for each in await loads] == [200] and waiting.in_progress == 0


@pytest.mark.parametrize("dialect", LOADS)
async def test_a_load_waits_for_the_start_of_the_server(serve: Serve, dialect: str) -> None:
    path, body, *_ = LOADS[dialect]
    async with serve(start=False) as world:
        asked = asyncio.create_task(world.client.post(path.replace("other", "demo"), json=body and {"model": "demo"}))
        await asyncio.sleep(0.05)
        assert not asked.done()
        await world.deployments.start()
        assert (await asked).status_code == 200


@pytest.mark.parametrize("dialect", LOADS)
async def test_a_load_waits_for_the_drain_and_an_unload_for_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    load, loading, unload, unloading = LOADS[dialect]
    async with serving(tmp_path, drain_seconds=60) as world:
        publish(world.deployments.repository, "other")
        started = asyncio.Event()
        start = type(world.engine).start

        async def slowly(engine: Any, on_loading: Any = None) -> None:
            await started.wait()
            await start(engine, on_loading)

        monkeypatch.setattr(type(world.engine), "start", slowly)
        loads = asyncio.create_task(world.client.post(load, json=loading))
        await until(lambda: len(world.deployments.all()) == 2)
        unloads = asyncio.create_task(world.client.post(unload, json=unloading))
        await asyncio.sleep(0.05)
        assert not loads.done() and not unloads.done()
        deployment = world.deployments.all()[1]
        started.set()
        assert (await loads).status_code == (await unloads).status_code == 200
        await until(lambda: deployment not in world.deployments.all())
        assert (await world.client.post(load, json=loading)).status_code == 200
        [_, deployment] = world.deployments.all()
        with deployment.occupied():
            assert (await world.client.post(unload, json=unloading)).status_code == 200
            again = asyncio.create_task(world.client.post(load, json=loading))
            await asyncio.sleep(0.05)
            assert deployment.state == "draining" and not again.done()
        assert (await again).status_code == 200
        assert world.deployments.all()[1] is not deployment
