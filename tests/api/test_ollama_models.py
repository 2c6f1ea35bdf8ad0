"""Ollama's routes about models, and `keep_alive`: what is on disk, what is in memory, and for how long."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticCustomError

from models import __version__
from models.repository.repository import Repository
from service.api.ollama.durations import seconds_of
from service.api.ollama.model_routes import _size
from service.deployments import idle as module
from service.deployments.deployment import DeploymentState
from tests.api.ollama import CHAT, refused
from tests.fake_service import INFO, WINDOW, World, publish, serving
from tests.tools import AS_TAGS, REASONING, WITH_TOOLS
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """demo:1 is production, and so the default model; demo:2 is made from it."""
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.002)
    repository = Repository(tmp_path)
    original = publish(repository)
    publish(repository, parent=original, other={"number": 2})
    repository.promote("demo", "production", "1", "first")
    async with serving(tmp_path, idle_unload_seconds=1800) as served:
        yield served


async def running(world: World) -> dict[str, dict[str, Any]]:
    models = (await world.client.get("/api/ps")).json()["models"]
    return {each["name"]: each for each in models}


async def keep(world: World, model: str, keep_alive: Any, path: str = "/api/generate", **fields: Any) -> dict[str, Any]:
    body = {"model": model, "stream": False, "keep_alive": keep_alive, **fields}
    response = await world.client.post(path, json=body)
    assert response.status_code == 200, response.text
    shown: dict[str, Any] = response.json()
    return shown


def loaded(world: World) -> list[str]:
    return [each.manifest.reference for each in world.deployments.all()]


def left(shown: dict[str, Any]) -> timedelta:
    return datetime.fromisoformat(shown["expires_at"]) - datetime.now(UTC)


async def test_tags(world: World) -> None:
    models = (await world.client.get("/api/tags")).json()["models"]
    assert [each["name"] for each in models] == ["demo:latest", "demo:2", "demo:1"]
    latest, second, first = models
    manifest = world.deployments.resolve("demo:1")
    assert {**latest, "name": "demo:1", "model": "demo:1"} == first, "what the bare name means"
    assert (first["digest"], first["size"]) == (manifest.digest, manifest.size)
    assert len(first["digest"]) == 64 and first["modified_at"] == manifest.created_at
    assert first["details"] == {
        "parent_model": "",
        "format": "safetensors",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "1K",
        "quantization_level": "BF16",
    }
    assert second["details"]["parent_model"] == "demo:1"


@pytest.mark.parametrize("body", [{"model": "demo"}, {"name": "demo:latest"}, {"model": "demo:1", "verbose": False}])
async def test_show(world: World, body: dict[str, Any]) -> None:
    """`<architecture>.context_length` is where litellm finds the window."""
    shown = (await world.client.post("/api/show", json=body)).json()
    info = shown["model_info"]
    assert info["general.architecture"] == "llama" and info["llama.context_length"] == WINDOW
    assert info["general.parameter_count"] == 1000
    assert shown["capabilities"] == ["completion", "tools"] and shown["details"]["family"] == "llama"
    assert (shown["license"], shown["modified_at"]) == (
        "apache-2.0",
        world.deployments.resolve("demo:1").created_at,
    )


async def test_a_template_says_whether_a_version_thinks_and_calls_tools(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=REASONING + "{{ '' if true else '</think>' }}")
    publish(Repository(tmp_path), "other", chat_template="{% broken")
    publish(Repository(tmp_path), "calling", chat_template=WITH_TOOLS)
    publish(Repository(tmp_path), "unread", chat_template="{{ tools }}" + AS_TAGS.replace("function=", "call:"))
    publish(
        Repository(tmp_path), "refusing", chat_template="{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    )
    async with serving(tmp_path) as world:
        shown = (await world.client.post("/api/show", json={"model": "demo:1"})).json()
        tags = {each["name"]: each for each in (await world.client.get("/api/tags")).json()["models"]}
    assert shown["capabilities"] == tags["demo:1"]["capabilities"] == ["completion", "tools", "thinking"]
    assert tags["other:1"]["capabilities"] == ["completion"], "a template that cannot be read"
    assert tags["calling:1"]["capabilities"] == ["completion", "tools"]
    assert tags["unread:1"]["capabilities"] == ["completion"], "calls that cannot be read"
    assert tags["refusing:1"]["capabilities"] == ["completion"]


async def test_show_of_what_is_not_there(world: World) -> None:
    post = world.client.post
    assert "nope" in refused(await post("/api/show", json={"model": "nope"}), 404)
    refused(await post("/api/show", json={"model": "demo:9"}), 404)
    assert "`model` is missing" in refused(await post("/api/show", json={}))
    assert "`name`" in refused(await post("/api/show", json={"model": "demo:1", "name": "demo:2"}))
    assert "`verbose`" in refused(await post("/api/show", json={"model": "demo", "verbose": True}))


async def test_version(world: World) -> None:
    assert (await world.client.get("/api/version")).json() == {"version": __version__}


async def test_ps(world: World) -> None:
    await keep(world, "demo:2", None)
    shown = await running(world)
    assert list(shown) == ["demo:1", "demo:2"], "what stays longest first"
    first, second = shown.values()
    manifest = world.deployments.resolve("demo:1")
    assert (first["digest"], first["size"], first["size_vram"]) == (manifest.digest, INFO.memory_bytes, 0)
    assert (first["context_length"], first["model"]) == (WINDOW, "demo:1")
    assert left(first) > timedelta(days=365 * 20), "the default model stays; Ollama's clients say Forever"
    assert timedelta(minutes=29) < left(second) <= timedelta(minutes=30), "the server's idle time"


@pytest.mark.parametrize(("path", "nothing"), [("/api/generate", {}), ("/api/chat", {"messages": []})])
async def test_an_empty_request_loads_and_unloads(world: World, path: str, nothing: dict[str, Any]) -> None:
    for stream in (False, True):
        shown = await keep(world, "demo:2", None, path, **nothing, stream=stream)
        assert (shown["model"], shown["done"], shown["done_reason"]) == ("demo:2", True, "load")
        assert (shown.get("response"), shown.get("message", {}).get("content")) in (("", None), (None, ""))
        assert loaded(world) == ["demo:1", "demo:2"]
        assert not world.engine.requests
        shown = await keep(world, "demo:2", 0, path, **nothing, stream=stream)
        assert (shown["done"], shown["done_reason"]) == (True, "unload")
        await until(lambda: loaded(world) == ["demo:1"])
    assert (await keep(world, "demo:2", 0, path, **nothing))["done_reason"] == "unload", "it is not loaded"
    headers = {"Idempotency-Key": "no key"}
    assert (await world.client.post(path, json={"model": "demo:2", **nothing}, headers=headers)).status_code == 400


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("path", "text", "fields"),
    [
        ("/api/generate", {"prompt": "a"}, {"options": {"num_ctx": 100000}}),
        ("/api/generate", {"prompt": "a"}, {"options": {"num_ctx": 64, "num_predict": 100000}}),
        ("/api/generate", {"prompt": "a"}, {"think": "high"}),
        ("/api/generate", {"prompt": "a"}, {"format": {"type": "string", "format": "iri"}}),
        ("/api/generate", {"prompt": "a"}, {"format": {"type": "string", "pattern": "(?=a)"}}),
        ("/api/generate", {"prompt": "a", "raw": True}, {"raw": True, "options": {"num_ctx": 100000}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}, {"options": {"num_ctx": 100000}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a"}]}, {"tools": [TOOL, TOOL]}),
        ("/api/embed", {"input": "a"}, {"options": {"num_ctx": 100000}}),
        ("/api/embed", {"input": "a"}, {"dimensions": 60000}),
        ("/api/embeddings", {"prompt": "a"}, {"options": {"num_ctx": 100000}}),
    ],
)
async def test_a_load_refuses_what_a_text_would_be_refused_with(
    world: World, path: str, text: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = {"model": "demo:2", "stream": False, **fields}
    if path.startswith("/api/embed"):
        del body["stream"]
    answered, loading = [await world.client.post(path, json={**body, **each}) for each in (text, {})]
    assert loading.status_code == answered.status_code == 400
    assert loading.json() == answered.json()


async def test_a_load_takes_what_a_text_would_be_answered_with(world: World) -> None:
    options = {"num_ctx": 64, "temperature": 0.5, "num_predict": 8}
    shown = await keep(world, "demo:2", "5m", options=options, format="json", system="Be short.")
    assert (shown["done_reason"], shown["model"]) == ("load", "demo:2")
    assert left((await running(world))["demo:2"]) > timedelta(minutes=4)
    assert not world.engine.requests
    assert (await keep(world, "demo:2", 0, options={"num_ctx": 100000}))["done_reason"] == "unload"


async def test_an_empty_request_names_a_model_that_is_there(world: World) -> None:
    for keep_alive in (None, 0):
        response = await world.client.post("/api/generate", json={"model": "nope", "keep_alive": keep_alive})
        assert "nope" in refused(response, 404)


async def test_the_default_model_is_unloaded_by_its_name_and_comes_back(world: World) -> None:
    await keep(world, "demo", 0)
    await until(lambda: not loaded(world))
    assert (await keep(world, "demo", None, prompt="hi"))["done_reason"] == "stop"
    assert loaded(world) == ["demo:1"]


async def test_keep_alive_is_the_idle_time_of_a_version(world: World) -> None:
    await keep(world, "demo:2", "2h")
    assert timedelta(minutes=119) < left((await running(world))["demo:2"]) <= timedelta(hours=2)
    await keep(world, "demo:2", "1h", prompt="hi")
    assert timedelta(minutes=59) < left((await running(world))["demo:2"]) <= timedelta(hours=1)
    await keep(world, "demo:2", None, prompt="hi")
    assert timedelta(minutes=59) < left((await running(world))["demo:2"]), "the last word stays"
    await keep(world, "demo:2", -1, prompt="hi")
    assert left((await running(world))["demo:2"]) > timedelta(days=365 * 20)
    await keep(world, "demo:2", 0, prompt="hi")
    await until(lambda: loaded(world) == ["demo:1"])


async def test_keep_alive_acts_where_the_server_keeps_everything(tmp_path: Path, world: World) -> None:
    async with serving(tmp_path, idle_unload_seconds=0) as patient:
        await keep(patient, "demo:2", None)
        assert left((await running(patient))["demo:2"]) > timedelta(days=365 * 20)
        await keep(patient, "demo:2", "10ms", "/api/chat", messages=CHAT)
        await until(lambda: loaded(patient) == ["demo:1"])


async def test_what_the_operator_keeps_stays(world: World) -> None:
    """Clients send a few minutes with every request: the server must not become unready by that."""
    await keep(world, "demo", "1ms", prompt="hi")
    await world.client.post("/v1/deployments", json={"model": "demo:2"})
    await keep(world, "demo:2", "1ms", prompt="hi")
    await keep(world, "demo:2", 0, prompt="hi")
    await asyncio.sleep(0.05)
    assert loaded(world) == ["demo:1", "demo:2"] and world.deployments.ready
    assert all(left(each) > timedelta(days=365 * 20) for each in (await running(world)).values())


async def test_a_default_model_without_an_alias_stays_too(tmp_path: Path, world: World) -> None:
    async with serving(tmp_path, default_model="demo:2") as exact:
        await keep(exact, "demo:2", "1ms", prompt="hi")
        await keep(exact, "demo:1", "1ms", prompt="hi")
        await until(lambda: loaded(exact) == ["demo:2"])
        await asyncio.sleep(0.05)
        assert loaded(exact) == ["demo:2"] and len(exact.engines) == 2, "it was not loaded again"


async def test_a_version_on_its_way_out_has_reached_its_end(world: World) -> None:
    await keep(world, "demo:2", None)
    deployment = world.deployments.all()[1]
    with deployment.occupied():
        deployment.state = DeploymentState.DRAINING
        assert left((await running(world))["demo:2"]) <= timedelta()
        assert (await keep(world, "demo:2", 0))["done_reason"] == "unload"
        await asyncio.sleep(0.05)
        assert loaded(world) == ["demo:1", "demo:2"], "it is not drained a second time"
        deployment.state = DeploymentState.READY


DURATIONS = [
    (300, 300.0), (0, 0.0), (0.5, 0.5), (-1, math.inf), ("5m", 300.0), ("1h30m", 5400.0), ("500ms", 0.5), ("0", 0.0),
    ("-1m", math.inf), ("+2s", 2.0), ("1.5h", 5400.0), (".5s", 0.5), ("1m0.5s", 60.5), ("100us", 1e-4),
]  # fmt: skip


@pytest.mark.parametrize(("value", "seconds"), DURATIONS)
def test_durations(value: object, seconds: float) -> None:
    assert seconds_of(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", ["", "5", "m", "5 m", "5m ", "m5", "1d", "--1s", "5mm", "1e3s", True, None, [], "9" * 99]
)
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(PydanticCustomError):
        seconds_of(value)


def test_sizes_are_written_as_ollama_does() -> None:
    sizes = (8_030_261_248, 7_000_000, 12_345_678, 70_000_000_000, 1500, 512)
    assert [_size(each) for each in sizes] == ["8.0B", "7M", "12.35M", "70B", "2K", "512"]
