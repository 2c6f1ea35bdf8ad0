"""Whatever a client sends: a 4xx with a sentence that names the field, never a 5xx, never any work for the engine.

`test_every_field` has every field; here is one wrong value of each kind, what no single field says, and broken bodies.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.api.reading import error, openai_error
from tests.fake_service import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
JSON = {"Content-Type": "application/json"}
CHAT = [{"role": "user", "content": "hi"}]
CALLING: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
BIG = 10**400
UNSUPPORTED, INVALID = "unsupported_field", "invalid_request"


def calling(**changes: Any) -> dict[str, Any]:
    """A chat whose assistant calls a tool with one thing wrong."""
    [call] = CALLING["tool_calls"]
    function = {**call["function"], **changes.pop("function", {})}
    return {"messages": [*CHAT, {**CALLING, "tool_calls": [{**call, "function": function, **changes}]}]}


def text(**more: Any) -> dict[str, Any]:
    return {"inputs": "x", **more}


def parameters(**given: Any) -> dict[str, Any]:
    return {"inputs": "x", "parameters": given}


STOPS: list[Any] = ["", [""], ["a" * 65], ["a"] * 17, [1], 5]
BIASES: list[Any] = [{"x": 1}, {"1": 101}, {"-1": 1}, [], {"9" * 12: 1}, {"1": None}, {"400": 1}, {"²": 1}]
WRONG: list[tuple[dict[str, Any], str]] = [
    *((parameters(max_new_tokens=value), "parameters.max_new_tokens") for value in (0, 2**31, 1.5, "5", True)),
    *((parameters(temperature=value), "parameters.temperature") for value in (-0.1, 101, 1e300, "1")),
    *((parameters(seed=value), "parameters.seed") for value in (-1, 1.0)),
    *((parameters(n=value), "64 bits") for value in (2**63, BIG, -BIG)),
    *((parameters(stop=value), "parameters.stop") for value in STOPS),
    *((parameters(logit_bias=value), "logit_bias") for value in BIASES),
    (parameters(logit_bias={str(n): 1 for n in range(1025)}), "logit_bias"),
    (parameters(max_tokens=1, max_new_tokens=2), "parameters.max_tokens"),
    (parameters(n=3, best_of=2), "parameters.best_of"),
    (parameters(min_new_tokens=3, max_tokens=2), "parameters.min_new_tokens"),
    ({}, "inputs"),
    (text(messages=CHAT), "inputs"),
    (text(text_input="y", input_ids=[1]), "send exactly one"),
    ({"inputs": ""}, "inputs"),
    ({"input_ids": []}, "input_ids"),
    *(({"input_ids": [id]}, "input_ids") for id in (-1, 400, 2**31, 1.0, True)),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": CHAT * 4097}, "messages"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{**CHAT[0], "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ({"messages": [*CHAT, {"role": "tool", "content": "x", "tool_call_id": "c"}]}, "[1].tool_call_id"),
    ({"messages": [{**CHAT[0], "tool_calls": CALLING["tool_calls"]}]}, "messages[0].tool_calls"),
    ({"messages": [*CHAT, {**CALLING, "tool_calls": [{}]}]}, "messages[1].tool_calls[0].id"),
    ({"messages": [*CHAT, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [*CHAT, {**CALLING, "content": None}], "session_id": "s_1"}, "messages"),
    (calling(type="custom"), "messages[1].tool_calls[0].type"),
    (calling(function={"arguments": "[]"}), "tool_calls[0].function.arguments"),
    (calling(function={"arguments": "a: 1"}), "tool_calls[0].function.arguments"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0]"),
    *((text(model=name), "not a valid") for name in ("../etc", "a/b", "DEMO", "demo:", "demo@", "demo\x00", ".demo")),
    (text(model="m" * 257), "model"),
    (text(model="demo:1@production"), "model reference"),
    (text(deadline_ms=-5), "deadline_ms"),
    (text(request_id="a b\r\n"), "request_id"),
    ({"messages": CHAT, "documents": [{"text": "x"}] * 257}, "documents"),
]
"""The body of `/generate`, and what the refusal names."""
CANNOT_ACT: list[tuple[dict[str, Any], str]] = [
    (text(banana=None), "banana"),
    (parameters(max_new_token=1), "parameters.max_new_token"),
    ({"messages": [{**CHAT[0], "x": 1}]}, "messages[0].x"),
    (text(session_id="s_1"), "session_id"),
    (parameters(grammar={"type": "json", "value": {"items": {"not": {}}}}), "parameters.grammar.value.items.not"),
    (parameters(grammar={"type": "regex", "value": "a"}, ignore_eos=True), "parameters.ignore_eos"),
    (parameters(grammar={"type": "choice", "value": ["a"]}, min_new_tokens=1), "parameters.min_new_tokens"),
    (parameters(watermark=0), "parameters.watermark"),
    (text(context={"policy": "window"}), "context.policy"),
    (text(context={"knowledge": True}), "context.knowledge"),
    (text(documents=[{"text": "x"}]), "documents"),
    ({"messages": CHAT, "parameters": {"return_full_text": True}}, "parameters.return_full_text"),
    *(
        (text(stream=True, parameters={name: value}), f"parameters.{name}")
        for name, value in {"n": 2, "best_of": 2, "return_full_text": True, "decoder_input_details": True}.items()
    ),
]


async def refused(world: World, path: str, body: object) -> httpx.Response:
    before = len(world.engine.requests)
    response = await world.client.post(path, content=json.dumps(body), headers=JSON)
    assert len(world.engine.requests) == before, "no work for the engine"
    assert world.app.state.service.answers.admission.in_progress == 0
    return response


async def test_wrong_fields(shared: World) -> None:
    for body, named in WRONG:
        assert named in error(await refused(shared, "/generate", body), 422, INVALID)["error"]


async def test_fields_that_cannot_act(shared: World) -> None:
    for body, named in CANNOT_ACT:
        assert f"{named}`" in error(await refused(shared, "/generate", body), 422, UNSUPPORTED)["error"]


async def test_fields_that_ask_for_nothing_are_taken(shared: World) -> None:
    for body in (
        text(session_id=None, model=None, parameters=None, stream=None, context=None),
        parameters(**dict.fromkeys(("temperature", "top_p", "stop", "seed", "grammar", "watermark", "n"))),
        text(parameters={"watermark": False, "best_of": 1, "stop": []}, context={"policy": "refuse"}),
        {"messages": [{**CHAT[0], "tool_calls": None, "refusal": None, "name": None}], "documents": []},
        {"text_input": "x", "parameters": {"bad_words": [""], "stop_words": []}},
    ):
        response = await shared.client.post("/generate", json=body)
        assert response.status_code == 200, response.text


TWO = {"regex": "a", "choice": ["a"]}
OPENAI: list[tuple[dict[str, Any], str, str]] = [
    *(({"temperature": value}, INVALID, "temperature") for value in (-1, 2.1, "1", True)),
    ({"stream_options": {"include_usage": True}}, INVALID, "stream_options"),
    ({"top_logprobs": 2}, INVALID, "top_logprobs"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, INVALID, "max_tokens"),
    ({"messages": []}, INVALID, "messages"),
    ({"banana": 1}, UNSUPPORTED, "banana"),
    ({"tool_choice": "required"}, INVALID, "tool_choice"),
    ({"response_format": {"type": "json_schema"}}, INVALID, "response_format.json_schema"),
    ({"guided_regex": "(?=a)"}, INVALID, "guided_regex"),
    ({"guided_json": "{"}, INVALID, "guided_json"),
    ({"guided_json": {"properties": {"a": {"typ": "string"}}}}, UNSUPPORTED, "guided_json.properties.a.typ"),
    ({"guided_regex": "a", "min_tokens": 1}, UNSUPPORTED, "min_tokens"),
    ({"guided_regex": "a", "ignore_eos": True}, UNSUPPORTED, "ignore_eos"),
    ({"guided_choice": ["a", ""]}, INVALID, "guided_choice"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, INVALID, "guided_choice"),
    ({"structured_outputs": TWO}, INVALID, "structured_outputs.json"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, INVALID, "structured_outputs.grammar"),
    ({"store": True, "session_id": "s_1"}, UNSUPPORTED, "store"),
    ({"reasoning_effort": "low"}, UNSUPPORTED, "reasoning_effort"),
    ({"chat_template_kwargs": {"tools": 1}}, UNSUPPORTED, "chat_template_kwargs.tools"),
]


async def test_wrong_fields_in_openais_words(shared: World) -> None:
    for more, code, param in OPENAI:
        answer = await refused(shared, "/v1/chat/completions", {"messages": CHAT, **more})
        body = openai_error(answer, 400, code)
        assert body["type"] == "invalid_request_error"
        assert body["param"].split("[")[0] == param


PROMPTS: list[Any] = ["", [], [[]], [""], ["a", 1], [1, "a"], [-1], [True], 5, None, {}, [400], ["a"] * 65, [[1], []]]


async def test_wrong_completions(shared: World) -> None:
    for body, code, param in (
        *(({"prompt": prompt}, INVALID, "prompt") for prompt in PROMPTS),
        ({"prompt": "x", "best_of": 2, "stream": True}, UNSUPPORTED, "best_of"),
        ({"prompt": "x", "best_of": 1, "n": 2}, INVALID, "best_of"),
        ({"prompt": "x", "min_tokens": 17}, INVALID, "min_tokens"),
    ):
        assert openai_error(await refused(shared, "/v1/completions", body), 400, code)["param"] == param


RAW: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"   ", "empty"),
    (b"{", "not JSON"),
    (b'{"inputs": "x"', "not JSON"),
    (b'{"inputs": "x"} {}', "not JSON"),
    (b"{'inputs': 'x'}", "not JSON"),
    (b'{"inputs": "x",}', "not JSON"),
    (b'{"inputs": "a\nb"}', "not JSON"),
    (b"null", "object"),
    (b"[]", "object"),
    (b'"inputs"', "object"),
    (b"5", "object"),
    (b'{"inputs": NaN}', "NaN"),
    (b'{"inputs": "x", "parameters": {"temperature": NaN}}', "NaN"),
    (b'{"inputs": "x", "parameters": {"temperature": Infinity}}', "Infinity"),
    (b'{"inputs": "x", "parameters": {"temperature": -Infinity}}', "Infinity"),
    (b'{"inputs": "x", "parameters": {"temperature": 1e999}}', "double"),
    (b'{"inputs": "x", "parameters": {"logit_bias": {"1": -1e999}}}', "double"),
    (b'{"inputs": "x", "parameters": {"n": ' + b"9" * 400 + b"}}", "64 bits"),
    (b'{"inputs": "x", "parameters": {"n": ' + b"9" * 5000 + b"}}", "64 bits"),
    (b'{"inputs": "x", "parameters": {"n": -' + b"9" * 30 + b"}}", "64 bits"),
    (b'{"inputs": "\\ud800"}', "surrogate"),
    (b'{"inputs": "a\\udfffb"}', "surrogate"),
    (b'{"\\ud800": 1, "inputs": "x"}', "surrogate"),
    (b'{"messages": [{"role": "user", "content": "\\udc00\\ud800"}]}', "surrogate"),
    (b'{"inputs": "x", "parameters": {"stop": ["\\ud83d"]}}', "surrogate"),
    (b'{"inputs": "x", "inputs": "y"}', "twice"),
    (b'{"inputs": "x", "parameters": {"n": 1, "n": 2}}', "twice"),
    (b'{"\\ud800": 1, "\\ud800": 2}', "twice"),
    (b"\xef\xbb\xbf" + b'{"inputs": "x"}', "not JSON"),
    ('{"inputs": "x"}'.encode("utf-16"), "UTF-8"),
    (b'{"inputs": "\xff"}', "UTF-8"),
    (b'{"inputs": "\xed\xa0\x80"}', "UTF-8"),
    (b'{"inputs": "\xc0\xaf"}', "UTF-8"),
    (b"[" * 33 + b"]" * 33, "deep"),
    (b"[" * 32 + b"]" * 32, "object"),
    (b'{"a":' * 40 + b"1" + b"}" * 40, "deep"),
    (b"[" * 100_000, "deep"),
    (b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}", "deep"),
    (b'{"a":' * 50_000, "deep"),
    (b"{" + b",".join(b'"k%d":1' % n for n in range(2049)) + b"}", "keys"),
    (b"\x00", "not JSON"),
    (b"\x80\x04\x95\x10.", "UTF-8"),
]


async def test_bodies_that_are_not_what_they_should_be(shared: World) -> None:
    for raw, says in RAW:
        response = await shared.client.post("/generate", content=raw, headers=JSON)
        assert says in error(response, 422, INVALID)["error"], raw[:80]
        theirs = await shared.client.post("/v1/chat/completions", content=raw, headers=JSON)
        assert theirs.status_code == 400
        assert theirs.json()["error"]["type"] == "invalid_request_error"


GOOD = b'{"inputs": "x", "parameters": {"max_new_tokens": 1}}'
TYPES = (
    "text/plain",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonx",
    "application/json; charset=utf-16",
    "application/json; charset=latin-1",
)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/deployments"])
async def test_media_types(shared: World, path: str) -> None:
    check = openai_error if path == "/v1/completions" else error
    encodings = ({**JSON, "Content-Encoding": name} for name in ("gzip", "br", "GZIP", "identity, gzip"))
    for headers in ({}, *({"Content-Type": kind} for kind in TYPES), *encodings):
        check(await shared.client.post(path, content=GOOD, headers=headers), 415, "unsupported_media_type")


async def test_json_by_any_spelling(shared: World) -> None:
    for kind in ("application/json", "Application/JSON", 'application/json; charset="UTF-8"'):
        response = await shared.client.post("/generate", content=GOOD, headers={"Content-Type": kind})
        assert response.status_code == 200, response.text


async def _chunks(size: int) -> AsyncIterator[bytes]:
    yield b'{"inputs": "'
    for _ in range(size // 1000):
        yield b"a" * 1000


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/tokenize"])
async def test_size_declared_and_real(shared: World, path: str) -> None:
    limit = shared.settings.max_body_bytes
    declared = await shared.client.post(path, content=b"x" * (limit + 1), headers=JSON)
    chunked = await shared.client.post(path, content=_chunks(limit + 5000), headers=JSON)
    for response in (declared, chunked):
        if path.startswith("/v1"):
            openai_error(response, 413, "too_large")
        else:
            assert error(response, 413, "too_large")["max_body_bytes"] == limit
    lying = {**JSON, "Content-Length": "9" * 30}
    assert (await shared.client.post(path, content=b"{}", headers=lying)).status_code == 413


async def test_unknown_model(shared: World) -> None:
    for name in ("gpt-4o", "demo:99", "demo@nobody"):
        error(await refused(shared, "/generate", {"inputs": "x", "model": name}), 404, "not_found")
        body = {"messages": CHAT, "model": name}
        assert openai_error(await refused(shared, "/v1/chat/completions", body), 404, "not_found")["param"] == "model"


async def test_a_refusal_says_what_the_field_must_be(shared: World) -> None:
    for body, says in (
        ({"inputs": "x", "parameters": {"temperature": -1}}, "`parameters.temperature` must be at least 0"),
        ({"inputs": "x", "parameters": {"top_p": 0}}, "`parameters.top_p` must be above 0"),
        ({"inputs": "x", "parameters": {"n": 9}}, "`parameters.n` must be at most 8"),
        ({"inputs": "x", "parameters": {"n": "2"}}, "`parameters.n` must be a valid integer"),
        ({"messages": []}, "`messages` must have at least 1 item(s)"),
        ({"inputs": "x", "user": "u" * 300}, "`user` must have at most 256 characters"),
        ({"inputs": "x", "request_id": " "}, "`request_id` must match ^[A-Za-z0-9._:-]{1,128}$"),
    ):
        assert error(await refused(shared, "/generate", body), 422, INVALID)["error"] == says


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/generate", {"parameters": {"stop": 5}}, "`parameters.stop` must be a string or a list of strings"),
        ("/api/generate", {"options": {"stop": 5}}, "`options.stop` must be a string or a list of strings"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": 5}]},
            "`messages[0].content` must be a string or a list of parts of type text",
        ),
        ("/v1/responses", {"input": 5}, "`input` must be a string or a list of items"),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": {}}]},
            "`input[0].content` must be a string or a list of parts",
        ),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "call_id": "a", "output": 5}]},
            "`input[0].output` must be a string or a list of parts",
        ),
        ("/v1/messages", {"system": 5}, "`system` must be a string or a list of blocks"),
        ("/v1/messages", {"system": [{}]}, "`system[0].type` is missing: add it"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": True}]},
            "`messages[0].content` must be a string or a list of blocks",
        ),
    ],
)
async def test_a_text_or_a_list_is_told_both_forms(shared: World, path: str, fields: dict[str, Any], says: str) -> None:
    whole: dict[str, dict[str, Any]] = {
        "/generate": {"inputs": "x"},
        "/api/generate": {"model": "demo", "prompt": "x"},
        "/v1/chat/completions": {},
        "/v1/responses": {},
        "/v1/messages": {"max_tokens": 1, "messages": CHAT},
    }
    found = (await shared.client.post(path, json={**whole[path], **fields})).json()["error"]
    assert (found if isinstance(found, str) else found["message"]) == says


SENT: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": [5, 400]}, "prompt"),
    ("/v1/completions", {"prompt": [[5], [400]]}, "prompt"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"400": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": [400]}, "stop_token_ids"),
    ("/v1/completions", {"prompt": "a", "stop_token_ids": [20], "guided_choice": ["a"]}, "stop_token_ids"),
    ("/v1/embeddings", {"input": [5, 400]}, "input"),
    ("/v1/embeddings", {"input": "a" * 900}, "input"),
    ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ("/v1/chat/completions", {"messages": CHAT, "logit_bias": {"400": 1}}, "logit_bias"),
    ("/generate", {"input_ids": [5, 400]}, "input_ids"),
    ("/generate", {"text_input": ""}, "text_input"),
    ("/v2/models/demo/generate", {"text_input": ""}, "text_input"),
    ("/api/embed", {"input": [""]}, "input"),
]


@pytest.mark.parametrize(("path", "body", "name"), SENT)
async def test_an_error_names_the_field_that_was_sent(
    shared: World, path: str, body: dict[str, Any], name: str
) -> None:
    answer = await shared.client.post(path, json=body if "/v2/" in path else {"model": "demo", **body})
    assert answer.status_code in (400, 422), answer.text
    told = answer.json()["error"]
    assert told["param"] == name if isinstance(told, dict) else told.startswith((f"`{name}` ", f"{name}: ")), told


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions?model=demo&limit=1&model=demo", "model"),
        ("/v1/sessions?limit=2&limit=1", "limit"),
        ("/v1/files?after=a&after=b", "after"),
        ("/v1/usage?key=a&key=b", "key"),
    ],
)
async def test_a_query_parameter_that_comes_twice_is_refused_by_name(shared: World, path: str, name: str) -> None:
    answer = await shared.client.get(path)
    body = answer.json()
    told = body["error"]["message"] if isinstance(body["error"], dict) else body["error"]
    assert answer.status_code in (400, 422) and f"`{name}` comes 2 times" in told, answer.text
