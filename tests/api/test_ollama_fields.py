"""The fields of Ollama's bodies act, or are refused by name; what asks for nothing is accepted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.api.ollama import CHAT, ROUTES, ask, refused, text_of
from tests.fake_service import WINDOW, World


async def test_defaults_are_ollamas(world: World) -> None:
    for path, _ in ROUTES:
        await ask(world, path)
        await ask(world, path, options=dict.fromkeys(("temperature", "top_k", "repeat_penalty", "num_ctx")))
    for request in world.engine.requests:
        params = request.params
        assert (params.temperature, params.top_k, params.top_p) == (0.8, 40, 0.9)
        assert (params.repetition_penalty, params.min_p, params.typical_p) == (1.0, 0.0, 1.0)
        assert params.max_tokens == WINDOW - len(request.token_ids), "the rest of the window"


async def test_options_reach_the_engine(world: World) -> None:
    options = {"temperature": 0.5, "top_k": 7, "top_p": 0.7, "min_p": 0.2, "typical_p": 0.6, "num_predict": 3}
    penalties = {"repeat_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": -0.3, "repeat_last_n": -1}
    shown = await ask(world, options={**options, **penalties, "seed": 11})
    assert (shown["eval_count"], shown["done_reason"]) == (3, "length")
    params = world.engine.requests[0].params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.7, 0.2)
    assert (params.typical_p, params.max_tokens, params.seed) == (0.6, 3, 11)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.3, 0.4, -0.3)
    await ask(world, options={**penalties, "repeat_last_n": 0, "top_k": -1, "top_p": 1, "num_predict": -1, "seed": -1})
    params = world.engine.requests[1].params
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.top_k, params.top_p) == (0, 1.0) and params.max_tokens > 400 and params.seed >= 0


@pytest.mark.parametrize("stop", ["하나", ["하나", "never"]])
async def test_stop_strings(world: World, stop: Any) -> None:
    shown = await ask(world, options={"stop": stop, "temperature": 0})
    assert (text_of(shown), shown["done_reason"]) == ("안녕하세요, 도시락 ", "stop")


async def test_num_ctx_is_the_window_of_the_request(world: World) -> None:
    shown = await ask(world, options={"num_ctx": 40})
    [request] = world.engine.requests
    assert shown["context_receipt"]["window"] == 40
    assert request.params.max_tokens == 40 - len(request.token_ids)
    long = {**dict(ROUTES)["/api/chat"], "messages": [{"role": "user", "content": "a" * 60}]}
    sentence = refused(await world.client.post("/api/chat", json={**long, "options": {"num_ctx": 40}}))
    assert "the window has 40" in sentence
    assert refused(await world.client.post("/api/chat", json={**long, "options": {"num_ctx": WINDOW + 1}})).startswith(
        f"`options.num_ctx` is {WINDOW + 1}, and the window of demo:1 has {WINDOW} tokens"
    )
    assert len(world.engine.requests) == 1


async def test_truncate_says_whether_old_turns_may_go(serve: Serve) -> None:
    old = [{"role": "user", "content": "a" * 90}, {"role": "assistant", "content": "b"}]
    body = {"model": "demo", "messages": [*old, *CHAT], "options": {"num_ctx": 60}, "stream": False}
    async with serve() as world:
        refused(await world.client.post("/api/chat", json=body))
        refused(await world.client.post("/api/chat", json={**body, "truncate": False}))
        cut = await world.client.post("/api/chat", json={**body, "truncate": True})
        assert cut.headers["x-context-truncated"] == "true"
        assert cut.json()["context_receipt"]["dropped"] == ["m_0", "m_1"]
    async with serve(context_policy="window") as world:
        assert (await world.client.post("/api/chat", json=body)).status_code == 200, "as the operator says"
        refused(await world.client.post("/api/chat", json={**body, "truncate": False}))


async def test_format(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for value in (schema, "json", "", None):
        await ask(world, format=value)
    [kept, any_object, *without] = [request.params.grammar for request in world.engine.requests]
    [grammar] = json.loads(kept)["grammars"]
    assert grammar["json_schema"].items() >= {**schema, "additionalProperties": False}.items()
    assert '"type": "object"' in any_object and "properties" not in any_object
    assert without == ["", ""]


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    *(("/api/chat", {"options": {name: value}}, f"options.{name}") for name, value in (
        ("mirostat", 1), ("tfs_z", 0.5), ("num_keep", 24), ("num_thread", 8), ("num_gpu", 1), ("use_mmap", False),
        ("num_batch", 1), ("penalize_newline", False), ("num_predict", -2), ("num_predict", 0), ("num_predict", 1.5),
        ("temperature", -1), ("top_p", 2), ("top_k", -2), ("stop", 5), ("num_ctx", 0), ("nonsense", 1),
        ("repeat_last_n", -2), ("seed", 1.5),
    )),
    *((path, {name: value}, name) for path in ("/api/chat", "/api/generate") for name, value in (
        ("think", True), ("think", "high"), ("shift", True), ("format", "yaml"), ("format", 5), ("top_logprobs", 1),
        ("keep_alive", "soon"), ("keep_alive", "5"), ("keep_alive", True), ("keep_alive", []), ("model", ""),
        ("stream", "no"), ("options", []), ("session_id", "s"),
    )),
    *(("/api/generate", {name: value}, name) for name, value in (
        ("template", "{{ .Prompt }}"), ("context", [1]), ("suffix", "x"), ("images", ["eA=="]), ("width", 64),
        ("prompt", 5), ("raw", "yes"),
    )),
    ("/api/generate", {"raw": True, "system": "x"}, "system"),
    ("/api/generate", {"raw": True, "truncate": True}, "truncate"),
    ("/api/chat", {"options": {"repeat_penalty": 1.2, "repeat_last_n": 64}}, "options.repeat_last_n"),
    ("/api/chat", {"options": {"presence_penalty": 1, "repeat_last_n": 64}}, "options.repeat_last_n"),
    ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["eA=="]}]}, "messages[0].images"),
    ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ("/api/chat", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ("/api/chat", {"tools": [{"type": "function"}]}, "tools"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "named"), REFUSALS)
async def test_what_cannot_act_is_refused_by_name(world: World, path: str, fields: dict[str, Any], named: str) -> None:
    sentence = refused(await world.client.post(path, json={**dict(ROUTES)[path], **fields}))
    assert f"`{named}`" in sentence
    assert not world.engine.requests


ASKS_NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"tools": [], "think": None, "format": "", "keep_alive": None, "shift": False, "logprobs": False}),
    ("/api/chat", {"messages": [{**CHAT[0], "images": [], "tool_calls": [], "thinking": ""}], "think": False}),
    ("/api/generate", {"template": "", "suffix": "", "system": "", "context": [], "images": [], "raw": False}),
    ("/api/chat", {"options": {"mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "tfs_z": 1, "num_gpu": -1}}),
    ("/api/chat", {"options": {"num_keep": 4, "num_thread": None, "numa": False, "use_mmap": True, "num_batch": 512}}),
    ("/api/chat", {"options": {"repeat_last_n": 64}}),
    ("/api/chat", {"options": {"repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0}}),
    ("/api/chat", {"options": None}),
]


@pytest.mark.parametrize(("path", "fields"), ASKS_NOTHING)
async def test_what_asks_for_nothing_is_accepted(world: World, path: str, fields: dict[str, Any]) -> None:
    await ask(world, path)
    await ask(world, path, **fields)
    first, second = world.engine.requests
    assert first.token_ids == second.token_ids
    assert first.params.repetition_penalty == second.params.repetition_penalty
