"""Profiles over HTTP: made one at a time, kept with their version, listed, fetched, compared; and every refusal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.engine.client.engine import EngineFailed, EngineState
from service.engine.protocol.messages import Profiled
from service.observability.profiles.profile import MOST_KEPT, Profile, ProfileFiles
from tests.api.reading import error
from tests.fake_service import World, publish, serving
from tests.profiles import files_of, write_piece
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """With a repository of its own: profiles stay in it."""
    async with serving(tmp_path) as served:
        yield served


async def made(world: World, **body: Any) -> dict[str, Any]:
    """Makes a profile and waits for its end."""
    response = await world.client.post("/v1/profiles", json={"steps": 3, **body})
    assert response.status_code == 202, response.text
    return await ended(world, response.json()["id"])


async def ended(world: World, id: str) -> dict[str, Any]:
    while True:
        shown: dict[str, Any] = (await world.client.get(f"/v1/profiles/{id}")).json()
        if shown["state"] in ("succeeded", "failed"):
            return shown
        assert shown["state"] in ("queued", "running")
        await asyncio.sleep(0.01)


async def test_a_profile_whose_file_was_read_a_moment_before_its_end_is_shown_with_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = world.app.state.service.profiles
    get, was_read, ended_now = profiles._files.get, threading.Event(), threading.Event()

    def read(id: str) -> Profile:
        stored = get(id)
        was_read.set()
        assert ended_now.wait(60)
        return stored  # type: ignore[no-any-return]

    world.engine.profile_hold = asyncio.Event()
    id = (await world.client.post("/v1/profiles", json={"steps": 3})).json()["id"]
    monkeypatch.setattr(profiles._files, "get", read)
    shown = asyncio.create_task(world.client.get(f"/v1/profiles/{id}"))
    await until(was_read.is_set)
    world.engine.profile_hold.set()
    await until(lambda: profiles._making is None)
    ended_now.set()
    assert (await shown).json()["state"] == "succeeded"


async def test_a_profile_of_the_default_model(world: World) -> None:
    response = await world.client.post("/v1/profiles", json={"steps": 4})
    begun = response.json()
    assert response.headers["location"] == f"/v1/profiles/{begun['id']}"
    assert (begun["state"], begun["operators"]) == ("queued", None)
    shown = await ended(world, begun["id"])
    assert (shown["state"], shown["error"], shown["model"]) == ("succeeded", None, "demo:1")
    assert (shown["kind"], shown["steps"], shown["steps_done"], shown["tokens"]) == ("operators", 4, 4, 32)
    assert shown["seconds"] == pytest.approx(0.012)
    assert shown["operators"] == [
        {"name": "aten::mm", "calls": 4, "self_seconds": pytest.approx(0.008), "self_bytes": None},
        {"name": "dosirak::step", "calls": 4, "self_seconds": pytest.approx(0.004), "self_bytes": None},
    ]
    order = world.engine.profiles[0]
    assert (order.steps, order.kind, order.patience_seconds) == (4, "operators", 60.0)


async def test_the_trace_is_chromes(world: World) -> None:
    id = (await made(world))["id"]
    response = await world.client.get(f"/v1/profiles/{id}/trace")
    assert response.headers["content-type"] == "application/json"
    assert f"{id}.pt.trace.json" in response.headers["content-disposition"]
    assert {event["name"] for event in response.json()["traceEvents"]} == {"aten::mm", "dosirak::step"}
    head = await world.client.head(f"/v1/profiles/{id}/trace")
    assert (head.status_code, head.content) == (200, b"")


async def test_the_comparison_names_what_became_slower_first(world: World) -> None:
    a = await made(world)
    world.engine.profiled = {"aten::mm": 0.002, "aten::sort": 0.03, "dosirak::step": 0.0005}
    b = await made(world, steps=7)
    response = await world.client.get("/v1/profiles/compare", params={"a": a["id"], "b": b["id"]})
    found = response.json()
    assert [each["name"] for each in found["operators"]] == ["aten::sort", "dosirak::step", "aten::mm"]
    first = found["operators"][0]
    assert first.pop("name") == "aten::sort"
    assert first == {
        "a_seconds_per_step": 0.0,
        "b_seconds_per_step": pytest.approx(0.03),
        "difference_seconds_per_step": pytest.approx(0.03),
        "a_calls_per_step": 0.0,
        "b_calls_per_step": 1.0,
    }
    assert (found["a"]["id"], found["b"]["id"], found["b"]["steps_done"]) == (a["id"], b["id"], 7)
    assert found["a"]["seconds_per_step"] == pytest.approx(0.003)


async def test_a_second_one_is_refused_while_one_is_made(world: World) -> None:
    world.engine.profile_hold = asyncio.Event()
    first = (await world.client.post("/v1/profiles", json={"steps": 1})).json()
    await until(lambda: bool(world.engine.profiles))
    assert (await world.client.get(f"/v1/profiles/{first['id']}")).json()["state"] == "running"
    refused = await world.client.post("/v1/profiles", json={"steps": 1})
    assert first["id"] in error(refused, 409, "conflict")["error"]
    for path in (f"/v1/profiles/{first['id']}/trace", f"/v1/profiles/compare?a={first['id']}&b={first['id']}"):
        early = await world.client.get(path)
        assert "is running" in error(early, 409, "conflict")["error"]
    world.engine.profile_hold.set()
    assert (await ended(world, first["id"]))["state"] == "succeeded"
    assert (await made(world))["state"] == "succeeded", "the next one may begin"


async def test_a_version_that_is_not_loaded(world: World) -> None:
    publish(world.deployments.repository, "other")
    refused = await world.client.post("/v1/profiles", json={"steps": 1, "model": "other"})
    assert 'load it with POST /v1/deployments {"model": "other:1"}' in error(refused, 404, "not_found")["error"]
    assert (await world.client.post("/v1/profiles", json={"steps": 1, "model": "nobody"})).status_code == 404
    await world.client.post("/v1/deployments", json={"model": "other"})
    await until(lambda: len(world.deployments.served()) == 2)
    assert (await made(world, model="other"))["model"] == "other:1"


async def test_an_engine_that_is_away(world: World) -> None:
    world.engine.profile_end = EngineFailed("the engine process died: it ended with exit code 77")
    shown = await made(world)
    assert shown["state"] == "failed"
    assert shown["error"].startswith("The engine process died: it ended with exit code 77; ask for another")
    assert (shown["operators"], shown["steps_done"]) == (None, 0)


async def test_a_profile_without_steps(world: World) -> None:
    world.engine.profile_end = Profiled("", error="60 s passed without a step: send requests")
    shown = await made(world)
    assert (shown["state"], shown["error"]) == ("failed", "60 s passed without a step: send requests")
    late = await world.client.get(f"/v1/profiles/{shown['id']}/trace")
    assert "is failed" in error(late, 409, "conflict")["error"]


async def test_a_trace_that_cannot_be_read(world: World) -> None:
    world.engine.profiled = {}
    shown = await made(world)
    assert shown["state"] == "succeeded", "steps without any operator are an empty trace"
    assert shown["operators"] == []


async def test_lists_have_pages_newest_first(world: World) -> None:
    ids = [(await made(world))["id"] for _ in range(5)][::-1]
    seen, cursor = list[str](), None
    while True:
        page = (
            await world.client.get("/v1/profiles", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        seen += [each["id"] for each in page["data"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids
    assert (await world.client.get("/v1/profiles?cursor=x")).status_code == 422
    assert (await world.client.get("/v1/profiles?limit=0")).status_code == 422


async def test_a_version_keeps_its_newest(world: World) -> None:
    publish(world.deployments.repository, "other")
    await world.client.post("/v1/deployments", json={"model": "other"})
    await until(lambda: len(world.deployments.served()) == 2)
    other = (await made(world, model="other"))["id"]
    files = ProfileFiles(world.settings.data_dir)
    first = await made(world, model="demo:1")
    stored = files.get(first["id"])
    for number in range(MOST_KEPT):
        files.add(
            msgspec.structs.replace(stored, id=f"profile-{number:032x}", created_at=f"2099-01-01T00:00:{number:02}Z")
        )
    listed = [each["id"] for each in (await world.client.get("/v1/profiles?limit=100")).json()["data"]]
    assert first["id"] not in listed, "the oldest went"
    assert (len(listed), listed[-1]) == (MOST_KEPT + 1, other), "each version keeps its own"
    assert (await world.client.get(f"/v1/profiles/{first['id']}")).status_code == 404


async def test_they_stay_over_restarts_and_an_interrupted_one_is_told(world: World, tmp_path: Path) -> None:
    whole = await made(world)
    world.engine.profile_hold = asyncio.Event()
    cut = (await world.client.post("/v1/profiles", json={"steps": 1})).json()["id"]
    await until(lambda: len(world.engine.profiles) == 2)
    left = write_piece(Path(world.engine.profiles[1].directory), [])
    async with serving(tmp_path) as again:
        assert (await again.client.get(f"/v1/profiles/{whole['id']}")).json() == whole
        assert (await again.client.get(f"/v1/profiles/{whole['id']}/trace")).status_code == 200
        shown = (await again.client.get(f"/v1/profiles/{cut}")).json()
        assert (shown["state"], "server stopped" in shown["error"]) == ("failed", True)
        await made(again)
        assert left.name not in files_of(left.parent), "what it left is removed before the next one"


async def test_they_go_with_their_version(world: World) -> None:
    publish(world.deployments.repository, "other")
    await world.client.post("/v1/deployments", json={"model": "other:1"})
    await until(lambda: len(world.deployments.served()) == 2)
    id = (await made(world, model="other:1"))["id"]
    await world.client.delete("/v1/deployments/other:1")
    await until(lambda: len(world.deployments.all()) == 1)
    assert (await world.client.get(f"/v1/profiles/{id}")).status_code == 200, "unloading keeps them"
    assert (await world.client.delete("/v1/repository/models/other/versions/1")).status_code == 200
    assert (await world.client.get(f"/v1/profiles/{id}")).status_code == 404
    assert not (world.settings.data_dir / "profiles" / "other" / "1").exists()


@pytest.mark.parametrize("id", ["nothing", "profile-0", "*", "..", "profile-" + "*" * 32])
async def test_an_unknown_profile(world: World, id: str) -> None:
    for path in (f"/v1/profiles/{id}/trace", f"/v1/profiles/compare?a={id}&b={id}"):
        assert (await world.client.get(path)).status_code == 404, path


@pytest.mark.parametrize(("query", "missing"), [("", "a"), ("?a=profile-1", "b"), ("?b=profile-1", "a")])
async def test_a_comparison_of_one(world: World, query: str, missing: str) -> None:
    refused = await world.client.get(f"/v1/profiles/compare{query}")
    assert f"`{missing}` is missing" in error(refused, 422, "invalid_request")["error"]


async def test_an_engine_that_restarts_is_told_as_such(world: World) -> None:
    world.engine.state = EngineState.RESTARTING
    refused = await world.client.post("/v1/profiles", json={"steps": 1})
    assert refused.status_code == 503
    assert not world.engine.profiles
