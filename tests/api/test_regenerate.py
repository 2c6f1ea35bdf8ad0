"""`regenerate` takes every parameter of `/generate` that one answer of a session can have, and refuses the others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.api.reading import error, events
from tests.fake_service import World

ACTS: list[dict[str, Any]] = [
    {"logit_bias": {"5": 1.5}},
    {"n": 1, "best_of": 1},
    {"n": None, "best_of": None, "return_full_text": False},
    {"stop": "하나"},
    {"top_n_tokens": 2, "details": True},
    {"decoder_input_details": True, "details": True},
    {"temperature": 0.5, "seed": 3, "top_p": 0.5, "typical_p": 0.5, "min_p": 0.1, "top_k": 3},
]


@pytest.fixture
async def session(world: World) -> str:
    made = (await world.client.post("/v1/sessions", json={})).json()["id"]
    turn = {"session_id": made, "messages": [{"role": "user", "content": "hi"}], "parameters": {"max_new_tokens": 3}}
    assert (await world.client.post("/generate", json=turn)).status_code == 200
    return str(made)


async def regenerate(world: World, session: str, **body: Any) -> Any:
    return await world.client.post(f"/v1/sessions/{session}/regenerate", json=body)


@pytest.mark.parametrize("parameters", ACTS)
async def test_parameters_act(world: World, session: str, parameters: dict[str, Any]) -> None:
    response = await regenerate(world, session, parameters=parameters)
    assert response.status_code == 200, response.text
    assert response.json()["session_id"] == session
    params = world.engine.requests[-1].params
    assert params.logit_bias == (((5, 1.5),) if "logit_bias" in parameters else ())
    assert params.temperature == parameters.get("temperature", 0.0)
    assert ("details" in response.json()) == bool(parameters.get("details"))


async def test_details_are_those_of_generate(world: World, session: str) -> None:
    details = (await regenerate(world, session, parameters={"details": True, "top_n_tokens": 1})).json()["details"]
    assert details["finish_reason"] == "eos_token"
    assert len(details["tokens"]) == details["generated_tokens"] == len(details["top_tokens"])


async def test_it_streams(world: World, session: str) -> None:
    shown = events(await regenerate(world, session, parameters={"logit_bias": {"5": 1}}, stream=True))
    assert shown[-1]["session_id"] == session


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parameters", [{"n": 2}, {"best_of": 2}, {"return_full_text": True}])
async def test_what_cannot_act_is_refused_by_name(
    world: World, session: str, parameters: dict[str, Any], stream: bool
) -> None:
    refused = error(await regenerate(world, session, parameters=parameters, stream=stream), 422, "unsupported_field")
    assert refused["error"].startswith(f"`parameters.{next(iter(parameters))}`")


async def test_a_stale_revision_and_a_wrong_one(serve: Serve, world: World, session: str) -> None:
    path = f"/v1/sessions/{session}/regenerate"
    error(await world.client.post(path, json={}, headers={"If-Match": '"1"'}), 412, "stale")
    error(await world.client.post(path, json={}, headers={"If-Match": "1"}), 422, "invalid_request")
    assert (await world.client.post(path, json={}, headers={"If-Match": '"2"'})).status_code == 200
