"""Fields that clients send beside the question: kept with the log, or unknown, and tokens that end an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Serve
from tests.fake_service import World

ASK = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize("ignore_eos", [True, False])
async def test_stop_tokens_reach_the_engine(world: World, ignore_eos: bool) -> None:
    own = world.tokenizer.stop_token_ids
    await world.client.post(
        "/v1/chat/completions", json={**ASK, "stop_token_ids": [5, 6], "ignore_eos": ignore_eos, "max_tokens": 4}
    )
    [request] = world.engine.requests
    assert request.params.stop_token_ids == ((5, 6) if ignore_eos else (5, 6, *own))


async def test_a_stop_token_is_not_in_the_text(world: World) -> None:
    a, b = (world.tokenizer.encode(text, add_special_tokens=False)[0] for text in "ab")
    world.engine.script = lambda request, tokenizer: [a, a, b]
    for include, text in ((False, "aa"), (True, "aab")):
        body = {**ASK, "temperature": 0, "stop_token_ids": [b], "include_stop_str_in_output": include}
        answer = (await world.client.post("/v1/chat/completions", json=body)).json()
        assert answer["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**ASK, "logit_bias": {"400": 5}}),
        ("/v1/chat/completions", {**ASK, "stop_token_ids": [400]}),
        ("/v1/completions", {"prompt": [400]}),
        ("/v1/completions", {"prompt": "hello", "logit_bias": {"2147483647": -100}}),
        ("/v1/embeddings", {"input": [[1], [400]]}),
        ("/generate", {"inputs": "hello", "parameters": {"logit_bias": {"400": 5}}}),
    ],
)
async def test_a_token_that_the_model_lacks_never_reaches_the_engine(
    world: World, path: str, body: dict[str, Any]
) -> None:
    answer = await world.client.post(path, json={"model": "demo", **body})
    assert answer.status_code in (400, 422) and "ids run from 0 to " in answer.text
    assert not world.engine.requests


async def test_an_empty_list_of_stop_strings_leaves_the_versions_own_ends(world: World) -> None:
    for path, body in (
        ("/v1/chat/completions", {**ASK, "stop": []}),
        ("/v1/messages", {**ASK, "max_tokens": 99, "stop_sequences": []}),
        ("/api/chat", {**ASK, "stream": False, "options": {"stop": []}}),
        ("/generate", {"inputs": "hello", "parameters": {"stop": []}}),
    ):
        assert (await world.client.post(path, json={"model": "demo", **body})).status_code == 200
    assert [each.params.stop_token_ids for each in world.engine.requests] == [world.tokenizer.stop_token_ids] * 4


@pytest.mark.parametrize(
    ("path", "body", "said", "why"),
    [
        ("/v1/chat/completions", {**ASK, "stop": ["<|im_start|>"]}, "/choices/0/message/content", "stop"),
        ("/v1/completions", {"prompt": "hello", "stop": "<|im_start|>"}, "/choices/0/text", "stop"),
        ("/v1/messages", {**ASK, "max_tokens": 9, "stop_sequences": ["<|im_start|>"]}, "/content/0/text", "sequence"),
        ("/api/chat", {**ASK, "stream": False, "options": {"stop": ["<|im_start|>"]}}, "/message/content", "stop"),
        ("/generate", {"inputs": "hello", "parameters": {"stop": ["<|im_start|>"]}}, "/generated_text", "stop"),
    ],
)
async def test_a_stop_string_that_is_a_control_token_acts(
    world: World, path: str, body: dict[str, Any], said: str, why: str
) -> None:
    """Clients send the marks of a template as stop strings; such a token adds nothing to the text."""
    a, mark = (world.tokenizer.encode(text, add_special_tokens=False)[0] for text in ("a", "<|im_start|>"))
    world.engine.script = lambda request, tokenizer: [a, mark, a, a]
    answer = (await world.client.post(path, json={"model": "demo", **body})).json()
    text: Any = answer
    for step in said.split("/")[1:]:
        text = text[int(step) if step.isdigit() else step]
    assert text == "a"
    assert why in str(answer), "the reason is told as for any stop string"
    assert world.engine.aborted, "and the engine stops"


UNKNOWN = {**ASK, "banana": 1, "messages": [{**ASK["messages"][0], "mood": "calm"}], "stream_options": None}


async def test_unknown_fields_are_refused_by_default(world: World) -> None:
    answer = await world.client.post("/v1/chat/completions", json=UNKNOWN)
    assert answer.status_code == 400
    assert "x-ignored-fields" not in answer.headers


async def test_ignored_fields_are_named_in_a_header(serve: Serve) -> None:
    async with serve(unknown_fields="ignore") as world:
        plain = await world.client.post("/v1/chat/completions", json={**ASK, "temperature": 0})
        assert "x-ignored-fields" not in plain.headers
        answer = await world.client.post("/v1/chat/completions", json={**UNKNOWN, "temperature": 0})
        assert answer.status_code == 200
        assert set(answer.headers["x-ignored-fields"].split(", ")) == {"banana", "messages[0].mood"}
        assert answer.json()["choices"] == plain.json()["choices"]
        odd = await world.client.post("/generate", json={"inputs": "x", "도시락\r\nx": 1})
        assert odd.status_code == 200 and odd.headers["x-ignored-fields"].isascii()


async def test_parts_forms_and_tensors_are_read_as_every_body(serve: Serve) -> None:
    part = {"type": "text", "text": "hello"}
    parts = [{**part, "cache_control": {}}, part, *({**part, f"x{n}": 1} for n in range(12))]
    tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello"]}
    other = {**tensor, "name": "banana"}
    upload: dict[str, Any] = {"data": {"purpose": "batch", "zzz": "1"}, "files": {"file": ("a.jsonl", b"{}\n")}}
    infer = {"inputs": [{**tensor, "mood": 1}, other], "parameters": {"mood": 1}}
    talk = {"messages": [{"role": "user", "content": parts}]}
    named = ", ".join(f"messages[0].content[{n + 2}].x{n}" for n in range(12))
    for path, sent, told in (
        ("/v1/chat/completions", {"json": talk}, f"messages[0].content[0].cache_control, {named}"),
        ("/v1/files", upload, "zzz"),
        ("/v2/models/demo/infer", {"json": infer}, "inputs[0].mood, banana, parameters.mood"),
        ("/v2/models/demo/generate", {"json": {"text_input": "x", "parameters": {"mood": 1}}}, "parameters.mood"),
    ):
        async with serve() as world:
            refused = await world.client.post(path, **sent)
            assert refused.status_code == 400 and f"`{told.split(', ')[0]}` is not a field" in refused.text
        async with serve(unknown_fields="ignore") as world:
            answer = await world.client.post(path, **sent)
            assert answer.status_code == 200, answer.text
            assert sorted(answer.headers["x-ignored-fields"].split(", ")) == sorted(told.split(", "))


@pytest.mark.parametrize("setting", ["refuse", "ignore"])
@pytest.mark.parametrize(
    ("path", "body", "misplaced", "home"),
    [
        ("/generate", {"inputs": "x", "temperature": 0.9}, "temperature", "parameters.temperature"),
        ("/generate", {"inputs": "x", "parameters": {"stream": True}}, "parameters.stream", "stream"),
        ("/generate", {"inputs": "x", "zzz": 1, "max_new_tokens": 1}, "max_new_tokens", "parameters.max_new_tokens"),
        ("/v1/chat/completions", {**ASK, "include_usage": True}, "include_usage", "stream_options.include_usage"),
        ("/v1/responses", {"input": "x", "format": {"type": "text"}}, "format", "text.format"),
        ("/api/chat", {"model": "demo", **ASK, "num_ctx": 64}, "num_ctx", "options.num_ctx"),
        ("/api/chat", {"model": "demo", **ASK, "options": {"think": False}}, "options.think", "think"),
    ],
)
async def test_a_known_field_at_another_place_is_refused_with_its_place(
    serve: Serve, setting: str, path: str, body: dict[str, Any], misplaced: str, home: str
) -> None:
    async with serve(unknown_fields=setting) as world:
        if setting == "refuse":
            body = {name: value for name, value in body.items() if name != "zzz"}
        answer = await world.client.post(path, json=body)
        assert answer.status_code in (400, 422)
        assert f"`{misplaced}` is not a field at this place: send it as `{home}`" in answer.text


async def test_a_name_that_many_objects_have_is_an_unknown_field(serve: Serve) -> None:
    async with serve(unknown_fields="ignore") as world:
        for path, body in (
            ("/v1/responses", {"input": "x", "id": "1", "type": "response.create"}),
            ("/v1/chat/completions", {"messages": [{**ASK["messages"][0], "id": "1", "model": "demo"}]}),
        ):
            answer = await world.client.post(path, json=body)
            assert answer.status_code == 200 and answer.headers["x-ignored-fields"].count("id") == 1


async def test_known_fields_are_still_refused(serve: Serve) -> None:
    async with serve(unknown_fields="ignore") as world:
        for field, value in (("verbosity", "low"), ("temperature", 9), ("messages", [])):
            answer = await world.client.post("/v1/chat/completions", json={**UNKNOWN, field: value})
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == field
        many = {**ASK, **{f"x{n}": n for n in range(40)}}
        answer = await world.client.post("/v1/chat/completions", json=many)
        assert answer.status_code == 200 and answer.headers["x-ignored-fields"].count(",") == 19
