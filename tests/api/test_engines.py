"""Which engine serves a version: chosen, shown, refused by name."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from models import __version__
from models.repository.repository import Repository
from service.app import create
from service.settings import Settings
from tests.fake_service import URL, publish, serving
from tests.fake_vllm import interpreter
from tests.waiting import until

TWO_NODES = {"tensor_parallel": 2, "nodes": 2}


@asynccontextmanager
async def with_vllm(directory: Path, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The real app, whose vLLM is the fake one."""
    data = directory / "data"
    repository = Repository(data)
    publish(repository)
    repository.promote("demo", "production", "1", "no first start publishes more beside it")
    python = settings.pop("vllm_python", None) or interpreter(directory)
    given = {"preload": False, "idle_reports": False, "drain_seconds": 0, **settings}
    app = create(Settings(data_dir=data, vllm_python=python, **given))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=URL) as client:
        await until(lambda: app.state.deployments.ready)
        yield client


async def ready(client: httpx.AsyncClient) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            [shown] = (await client.get("/v1/deployments")).json()["data"]
            if shown["state"] in ("ready", "failed"):
                return dict(shown)
            await asyncio.sleep(0.02)


async def test_our_own_engine_is_shown(tmp_path: Path) -> None:
    async with serving(tmp_path) as world:
        [shown] = (await world.client.get("/v1/deployments")).json()["data"]
        assert shown["engine"] == {
            "name": "dosirak",
            "version": __version__,
            "guarantees": {"batch_invariant": True, "replay": "exact", "seed": "any_batch"},
        }


@pytest.mark.parametrize("by_setting", [False, True])
async def test_a_version_is_served_by_vllm(tmp_path: Path, by_setting: bool) -> None:
    async with with_vllm(tmp_path, **({"engine": "vllm"} if by_setting else {})) as client:
        named = {} if by_setting else {"engine": "vllm"}
        accepted = await client.post("/v1/deployments", json={"model": "demo:1", **named})
        assert accepted.status_code == 202, accepted.text
        shown = await ready(client)
        assert shown["state"] == "ready", shown
        assert shown["engine"] == {
            "name": "vllm",
            "version": "0.32.0",
            "guarantees": {"batch_invariant": False, "replay": "greedy", "seed": "alone"},
        }
        body = {"inputs": "a", "parameters": {"max_new_tokens": 4}}
        told = await client.post("/generate", json=body)
        assert told.status_code == 200, told.text
        for parameter, value in (("typical_p", 0.5), ("temperature", 2.5), ("frequency_penalty", -3.0)):
            refused = await client.post("/generate", json={"inputs": "a", "parameters": {parameter: value}})
            assert refused.status_code == 422 and parameter in refused.json()["error"], refused.text
        grammar = {"type": "regex", "value": "a"}
        refused = await client.post("/generate", json={"inputs": "a", "parameters": {"grammar": grammar}})
        assert refused.status_code == 422 and "vLLM" in refused.json()["error"]
        other = await client.post("/v1/deployments", json={"model": "demo:1", "engine": "dosirak"})
        assert other.status_code == 409 and "engine vllm" in other.json()["error"]
        again = await client.post("/v1/deployments", json={"model": "demo:1", "engine": "vllm"})
        assert again.status_code == 202
        batching = (await client.get("/v1/batching")).json()["data"][0]
        assert batching["steps"] == 4 and batching["decisions"]["token_budget"] == 2048
        metrics = (await client.get("/metrics")).text
        assert re.search(r"^dosirak_step_duration_seconds_count\{[^}]*\} 4\.0$", metrics, re.MULTILINE), metrics


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"engine": "tgi"}, 422, "dosirak, vllm"),
        ({"engine": "vllm", "engine_options": {"hosts": 2}}, 422, "tensor_parallel"),
        ({"engine": "vllm", "engine_options": {"executor": "ray"}}, 422, "current platform cpu does not support ray"),
        ({"engine_options": {"tensor_parallel": 2}}, 422, "it has none"),
        ({"engine": "vllm", "draft": "other:1"}, 422, "draft"),
        ({"engine": "vllm", "engine_options": {"nodes": 2}}, 422, "multiple of the nodes"),
        ({"engine": "vllm", "engine_options": TWO_NODES}, 409, "set DOSIRAK_TRUSTED_NETWORK"),
        ({"engine": "vllm", "engine_options": {**TWO_NODES, "max_loras": 1}}, 422, "takes no adapters"),
        ({"engine": "vllm", "engine_options": {**TWO_NODES, "executor": "ray"}}, 422, "leave out `nodes`"),
    ],
)
async def test_what_there_is_not(tmp_path: Path, asked: dict[str, Any], status: int, told: str) -> None:
    async with with_vllm(tmp_path) as client:
        publish(Repository(tmp_path / "data"), "other")
        refused = await client.post("/v1/deployments", json={"model": "demo:1", **asked})
        assert refused.status_code == status and told in refused.json()["error"], refused.text
        assert (await client.get("/v1/deployments")).json()["data"] == []


