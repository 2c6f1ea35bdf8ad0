"""Clients of HTTP take this for granted: HEAD, bodies left out, numbers for versions, quotas that are no disk."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.repository.repository import Repository
from service.api.http.bodies import is_optional
from service.api.http.documented import NAMED
from service.api.repository.schemas import AliasBody, RolloutBody
from tests.api.conftest import Serve
from tests.api.reading import error, openai_error
from tests.fake_service import World, over_http, publish, serving

LIVE = "/v1/live"
ALIAS = "/v1/repository/models/demo/aliases/production"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """demo:1 is production; demo:2 waits. Of sessions and documents there is room for one."""
    repository = Repository(tmp_path)
    for number in range(2):
        publish(repository, other={"number": number})
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path, sessions_max_per_owner=1, sessions_max_messages=2) as served:
        yield served


def gets(world: World) -> list[str]:
    """The path of every GET route that needs no parameter and ends by itself, and of some that need one."""
    paths = world.app.state.service.openapi()["paths"]
    plain = [path for path, methods in paths.items() if "get" in methods and "{" not in path and path != LIVE]
    documents = ["/docs", "/openapi.json"]
    return [*plain, *documents, "/v1/models/demo:1", ALIAS, f"{ALIAS}/history", "/v1/repository/models/demo/versions/1"]


async def test_head_is_get_without_a_body_on_every_route(world: World) -> None:
    for path in gets(world):
        got, head = await world.client.get(path), await world.client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        changing = {"x-request-id", *(["content-length"] if path == "/metrics" else [])}
        shown = [{k: v for k, v in each.headers.items() if k not in changing} for each in (got, head)]
        assert shown[0] == shown[1], path
    assert len(gets(world)) > 15


async def test_head_says_what_get_would_refuse(world: World) -> None:
    for path, status in (("/nowhere", 404), ("/v1/models/nope", 404), ("/generate", 405), ("/v1/jobs/x", 404)):
        head = await world.client.head(path)
        assert (head.status_code, head.content) == (status, b""), path
        assert head.headers["content-type"] == "application/json"
        assert head.headers.get("allow") == ("POST" if status == 405 else None)


async def test_head_on_a_real_socket(world: World) -> None:
    """A server checks the length of what it is given against the header."""
    async with over_http(world) as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/info", "/metrics", "/docs", "/nowhere"):
            head = await client.head(path)
            assert head.content == b"" and int(head.headers["content-length"]) > 0
            assert (await client.get("/livez")).status_code == 200, "the connection goes on"


async def test_head_is_counted_as_head_on_its_route(world: World) -> None:
    await world.client.head("/v1/models/demo:1")
    counted = world.metrics.registry.get_sample_value
    route = next(path for path in world.app.state.service.openapi()["paths"] if path.startswith("/v1/models/{"))
    labels = {"route": route, "method": "HEAD", "status": "200"}
    assert counted("dosirak_http_requests_total", labels) == 1


EMPTY: list[dict[str, Any]] = [
    {},
    {"content": b""},
    {"content": b"", "headers": {"Content-Type": "application/x-www-form-urlencoded"}},
    {"json": {}},
]


@pytest.mark.parametrize("sent", EMPTY)
async def test_an_empty_body_is_an_empty_object_where_nothing_is_required(world: World, sent: dict[str, Any]) -> None:
    assert (await world.client.post("/v1/sessions", **sent)).status_code == 201
    await world.client.put(ALIAS, json={"version": "2"})
    assert (await world.client.post(f"{ALIAS}/rollback", **sent)).status_code == 200
    assert (await world.client.post("/v1/repository/models/demo/versions/1/evaluate", **sent)).status_code == 202


@pytest.mark.parametrize("raw", [b" ", b"\n", b"\x0b"])
async def test_a_blank_body_is_no_json(world: World, raw: bytes) -> None:
    typed = {"Content-Type": "application/json"}
    refused = error(await world.client.post("/v1/sessions", content=raw, headers=typed), 422, "invalid_request")
    assert "empty" in refused["error"]


async def test_an_empty_body_is_refused_where_something_is_required(world: World) -> None:
    error(await world.client.put(ALIAS, content=b""), 415, "unsupported_media_type")
    typed = {"Content-Type": "application/json"}
    assert "empty" in error(await world.client.put(ALIAS, content=b"", headers=typed), 422, "invalid_request")["error"]
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    error(await world.client.post("/v1/sessions", content=b"a=b", headers=form), 415, "unsupported_media_type")
    openai_error(await world.client.post("/v1/chat/completions"), 415, "unsupported_media_type")


async def test_the_document_says_which_bodies_may_be_left_out(world: World) -> None:
    paths = (await world.client.get("/openapi.json")).json()["paths"]
    optional = {name for name, model in NAMED.items() if is_optional(model)}
    bodies = [each["requestBody"] for methods in paths.values() for each in methods.values() if "requestBody" in each]
    of_json = [each for each in bodies if "application/json" in each["content"]]
    named = [(each["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1], each) for each in of_json]
    assert {name for name, each in named if not each["required"]} == optional & {name for name, _ in named}
    assert {"ReasonBody", "SessionBody"} <= optional and not {"AliasBody", "GenerateBody"} & optional


@pytest.mark.parametrize("version", [2, "2"])
async def test_versions_may_be_numbers(world: World, version: object) -> None:
    promoted = await world.client.put(ALIAS, json={"version": version})
    assert promoted.json()["version"] == "2"
    await world.client.post(f"{ALIAS}/rollback")
    rollout = await world.client.put(f"{ALIAS}/rollout", json={"candidate": version, "weight": 5})
    assert (rollout.status_code, rollout.json()["candidate"]) == (200, "2")


@given(st.integers(0, 10**62) | st.from_regex(r"[0-9a-z.-]{1,63}", fullmatch=True))
def test_a_version_is_its_text(version: int | str) -> None:
    assert AliasBody.model_validate({"version": version}).version == str(version)
    assert RolloutBody.model_validate({"candidate": version, "weight": 1}).candidate == str(version)


@given(st.booleans() | st.floats() | st.none() | st.lists(st.integers()) | st.integers(min_value=10**63) | st.just(""))
def test_what_is_no_version_is_refused(version: object) -> None:
    with pytest.raises(ValidationError):
        AliasBody.model_validate({"version": version})


async def test_a_negative_version_is_refused_by_name(world: World) -> None:
    response = await world.client.put(ALIAS, json={"version": -1})
    assert response.status_code in (404, 422) and "-1" in response.json()["error"]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("../../x", 422, "invalid_request"),
        ("", 422, "invalid_request"),
        ("demo:", 422, "invalid_request"),
        ("x" * 257, 422, "invalid_request"),
        ("nope", 404, "not_found"),
        ("demo:9", 404, "not_found"),
        ("demo@nope", 404, "not_found"),
    ],
)
async def test_a_session_of_a_model_that_is_not_there_is_refused(
    world: World, model: str, status: int, code: str
) -> None:
    client = world.client
    refused = error(await client.post("/v1/sessions", json={"model": model}), status, code)
    generated = error(await client.post("/generate", json={"inputs": "x", "model": model}), status, code)
    assert refused["error"] == generated["error"]
    line = json.dumps({"type": "session", "format": 1, "model": model}).encode()
    typed = {"Content-Type": "application/x-ndjson"}
    if model:  # an empty one was stored once, and is none
        imported = await client.post("/v1/sessions/import", content=b"\n" + line + b"\n", headers=typed)
        error(imported, status, code)
    session = (await client.post("/v1/sessions", json={"model": "demo@production"})).json()
    error(await client.patch(f"/v1/sessions/{session['id']}", json={"model": model}), status, code)
    kept = (await client.get(f"/v1/sessions/{session['id']}")).json()
    assert (kept["model"], kept["revision"]) == ("demo@production", session["revision"])
    assert (await client.patch(f"/v1/sessions/{session['id']}", json={"model": None})).json()["model"] is None


async def test_an_owners_quotas_are_429_and_not_to_be_tried_again_soon(world: World) -> None:
    client = world.client
    session = (await client.post("/v1/sessions")).json()["id"]
    quota = await client.post("/v1/sessions")
    assert error(quota, 429, "rate_limited")["limit"] == 1
    assert "retry-after" not in quota.headers and "delete" in quota.json()["error"]
    await client.post("/v1/knowledge", json={"text": "x"})
    error(await client.post("/v1/knowledge", json={"text": "x"}), 429, "rate_limited")
    said = {"session_id": session, "messages": [{"role": "user", "content": "hi"}]}
    assert (await client.post("/generate", json=said)).status_code == 200
    error(await client.post("/generate", json=said), 429, "rate_limited")
    openai_error(await client.post("/v1/chat/completions", json=said), 429, "rate_limited")


async def test_a_full_disk_is_507(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as world:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("models.repository.disk.durable.write", full)
        response = await world.client.post("/v1/repository/models/demo/versions/1/evaluate", json={})
        error(response, 507, "storage_full")
