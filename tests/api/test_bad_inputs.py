"""Whatever a client sends: a 4xx with a sentence that names the field, never a 5xx, never any work for the engine."""

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


def calling(**changes: Any) -> dict[str, Any]:
    """A chat whose assistant calls a tool with one thing wrong."""
    [call] = CALLING["tool_calls"]
    function = {**call["function"], **changes.pop("function", {})}
    return {"messages": [*CHAT, {**CALLING, "tool_calls": [{**call, "function": function, **changes}]}]}


BIG = 10**400
UNSUPPORTED, INVALID = "unsupported_field", "invalid_request"


PARAMETERS: list[tuple[str, list[Any]]] = [
    ("max_new_tokens", [0, -1, 2**31, 2**63, BIG, 1.5, "5", True, [], {}]),
    ("max_tokens", [0, -1, "5"]),
    ("min_new_tokens", [-1, 2**31, 2**63 - 1, "1", 0.5]),
    ("temperature", [-0.1, 101, 1e300, "1", True, [], BIG]),
    ("top_p", [0, -1, 1.01, "0.5", True]),
    ("top_k", [-1, 2**31, 0.5, "3", BIG]),
    ("min_p", [-0.1, 1.1, "x"]),
    ("typical_p", [0, 1.1, -1]),
    ("repetition_penalty", [0, -1, 101, "1"]),
    ("frequency_penalty", [-2.1, 2.1, "0"]),
    ("presence_penalty", [-2.1, 2.1, []]),
    ("logit_bias", [{"x": 1}, {"1": 101}, {"1": "a"}, {"-1": 1}, [], "a", {"9" * 12: 1}, {"1": None}, {"²": 1}]),
    ("logit_bias", [{str(n): 1 for n in range(1025)}, {"400": 1}, {"2147483647": 1}]),
    ("stop", ["", [""], ["a" * 65], ["a"] * 17, [1], 5, {}, [None]]),
    ("seed", [-1, 2**63, BIG, "1", 1.0, True]),
    ("n", [0, -1, 9, 2**31, 2**63, BIG, "2", True, 1.0]),
    ("best_of", [0, 9, 10**6, "1"]),
    ("top_n_tokens", [-1, 21, 2**31, "1"]),
    ("truncate", [0, -1, 2**31, "5"]),
    ("do_sample", ["true", 1, "yes"]),
    ("details", [1, "true"]),
    ("ignore_eos", [1]),
    ("return_full_text", ["x"]),
    ("include_stop", ["x"]),
]
NATIVE: list[tuple[str, dict[str, Any], str]] = [
    *(
        (name, {"inputs": "x", "parameters": {name: value}}, f"parameters.{name}" if name != "logit_bias" else name)
        for name, values in PARAMETERS
        for value in values
    ),
    ("none", {}, "inputs"),
    ("two", {"inputs": "x", "messages": CHAT}, "inputs"),
    ("two ids", {"inputs": "x", "input_ids": [1]}, "input_ids"),
    ("two triton", {"inputs": "x", "text_input": "y"}, "text_input"),
    ("three", {"inputs": "x", "text_input": "y", "input_ids": [1]}, "send exactly one"),
    ("empty", {"inputs": ""}, "inputs"),
    ("inputs list", {"inputs": ["x"]}, "inputs"),
    ("inputs number", {"inputs": 5}, "inputs"),
    ("inputs null", {"inputs": None}, "inputs"),
    ("no ids", {"input_ids": []}, "input_ids"),
    ("negative id", {"input_ids": [-1]}, "input_ids[0]"),
    ("id past vocabulary", {"input_ids": [400]}, "input_ids"),
    ("id far past vocabulary", {"input_ids": [2**31 - 1]}, "input_ids"),
    ("id past 32 bits", {"input_ids": [2**31]}, "input_ids[0]"),
    ("id float", {"input_ids": [1.0]}, "input_ids[0]"),
    ("id bool", {"input_ids": [True]}, "input_ids[0]"),
    ("no messages", {"messages": []}, "messages"),
    ("messages text", {"messages": "hi"}, "messages"),
    ("message text", {"messages": ["hi"]}, "messages[0]"),
    ("result without its id", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ("id of no result", {"messages": [{**CHAT[0], "tool_call_id": "c"}]}, "messages[0].tool_call_id"),
    ("unknown call", {"messages": [*CHAT, {"role": "tool", "content": "x", "tool_call_id": "c"}]}, "[1].tool_call_id"),
    ("user calls", {"messages": [{**CHAT[0], "tool_calls": CALLING["tool_calls"]}]}, "messages[0].tool_calls"),
    ("empty call", {"messages": [*CHAT, {**CALLING, "tool_calls": [{}]}]}, "messages[1].tool_calls[0].id"),
    ("neither text nor calls", {"messages": [*CHAT, {"role": "assistant"}]}, "messages[1].content"),
    ("null text", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("call of a custom tool", calling(type="custom"), "messages[1].tool_calls[0].type"),
    ("call without a name", calling(function={"name": ""}), "tool_calls[0].function.name"),
    ("arguments as an object", calling(function={"arguments": {}}), "tool_calls[0].function.arguments"),
    ("arguments that are a list", calling(function={"arguments": "[]"}), "tool_calls[0].function.arguments"),
    ("arguments cut off", calling(function={"arguments": '{"a": 1'}), "tool_calls[0].function.arguments"),
    ("too many calls", {"messages": [*CHAT, {**CALLING, "tool_calls": CALLING["tool_calls"] * 129}]}, "tool_calls"),
    ("a template without calls", calling(), "places no tool calls ('f')"),
    ("no role", {"messages": [{"content": "x"}]}, "messages[0].role"),
    ("odd role", {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ("no content", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("null content", {"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ("number content", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("part text", {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0]"),
    ("part more", {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]}, "content[0]"),
    ("long name", {"messages": [{"role": "user", "content": "x", "name": "n" * 65}]}, "messages[0].name"),
    ("calls in a turn", {"messages": [*CHAT, {**CALLING, "content": None}], "session_id": "s_1"}, "messages"),
    ("many messages", {"messages": CHAT * 4097}, "messages"),
    ("parameters list", {"inputs": "x", "parameters": []}, "parameters"),
    ("stream text", {"inputs": "x", "stream": "true"}, "stream"),
    ("model empty", {"inputs": "x", "model": ""}, "model"),
    ("model long", {"inputs": "x", "model": "m" * 257}, "model"),
    ("model number", {"inputs": "x", "model": 5}, "model"),
    *(
        (f"model {name!r}", {"inputs": "x", "model": name}, "not a valid")
        for name in (
            "../etc",
            "a/b",
            "demo:../1",
            "DEMO",
            "demo:",
            "demo@",
            "demo\x00",
            "de mo",
            "demo%2e",
            "데모",
            ".demo",
        )
    ),
    ("model version and alias", {"inputs": "x", "model": "demo:1@production"}, "model reference"),
    ("priority", {"inputs": "x", "priority": 10}, "priority"),
    ("negative priority", {"inputs": "x", "priority": -1}, "priority"),
    ("deadline", {"inputs": "x", "deadline_ms": 0}, "deadline_ms"),
    ("deadline negative", {"inputs": "x", "deadline_ms": -5}, "deadline_ms"),
    ("deadline large", {"inputs": "x", "deadline_ms": 10**12}, "deadline_ms"),
    ("request id", {"inputs": "x", "request_id": "a b\r\n"}, "request_id"),
    ("user", {"inputs": "x", "user": "u" * 257}, "user"),
    ("context text", {"inputs": "x", "context": "window"}, "context"),
    ("context policy", {"inputs": "x", "context": {"policy": "magic"}}, "context.policy"),
    ("context size", {"inputs": "x", "context": {"max_input_tokens": 0}}, "context.max_input_tokens"),
    ("context reserve", {"inputs": "x", "context": {"reserve_output_tokens": -1}}, "context.reserve_output_tokens"),
    ("documents text", {"messages": CHAT, "documents": "x"}, "documents"),
    ("document no text", {"messages": CHAT, "documents": [{"title": "x"}]}, "documents[0].text"),
    ("many documents", {"messages": CHAT, "documents": [{"text": "x"}] * 257}, "documents"),
    ("two lengths", {"inputs": "x", "parameters": {"max_tokens": 1, "max_new_tokens": 2}}, "parameters.max_tokens"),
    ("best_of under n", {"inputs": "x", "parameters": {"n": 3, "best_of": 2}}, "parameters.best_of"),
    (
        "min over max",
        {"inputs": "x", "parameters": {"min_new_tokens": 3, "max_tokens": 2}},
        "parameters.min_new_tokens",
    ),
]
NATIVE_UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("unknown", {"inputs": "x", "banana": 1}, "banana"),
    ("unknown null", {"inputs": "x", "banana": None}, "banana"),
    ("unknown parameter", {"inputs": "x", "parameters": {"max_new_token": 1}}, "parameters.max_new_token"),
    ("unknown in message", {"messages": [{**CHAT[0], "x": 1}]}, "messages[0].x"),
    ("unknown in document", {"messages": CHAT, "documents": [{"text": "x", "y": 1}]}, "documents[0].y"),
    ("unknown in context", {"inputs": "x", "context": {"y": 1}}, "context.y"),
    ("session", {"inputs": "x", "session_id": "s_1"}, "session_id"),
    (
        "grammar",
        {"inputs": "x", "parameters": {"grammar": {"type": "json", "value": {"items": {"not": {}}}}}},
        "parameters.grammar.value.items.not",
    ),
    (
        "grammar and ignore_eos",
        {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "a"}, "ignore_eos": True}},
        "parameters.ignore_eos",
    ),
    (
        "grammar and min_new_tokens",
        {"inputs": "x", "parameters": {"grammar": {"type": "choice", "value": ["a"]}, "min_new_tokens": 1}},
        "parameters.min_new_tokens",
    ),
    ("watermark", {"inputs": "x", "parameters": {"watermark": True}}, "parameters.watermark"),
    ("watermark 0", {"inputs": "x", "parameters": {"watermark": 0}}, "parameters.watermark"),
    ("stop_words", {"text_input": "x", "parameters": {"stop_words": ["a"]}}, "parameters.stop_words"),
    ("bad_words 0", {"text_input": "x", "parameters": {"bad_words": 0}}, "parameters.bad_words"),
    *(
        (f"policy {p} of text", {"inputs": "x", "context": {"policy": p}}, "context.policy")
        for p in ("window", "summarise", "retrieve")
    ),
    ("image", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "content[0].type"),
    ("function role", {"messages": [{"role": "function", "content": "x", "name": "f"}]}, "messages[0].role"),
    ("knowledge of text", {"inputs": "x", "context": {"knowledge": True}}, "context.knowledge"),
    ("documents of text", {"inputs": "x", "documents": [{"text": "x"}]}, "documents"),
    ("full text of chat", {"messages": CHAT, "parameters": {"return_full_text": True}}, "parameters.return_full_text"),
    ("truncated chat", {"messages": CHAT, "parameters": {"truncate": 5}}, "truncate"),
    *(
        (f"streamed {name}", {"inputs": "x", "stream": True, "parameters": {name: value}}, f"parameters.{name}")
        for name, value in {"n": 2, "best_of": 2, "return_full_text": True, "decoder_input_details": True}.items()
    ),
]


async def refused(world: World, path: str, body: object) -> httpx.Response:
    before = len(world.engine.requests)
    response = await world.client.post(path, content=json.dumps(body), headers=JSON)
    assert len(world.engine.requests) == before, "no work for the engine"
    assert world.app.state.service.answers.admission.in_progress == 0
    return response


@pytest.mark.parametrize(
    ("body", "named"), [row[1:] for row in NATIVE], ids=[f"{n}-{row[0]}" for n, row in enumerate(NATIVE)]
)
async def test_wrong_fields(shared: World, body: dict[str, Any], named: str) -> None:
    answer = error(await refused(shared, "/generate", body), 422, INVALID)
    if "64 bits" not in answer["error"]:  # a number that no field could take
        assert named in answer["error"]


@pytest.mark.parametrize(
    ("body", "named"), [row[1:] for row in NATIVE_UNSUPPORTED], ids=[row[0] for row in NATIVE_UNSUPPORTED]
)
async def test_fields_that_cannot_act(shared: World, body: dict[str, Any], named: str) -> None:
    answer = error(await refused(shared, "/generate", body), 422, UNSUPPORTED)
    assert f"{named}`" in answer["error"]


NEUTRAL: list[dict[str, Any]] = [
    {"inputs": "x", "session_id": None, "model": None, "parameters": None, "stream": None, "context": None},
    {"inputs": "x", "parameters": dict.fromkeys(("temperature", "top_p", "stop", "seed", "grammar", "watermark", "n"))},
    {"inputs": "x", "parameters": {"watermark": False, "best_of": 1, "stop": []}, "context": {"policy": "refuse"}},
    {"messages": [{**CHAT[0], "tool_calls": None, "refusal": None, "name": None}], "documents": []},
    {"text_input": "x", "parameters": {"bad_words": [""], "stop_words": []}},
]


@pytest.mark.parametrize("body", NEUTRAL)
async def test_fields_that_ask_for_nothing_are_taken(shared: World, body: dict[str, Any]) -> None:
    response = await shared.client.post("/generate", json=body)
    assert response.status_code == 200, response.text


OPENAI: list[tuple[str, dict[str, Any], str, str]] = [
    *(
        (name, {name: value}, INVALID, name)
        for name, values in dict[str, list[Any]](
            {
                "temperature": [-1, 2.1, "1", True],
                "top_p": [-0.1, 1.1],
                "n": [0, 9, 10**9, "1"],
                "max_tokens": [0, -1, 2**31, "4"],
                "max_completion_tokens": [0, -1, 1.5],
                "frequency_penalty": [2.1, "1"],
                "presence_penalty": [-2.1],
                "seed": [1.5, "x", True],
                "stop": ["", ["a"] * 17, 5],
                "top_logprobs": [21, -1],
                "logprobs": [1, "x"],
                "stream": ["x", 1],
                "top_k": [-2, 0.5],
                "min_p": [1.1],
                "min_tokens": [-1],
                "priority": [10],
                "deadline_ms": [0],
                "repetition_penalty": [0],
                "logit_bias": [{"x": 1}, {"1": 101}, {"400": 1}],
            }
        ).items()
        for value in values
    ),
    ("options alone", {"stream_options": {"include_usage": True}}, INVALID, "stream_options"),
    ("top without logprobs", {"top_logprobs": 2}, INVALID, "top_logprobs"),
    ("two lengths", {"max_tokens": 1, "max_completion_tokens": 2}, INVALID, "max_tokens"),
    ("no messages", {"messages": []}, INVALID, "messages"),
    ("unknown", {"banana": 1}, UNSUPPORTED, "banana"),
    ("tools", {"tools": [{"type": "function", "function": {"name": "x"}}]}, UNSUPPORTED, "tools"),
    ("tool_choice", {"tool_choice": "required"}, INVALID, "tool_choice"),
    ("format", {"response_format": {"type": "xml"}}, INVALID, "response_format.type"),
    ("no schema", {"response_format": {"type": "json_schema"}}, INVALID, "response_format.json_schema"),
    ("regex", {"guided_regex": "(?=a)"}, INVALID, "guided_regex"),
    ("choice", {"guided_choice": []}, INVALID, "guided_choice"),
    ("schema text", {"guided_json": "{"}, INVALID, "guided_json"),
    (
        "schema word",
        {"guided_json": {"properties": {"a": {"typ": "string"}}}},
        UNSUPPORTED,
        "guided_json.properties.a.typ",
    ),
    ("end of a grammar", {"guided_regex": "a", "min_tokens": 1}, UNSUPPORTED, "min_tokens"),
    ("no end of a grammar", {"guided_regex": "a", "ignore_eos": True}, UNSUPPORTED, "ignore_eos"),
    ("empty choice", {"guided_choice": ["a", ""]}, INVALID, "guided_choice"),
    ("two grammars", {"guided_regex": "a", "guided_choice": ["a"]}, INVALID, "guided_choice"),
    ("two in one", {"structured_outputs": {"regex": "a", "choice": ["a"]}}, INVALID, "structured_outputs.json"),
    ("lark", {"structured_outputs": {"grammar": "start: nothing"}}, INVALID, "structured_outputs.grammar"),
    (
        "whitespace",
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        UNSUPPORTED,
        "structured_outputs.whitespace_pattern",
    ),
    ("functions", {"functions": [{}]}, UNSUPPORTED, "functions"),
    ("store", {"store": True, "session_id": "s_1"}, UNSUPPORTED, "store"),
    ("reasoning", {"reasoning_effort": "low"}, UNSUPPORTED, "reasoning_effort"),
    ("modalities", {"modalities": ["audio"]}, UNSUPPORTED, "modalities"),
    ("template", {"chat_template": "{{ 7 * 7 }}"}, UNSUPPORTED, "chat_template"),
    ("variable", {"chat_template_kwargs": {"tools": 1}}, UNSUPPORTED, "chat_template_kwargs.tools"),
    ("options", {"stream": True, "stream_options": {"x": 1}}, UNSUPPORTED, "stream_options.x"),
]


@pytest.mark.parametrize(
    ("more", "code", "param"), [row[1:] for row in OPENAI], ids=[f"{n}-{row[0]}" for n, row in enumerate(OPENAI)]
)
async def test_wrong_fields_in_openais_words(shared: World, more: dict[str, Any], code: str, param: str) -> None:
    body = openai_error(await refused(shared, "/v1/chat/completions", {"messages": CHAT, **more}), 400, code)
    assert body["type"] == "invalid_request_error"
    assert body["param"].split("[")[0] == param


PROMPTS: list[Any] = [
    "",
    [],
    [[]],
    [""],
    ["a", 1],
    [1, "a"],
    [-1],
    [[-1]],
    [True],
    5,
    None,
    {},
    [400],
    ["a"] * 65,
    [[1], []],
]
COMPLETION: list[tuple[dict[str, Any], str, str]] = [
    *(({"prompt": prompt}, INVALID, "prompt") for prompt in PROMPTS),
    ({}, INVALID, "prompt"),
    ({"prompt": "x", "suffix": "y"}, UNSUPPORTED, "suffix"),
    ({"prompt": "x", "best_of": 2, "stream": True}, UNSUPPORTED, "best_of"),
    ({"prompt": "x", "best_of": 1, "n": 2}, INVALID, "best_of"),
    ({"prompt": "x", "logprobs": 21}, INVALID, "logprobs"),
    ({"prompt": "x", "logprobs": True}, INVALID, "logprobs"),
    ({"prompt": "x", "echo": "yes"}, INVALID, "echo"),
    ({"prompt": "x", "max_tokens": 0}, INVALID, "max_tokens"),
    ({"prompt": "x", "min_tokens": 17}, INVALID, "min_tokens"),
]


@pytest.mark.parametrize(("body", "code", "param"), COMPLETION)
async def test_wrong_completions(shared: World, body: dict[str, Any], code: str, param: str) -> None:
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


@pytest.mark.parametrize(("raw", "says"), RAW, ids=range(len(RAW)))
async def test_bodies_that_are_not_what_they_should_be(shared: World, raw: bytes, says: str) -> None:
    response = await shared.client.post("/generate", content=raw, headers=JSON)
    assert says in error(response, 422, INVALID)["error"]
    theirs = await shared.client.post("/v1/chat/completions", content=raw, headers=JSON)
    assert theirs.status_code == 400
    assert theirs.json()["error"]["type"] == "invalid_request_error"


GOOD = b'{"inputs": "x", "parameters": {"max_new_tokens": 1}}'


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/vnd.bentoml+pickle"},
        {"Content-Type": "application/octet-stream"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/json; charset=latin-1"},
        *({**JSON, "Content-Encoding": name} for name in ("gzip", "br", "zstd", "deflate", "GZIP", "identity, gzip")),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/tokenize", "/v1/deployments"])
async def test_media_types(shared: World, headers: dict[str, str], path: str) -> None:
    response = await shared.client.post(path, content=GOOD, headers=headers)
    check = openai_error if path == "/v1/completions" else error
    check(response, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON", 'application/json; charset="UTF-8"'])
async def test_json_by_any_spelling(shared: World, kind: str) -> None:
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


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"inputs": "x", "prompt": "y"}),
        ("/tokenize", {"inputs": 5}),
        ("/tokenize", {"prompt": "x", "banana": 1}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"prompt": "x", "add_special_tokens": "yes"}),
        ("/chat_tokenize", {}),
        ("/chat_tokenize", {"messages": [{"role": "x", "content": "y"}]}),
        ("/v1/deployments", {}),
        ("/v1/deployments", {"model": "demo", "replicas": 0}),
        ("/v1/deployments", {"model": "demo", "replicas": 65}),
        ("/v1/deployments", {"model": "../x"}),
        ("/v1/deployments", {"model": "demo", "draft": "../x"}),
        ("/v1/deployments", {"model": "demo:1", "draft": "demo:1"}),
        ("/v1/deployments", {"model": ["demo"]}),
    ],
)
async def test_other_routes(shared: World, path: str, body: dict[str, Any]) -> None:
    response = await refused(shared, path, body)
    assert response.status_code == 422
    assert response.json()["code"] in (INVALID, UNSUPPORTED)


async def test_the_server_still_serves(shared: World) -> None:
    assert (await shared.client.post("/generate", content=GOOD, headers=JSON)).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"inputs": "x", "parameters": {"temperature": -1}}, "`parameters.temperature` must be at least 0"),
        ({"inputs": "x", "parameters": {"top_p": 0}}, "`parameters.top_p` must be above 0"),
        ({"inputs": "x", "parameters": {"n": 9}}, "`parameters.n` must be at most 8"),
        ({"inputs": "x", "parameters": {"n": "2"}}, "`parameters.n` must be a valid integer"),
        ({"messages": []}, "`messages` must have at least 1 item(s)"),
        ({"inputs": "x", "user": "u" * 300}, "`user` must have at most 256 characters"),
        ({"inputs": "x", "request_id": " "}, "`request_id` must match ^[A-Za-z0-9._:-]{1,128}$"),
    ],
)
async def test_a_refusal_says_what_the_field_must_be(shared: World, body: dict[str, Any], says: str) -> None:
    assert error(await refused(shared, "/generate", body), 422, INVALID)["error"] == says
