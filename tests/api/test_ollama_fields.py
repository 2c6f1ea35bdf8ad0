"""The fields of Ollama's bodies act, or are refused by name; what asks for nothing is accepted."""

from __future__ import annotations

import json

from tests.api.conftest import Serve
from tests.api.ollama import CHAT, ROUTES, ask, refused
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


async def test_an_option_at_the_wrong_place_is_refused_by_name(world: World) -> None:
    """Ollama's own server takes it and does not act on it."""
    for path, body in ROUTES:
        for field, value in (("num_predict", 1), ("temperature", 0), ("stop", ["x"])):
            answer = await world.client.post(path, json={**body, field: value})
            assert f"`{field}`" in refused(answer)
    assert not world.engine.requests


async def test_options_that_are_null_ask_for_nothing(world: World) -> None:
    """As LangChain writes them."""
    names = ("mirostat", "mirostat_eta", "mirostat_tau", "num_ctx", "num_gpu", "num_thread", "repeat_last_n", "stop")
    for path, _ in ROUTES:
        await ask(
            world, path, options=dict.fromkeys((*names, "repeat_penalty", "temperature", "tfs_z", "top_k", "top_p"))
        )
    assert len(world.engine.requests) == len(ROUTES)
