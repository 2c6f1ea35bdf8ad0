"""A server without an engine, as the image's target `api`: everything but what needs a loaded version."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.conftest import Serve
from tests.fake_service import World
from tests.waiting import until

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def engineless(serve: Serve) -> AsyncIterator[World]:
    async with serve(has_engine=False) as world:
        yield world


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "hi"}),
        ("/generate_stream", {"inputs": "hi"}),
        ("/generate", {"inputs": "hi", "model": "nobody"}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/deployments", {"model": "demo:1"}),
    ],
)
async def test_what_needs_an_engine_is_refused_by_name(engineless: World, path: str, body: dict[str, object]) -> None:
    refused = await engineless.client.post(path, json=body)
    assert refused.status_code == 503 and refused.json().get("code", "no_engine") == "no_engine"
    assert "There is no engine" in refused.text and "torch" in refused.text
    assert "retry-after" not in refused.headers, "this server will never have one"


async def test_it_is_ready_and_serves_the_rest(engineless: World) -> None:
    client = engineless.client
    assert (await client.get("/readyz")).status_code == 200
    assert (await client.get("/")).json()["state"] == "started without an engine"
    assert (await client.get("/v1/deployments")).json() == {"data": []}
    assert [each["name"] for each in (await client.get("/v1/repository/models")).json()["data"]] == ["demo"]
    assert (await client.get("/ui/models")).status_code == 200
    session = (await client.post("/v1/sessions", json={})).json()["id"]
    assert (await client.get(f"/v1/sessions/{session}")).status_code == 200
    alias = "/v1/repository/models/demo/aliases/staging"
    assert (await client.put(alias, json={"version": "1", "reason": "without an engine"})).is_success
    assert (await client.delete(alias)).is_success
    assert (await client.get("/metrics")).status_code == 200


async def test_a_turn_that_is_refused_is_not_stored(engineless: World) -> None:
    client: httpx.AsyncClient = engineless.client
    session = (await client.post("/v1/sessions", json={})).json()["id"]
    refused = await client.post("/generate", json={"session_id": session, "messages": MESSAGES})
    assert refused.status_code == 503
    assert (await client.get(f"/v1/sessions/{session}")).json()["message_count"] == 0


async def test_its_end_waits_for_nothing(engineless: World) -> None:
    await engineless.deployments.stop()
    assert not engineless.deployments.ready
    await until(lambda: not engineless.deployments.all())
