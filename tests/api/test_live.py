"""`GET /v1/live` on a real socket: what its listeners are told, when it ends, and that nothing runs without them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.repository.repository import Repository
from service.api.operations.live import LiveEvent
from service.engine.protocol.messages import FinishReason
from service.observability.live import feed as feeds
from service.observability.live.feed import Feed
from tests.api.conftest import KEY, Serve
from tests.api.reading import error
from tests.fake_service import CACHED, World, over_http, publish, serving
from tests.waiting import until

LIVE = "/v1/live"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.observability.live.feed.INTERVAL_SECONDS", 0.02)


def feed(world: World) -> Feed:
    found: Feed = world.app.state.service.live
    return found


def tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == feeds.TASK]


@asynccontextmanager
async def listening(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events of one listener, each held against its model."""
    async with client.stream("GET", LIVE) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-cache", "no")
        yield _events(response)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line:
            LiveEvent.model_validate_json(line.removeprefix("data: "))
            yield json.loads(line.removeprefix("data: "))


async def shown(events: AsyncIterator[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one version's figures, as soon as they are these."""
    async with asyncio.timeout(60):
        async for event in events:
            [version] = event["versions"]
            if version.items() >= wanted.items():
                return dict(version)
    raise AssertionError(f"the stream ended before {wanted}")


@asynccontextmanager
async def served(serve: Serve, **fields: Any) -> AsyncIterator[tuple[World, httpx.AsyncClient]]:
    async with serve(**fields) as world, over_http(world) as url, httpx.AsyncClient(base_url=url) as client:
        yield world, client


async def test_figures_are_those_of_the_requests(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.observability.live.feed.INTERVAL_SECONDS", 0.25)
    async with served(serve, engine={"hold": asyncio.Event()}) as (world, client), listening(client) as events:
        idle = await shown(events, state="ready", running=0, waiting=0)
        assert (idle["model"], idle["kv_blocks"]) == ("demo:1", {"total": 64, "free": 64, "cached": 0})
        assert (idle["steps"], idle["ttft_seconds"]) == ([], {"p50": None, "p95": None, "count": 0})
        posts = [asyncio.create_task(client.post("/generate", json={"inputs": "hello world"})) for _ in range(2)]
        await shown(events, running=0, waiting=2, tokens_per_second=0)
        assert world.engine.hold is not None
        world.engine.hold.set()
        answers = [(await post).json() for post in posts]
        tokens, prompt = (sum(each["usage"][f"{name}_tokens"] for each in answers) for name in ("completion", "prompt"))
        told = await until_now(events)
        assert counted(told, "tokens_per_second") == pytest.approx(tokens, rel=0.01)
        assert counted(told, "prompt_tokens_per_second") == pytest.approx(prompt - 2 * CACHED, rel=0.01)
        last = told[-1]["versions"][0]
        assert (last["ttft_seconds"]["count"], last["itl_seconds"]["count"]) == (2, tokens - 2)
        slowest = max(each["timings"]["ttft_ms"] for each in answers) / 1000
        assert last["ttft_seconds"]["p95"] == pytest.approx(slowest, abs=0.001)
        assert last["prefix_hits"] == {"cached_tokens": 2 * CACHED, "prompt_tokens": prompt}
        steps = [step for event in told for step in event["versions"][0]["steps"]]
        assert steps[-1] == {"tokens": 1, "sequences": 1, "predicted_seconds": 0.001, "seconds": 0.002}
        await shown(events, running=0, waiting=0, tokens_per_second=0, steps=[])


@pytest.mark.parametrize("fields", [{}, {"per_step": 3}, {"fail_after": 2, "end": FinishReason.LENGTH}])
async def test_tokens_are_those_of_usage(serve: Serve, fields: dict[str, Any]) -> None:
    """An end without a token is none; further sequences of an answer have tokens, but no first token of the answer."""
    async with serve(engine=fields) as world:
        world.metrics.keep_recent(True)
        body = {"inputs": "hello", "parameters": {"n": 2}}
        usage = (await world.client.post("/generate", json=body)).json()["usage"]
        recent = world.metrics.model("demo", "1").recent
        assert recent is not None
        assert recent.tokens == usage["completion_tokens"] > 2
        assert recent.ttft.percentiles(time.monotonic())["count"] == 1


async def until_now(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events up to one that was made after this call."""
    called, told = time.time() + 0.001, list[dict[str, Any]]()
    while not told or told[-1]["at"] <= called:
        told.append(await anext(events))
    return told


def counted(told: list[dict[str, Any]], rate: str) -> float:
    return float(sum(event["versions"][0][rate] * event["interval_seconds"] for event in told))


async def test_two_listeners_get_the_same_events_of_one_task(serve: Serve) -> None:
    async with served(serve) as (world, client), listening(client) as one, listening(client) as other:
        await until(lambda: feed(world).num_listeners == 2)
        assert tasks() == [feeds.TASK]
        first = {each["at"]: each for each in [await anext(one) for _ in range(20)]}
        second = {each["at"]: each for each in await until_now(other)}
        both = first.keys() & second.keys()  # on a busy machine a listener may miss an event
        assert len(both) > 5 and all(first[at] == second[at] for at in both)


async def test_nothing_runs_when_nobody_listens(serve: Serve) -> None:
    async with served(serve) as (world, client):
        model = world.metrics.model("demo", "1")
        assert (tasks(), feed(world).num_listeners, model.recent) == ([], 0, None)
        async with listening(client) as events:
            await anext(events)
            assert tasks() == [feeds.TASK] and model.recent is not None
        await until(lambda: not tasks() and not feed(world).num_listeners)
        assert model.recent is None
        assert (await client.post("/generate", json={"inputs": "x"})).status_code == 200


async def test_the_65th_listener_is_refused(world: World) -> None:
    listeners = [feed(world).listen() for _ in range(64)]
    refused = await world.client.get(LIVE)
    assert "end one of them" in error(refused, 503, "overloaded")["error"]
    assert int(refused.headers["retry-after"]) > 0
    for listener in listeners:
        feed(world).leave(listener)
    assert (await world.client.head(LIVE)).status_code == 200


async def test_the_end_of_the_server_ends_the_streams(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that the server waits for them: uvicorn cuts a response only after the drain time."""
    monkeypatch.setattr("service.observability.live.feed.INTERVAL_SECONDS", 60.0)
    async with serve() as world, httpx.AsyncClient() as client, asyncio.timeout(30):
        async with over_http(world) as url:
            client.base_url = httpx.URL(url)
            readers = [asyncio.create_task(read_all(client)) for _ in range(2)]
            await until(lambda: feed(world).num_listeners == 2)
        assert await asyncio.gather(*readers) == [0, 0], "each stream has its end, as HTTP wants it"
        assert not feed(world).num_listeners and not tasks()


async def read_all(client: httpx.AsyncClient) -> int:
    async with listening(client) as events:
        return len([each async for each in events])


async def test_a_sample_that_fails_is_told_and_logged(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(serve) as (world, client), client.stream("GET", LIVE) as response:
        lines = response.aiter_lines()
        await anext(lines)
        monkeypatch.setattr(world.deployments, "all", lambda: 1 // 0)
        rest = [line async for line in lines]
        assert rest[-3:-1] == ["event: error", rest[-2]]
        body = json.loads(rest[-2].removeprefix("data: "))
        assert (body["code"], body["request_id"]) == ("internal", response.headers["x-request-id"])
        assert 'background_task_failures_total{task="live"} 1' in world.metrics.exposition().decode()


async def test_head_is_answered_and_the_connection_goes_on(serve: Serve) -> None:
    async with served(serve) as (world, client):
        head = await client.head(LIVE)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
        assert (await client.get("/livez")).status_code == 200
        assert not feed(world).num_listeners


async def test_it_needs_the_key_where_there_is_one(serve: Serve) -> None:
    async with served(serve, admin_key=KEY) as (_, client):
        error(await client.get(LIVE), 401, "unauthorized")
        client.headers["Authorization"] = f"Bearer {KEY}"
        async with listening(client) as events:
            await anext(events)


@pytest.mark.parametrize("change", ["deleted", "without the scope"])
async def test_a_listener_does_not_outlive_its_key(tmp_path: Path, change: str) -> None:
    operator = {"Authorization": f"Bearer {KEY}"}
    publish(Repository(tmp_path))  # keys stay in it
    async with served(partial(serving, tmp_path), admin_key=KEY) as (_, client):
        made = await client.post("/v1/keys", json={"name": "eyes", "scopes": ["models:read"]}, headers=operator)
        bearer = {"Authorization": f"Bearer {made.json()['key']}"}
        async with asyncio.timeout(60), client.stream("GET", LIVE, headers=bearer) as response:
            lines = (line async for line in response.aiter_lines() if line)
            assert (await anext(lines)).startswith("data: ")
            path = f"/v1/keys/{made.json()['id']}"
            if change == "deleted":
                assert (await client.delete(path, headers=operator)).status_code == 204
            else:
                changed = await client.patch(path, json={"scopes": ["sessions"]}, headers=operator)
                assert changed.status_code == 200, changed.text
            last = [line async for line in lines][-2:]
        assert last[0] == "event: error"
        wanted = "unauthorized" if change == "deleted" else "forbidden"
        assert json.loads(last[1].removeprefix("data: "))["code"] == wanted