@pytest.mark.parametrize(
    ("network", "asked", "state", "told"),
    [
        ("198.51.100.0/24", {}, "failed", "No address of this host lies in DOSIRAK_TRUSTED_NETWORK=198.51.100.0/24"),
        ("127.0.0.0/8", {}, "failed", "the nodes of rank 1 did not come within 0.3 s"),
        ("127.0.0.0/8", {"replicas": 2}, "refused", "set `replicas` to 1"),
    ],
)
async def test_an_engine_whose_nodes_cannot_come_says_why(
    tmp_path: Path, network: str, asked: dict[str, Any], state: str, told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with with_vllm(tmp_path, trusted_network=network, node_wait_seconds=0.3, node_port=port) as client:
        body = {"model": "demo:1", "engine": "vllm", "engine_options": TWO_NODES, **asked}
        response = await client.post("/v1/deployments", json=body)
        if response.status_code == 202:
            shown = await ready(client)
            assert shown["state"] == state and told in shown["error"]
        else:
            assert state == "refused" or network == "198.51.100.0/24"
            assert told in response.json()["error"]


@pytest.mark.parametrize(("release", "told"), [("", "not installed"), ("0.31.9", "vLLM 0.31.9 was not tested")])
async def test_a_vllm_that_cannot_serve_is_a_conflict_with_the_command(tmp_path: Path, release: str, told: str) -> None:
    python = interpreter(tmp_path, release=release) if release else tmp_path / "nowhere"
    async with with_vllm(tmp_path, vllm_python=python) as client:
        refused = await client.post("/v1/deployments", json={"model": "demo:1", "engine": "vllm"})
        assert refused.status_code == 409 and "make vllm" in refused.json()["error"]
        assert told in refused.json()["error"]
        assert (await client.get("/v1/deployments")).json()["data"] == []


async def steps(client: httpx.AsyncClient) -> int:
    return int((await client.get("/v1/batching")).json()["data"][0]["steps"])


@pytest.mark.parametrize(
    ("asked", "status", "same"),
    [({}, 200, True), ({"do_sample": True, "seed": 3}, 200, False), ({"presence_penalty": 0.5}, 503, False)],
)
async def test_an_answer_whose_vllm_was_killed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], status: int, same: bool
) -> None:
    """A greedy answer goes on as it was, a sampled one by another draw, and one with penalties is to be sent again."""
    hold = tmp_path / "hold"
    monkeypatch.setenv("FAKE_VLLM_HOLD", str(hold))
    async with with_vllm(tmp_path, engine="vllm") as client:
        assert (await client.post("/v1/deployments", json={"model": "demo:1"})).status_code == 202
        pid = (await ready(client))["replicas"][0]["pid"]
        body = {"inputs": "a", "parameters": {"max_new_tokens": 40, "ignore_eos": True, "details": True, **asked}}
        alone = (await client.post("/generate", json=body)).json()
        assert "replayed" not in alone["timings"]
        before = await steps(client)
        hold.touch()
        killed = asyncio.create_task(client.post("/generate", json=body))
        while await steps(client) < before + 5:
            assert not killed.done()
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        hold.unlink()
        told = await killed
        assert told.status_code == status, told.text
        if status == 200:
            assert told.json()["timings"]["replayed"] == 1
            assert len(told.json()["details"]["tokens"]) == len(alone["details"]["tokens"])
            assert (told.json()["details"]["tokens"] == alone["details"]["tokens"]) is same
        else:
            assert told.headers["retry-after"] and "penalty" in told.json()["error"]
