"""`regenerate` takes every parameter of `/generate` that one answer of a session can have, and refuses the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.api.reading import error, events
from tests.fake_service import World


@pytest.fixture
async def session(world: World) -> str:
    made = (await world.client.post("/v1/sessions", json={})).json()["id"]
    turn = {"session_id": made, "messages": [{"role": "user", "content": "hi"}], "parameters": {"max_new_tokens": 3}}
    assert (await world.client.post("/generate", json=turn)).status_code == 200
    return str(made)


async def regenerate(world: World, session: str, **body: Any) -> Any:
    return await world.client.post(f"/v1/sessions/{session}/regenerate", json=body)


async def test_details_are_those_of_generate(world: World, session: str) -> None:
    details = (await regenerate(world, session, parameters={"details": True, "top_n_tokens": 1})).json()["details"]
    assert details["finish_reason"] == "eos_token"
    assert len(details["tokens"]) == details["generated_tokens"] == len(details["top_tokens"])


async def test_it_streams(world: World, session: str) -> None:
    shown = events(await regenerate(world, session, parameters={"logit_bias": {"5": 1}}, stream=True))
    assert shown[-1]["session_id"] == session


async def test_a_stale_revision_and_a_wrong_one(serve: Serve, world: World, session: str) -> None:
    path = f"/v1/sessions/{session}/regenerate"
    error(await world.client.post(path, json={}, headers={"If-Match": '"1"'}), 412, "stale")
    error(await world.client.post(path, json={}, headers={"If-Match": "1"}), 422, "invalid_request")
    assert (await world.client.post(path, json={}, headers={"If-Match": '"2"'})).status_code == 200
