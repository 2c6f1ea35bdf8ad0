"""Every field of Anthropic's bodies acts, is refused by name, or asks for nothing; the schemas say which there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from models.repository.repository import Repository
from service.api.anthropic import block_schemas as anthropic_blocks
from service.api.anthropic import schemas as anthropic
from service.api.shared.schemas import Wire
from service.engine.protocol.messages import Request
from tests.api.anthropic import ASK, ORDER, WEATHER, ask, refused
from tests.api.conftest import Serve
from tests.fake_service import REPLY, World, publish, serving
from tests.tools import WITH_TOOLS

Fields = dict[str, Any]
Check = Callable[[Fields, Request], bool]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
JSON = {"type": "json_schema", "schema": SCHEMA}
KEPT = {"type": "ephemeral", "ttl": "1h"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "clear"}
NAME = {"type": "tool", "name": "order"}


def said(*blocks: Fields, role: str = "user") -> list[Fields]:
    """A chat with these blocks; a result's has its call."""
    turn = {"role": role, "content": list(blocks)}
    hello = {"role": "user", "content": "hello"}
    if role == "assistant":
        return [hello, turn, {"role": "user", "content": [{**RESULT, "tool_use_id": USE["id"]}]}]
    called = any(each["type"] == "tool_result" for each in blocks)
    return [hello, {"role": "assistant", "content": [USE]}, turn] if called else [turn]


def text(**more: Any) -> Fields:
    return {"messages": said({"type": "text", "text": "hello", **more})}


def system(**more: Any) -> Fields:
    return {"system": [{"type": "text", "text": "hello", **more}]}


def used(**more: Any) -> Fields:
    return {"messages": said({**USE, **more}, role="assistant")}


def result(**more: Any) -> Fields:
    return {"messages": said({**RESULT, **more})}


def tool(**more: Any) -> Fields:
    return {"tools": [{**WEATHER, **more}]}


def thought(**more: Any) -> Fields:
    return {"messages": said({"type": "thinking", "thinking": "hello", **more}, USE, role="assistant")}


Case = tuple[Fields, str | Check | Fields]
"""The fields of a request; and the field that is refused, what they do, or other fields that ask for the same."""
CASES: dict[type[Wire], dict[str, list[Case]]] = {
    anthropic.MessagesBody: {
        "model": [({"model": "demo:1"}, {}), ({"model": None}, {}), ({"model": ""}, "model")],
        "max_tokens": [
            ({"max_tokens": 3}, lambda shown, request: shown["usage"]["output_tokens"] == 3),
            ({"max_tokens": -1}, "max_tokens"),
            ({"max_tokens": None}, "max_tokens"),
        ],
        "messages": [({"messages": []}, "messages"), ({"messages": ASK["messages"]}, {})],
        "system": [({"system": "hello"}, system()), ({"system": 5}, "system"), ({"system": None}, {})],
        "stream": [({"stream": False}, {}), ({"stream": "yes"}, "stream")],
        "stop_sequences": [
            ({"stop_sequences": ["하나"]}, lambda shown, request: shown["stop_sequence"] == "하나"),
            ({"stop_sequences": [""]}, "stop_sequences[0]"),
            ({"stop_sequences": []}, {}),
        ],
        "temperature": [
            ({"temperature": 0.5}, lambda shown, request: request.params.temperature == 0.5),
            ({"temperature": 1.5}, "temperature"),
        ],
        "top_p": [({"top_p": 0.5}, lambda shown, request: request.params.top_p == 0.5), ({"top_p": 2}, "top_p")],
        "top_k": [({"top_k": 5}, lambda shown, request: request.params.top_k == 5), ({"top_k": -1}, "top_k")],
        "tools": [
            ({"tools": [ORDER]}, lambda shown, request: shown["context"]["parts"]["tools"] > 0),
            ({"tools": [ORDER, ORDER]}, "tools"),
            ({"tools": []}, {}),
        ],
        "tool_choice": [
            ({"tool_choice": {"type": "any"}}, "tool_choice"),
            ({"tools": [ORDER], "tool_choice": None}, {"tools": [ORDER]}),
        ],
        "thinking": [({"thinking": None}, {}), ({"thinking": {"type": "deep"}}, "thinking.type")],
        "metadata": [({"metadata": None}, {}), ({"metadata": {"other": 1}}, "metadata.other")],
        "service_tier": [
            ({"service_tier": "auto"}, {}),
            ({"service_tier": "standard_only"}, {}),
            ({"service_tier": "priority"}, "service_tier"),
        ],
        "cache_control": [({"cache_control": KEPT}, {})],
        "output_config": [({"output_config": {}}, {})],
        "output_format": [
            ({"output_format": JSON}, {"output_config": {"format": JSON}}),
            ({"output_format": JSON, "output_config": {"format": JSON}}, "output_format"),
        ],
        "context_management": [({"context_management": {"edits": []}}, {}), ({"context_management": {}}, {})],
        "seed": [({"seed": 7}, lambda shown, request: request.params.seed == 7)],
        "session_id": [
            ({"session_id": "s_none"}, "session_id"),
            ({"session_id": "s_1", **result()}, "messages"),
        ],
        "context": [
            ({"context": {"inspect": True}}, lambda shown, request: "rendered" in shown["context"]),
            ({"context": {"policy": "all"}}, "context.policy"),
        ],
        "documents": [({"documents": []}, {}), ({"documents": [{"text": "x"}]}, "documents")],
        "chat_template_kwargs": [
            ({"chat_template_kwargs": {}}, {}),
            ({"chat_template_kwargs": {"mood": "calm"}}, "chat_template_kwargs.mood"),
        ],
        "priority": [({"priority": 7}, lambda shown, request: request.priority == 7), ({"priority": 10}, "priority")],
        "deadline_ms": [
            ({"deadline_ms": 60_000}, lambda shown, request: request.deadline is not None),
            ({"deadline_ms": 0}, "deadline_ms"),
        ],
        "request_id": [({"request_id": "mine"}, {}), ({"request_id": "a b"}, "request_id")],
        "speed": [({"speed": "standard"}, {}), ({"speed": "fast"}, "speed")],
        "diagnostics": [
            ({"diagnostics": {"previous_message_id": None}}, {}),
            ({"diagnostics": {"previous_message_id": "msg_1"}}, "diagnostics"),
        ],
        **{
            name: [({name: None}, {}), ({name: value}, name)]
            for name, value in {
                "mcp_servers": [{"type": "url", "name": "a", "url": "https://a.example"}],
                "container": "c_1",
                "inference_geo": "eu",
                "fallbacks": [{"model": "other"}],
                "fallback_credit_token": "x",
                "thread": {"id": "t"},
                "compaction": {"type": "auto"},
                "billing_policy": {"type": "x"},
            }.items()
        },
    },
    anthropic_blocks.TurnMessage: {
        "role": [({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role")],
        "content": [
            (text(), {"messages": [{"role": "user", "content": "hello"}]}),
            ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": [USE]}]}, "messages[0].content[0].type"),
        ],
    },
    anthropic_blocks.TextOnlyBlock: {
        "type": [(system(type="image"), "system[0].type")],
        "text": [(system(text=None), "system[0].text")],
        "cache_control": [(system(cache_control=KEPT), system())],
        "citations": [(system(citations=None), system()), (system(citations=[{}]), "system[0].citations")],
    },
    anthropic_blocks.ContentBlock: {
        "type": [(text(type="image", text=None), "messages[0].content[0].type")],
        "text": [(text(text=None), "messages[0].content[0].text")],
        "id": [(used(id=None), "messages[1].content[0].id")],
        "name": [(used(name="a b"), "messages[1].content[0].name"), (text(name="x"), "messages[0].content[0].name")],
        "input": [(used(input="{}"), "messages[1].content[0].input")],
        "tool_use_id": [(result(tool_use_id="toolu_2"), "messages[2].content[0].tool_use_id")],
        "content": [
            (result(content=[{"type": "text", "text": "clear"}]), result()),
            (result(content=None), result(content="")),
            (result(content=[{"type": "image", "source": {}}]), "messages[2].content[0].content[0].type"),
        ],
        "is_error": [(result(is_error=False), result()), (result(is_error=True), result(content="Error: clear"))],
        "thinking": [(thought(), used()), (thought(thinking=None), "messages[1].content[0].thinking")],
        "signature": [(thought(signature="x"), used()), (text(signature="x"), "messages[0].content[0].signature")],
        "data": [
            ({"messages": said({"type": "redacted_thinking", "data": "x"}, USE, role="assistant")}, used()),
            (text(data="x"), "messages[0].content[0].data"),
        ],
        "cache_control": [(text(cache_control=KEPT), text()), (result(cache_control=KEPT), result())],
        "citations": [(text(citations=[]), text()), (text(citations=[{}]), "messages[0].content[0].citations")],
        "caller": [
            (used(caller={"type": "direct"}), used()),
            (used(caller={"type": "code_execution_20250825"}), "messages[1].content[0].caller"),
        ],
        "toolset_name": [(used(toolset_name="x"), "messages[1].content[0].toolset_name")],
    },
    anthropic_blocks.CacheControl: {
        "type": [(text(cache_control={"type": "x"}), "messages[0].content[0].cache_control.type")],
        "ttl": [(text(cache_control={**KEPT, "ttl": "1d"}), "messages[0].content[0].cache_control.ttl")],
    },
    anthropic.AnthropicTool: {
        "name": [(tool(name="a b"), "tools[0].name")],
        "input_schema": [(tool(input_schema=None), "tools[0].input_schema")],
        "description": [
            (tool(description="x" * 60), lambda shown, request: shown["context"]["parts"]["tools"] > 100),
            (tool(description=5), "tools[0].description"),
        ],
        "type": [(tool(type="custom"), tool()), (tool(type="bash_20250124"), "tools[0].type")],
        "strict": [
            (tool(strict=True), lambda shown, request: '"city"' in request.params.grammar),
            (tool(strict=False), tool()),
            (tool(strict="x"), "tools[0].strict"),
        ],
        "eager_input_streaming": [(tool(eager_input_streaming=True), tool())],
        "cache_control": [(tool(cache_control=KEPT), tool())],
        "defer_loading": [(tool(defer_loading=False), tool()), (tool(defer_loading=True), "tools[0].defer_loading")],
        "allowed_callers": [
            (tool(allowed_callers=["direct"]), tool()),
            (tool(allowed_callers=["code_execution_20250825"]), "tools[0].allowed_callers"),
        ],
        "input_examples": [(tool(input_examples=[]), tool()), (tool(input_examples=[{}]), "tools[0].input_examples")],
    },
    anthropic.AnthropicToolChoice: {
        "type": [
            ({"tools": [ORDER], "tool_choice": {"type": "auto"}}, {"tools": [ORDER]}),
            ({"tools": [ORDER], "tool_choice": {"type": "none"}}, {}),
            ({"tools": [ORDER], "tool_choice": {"type": "any"}}, lambda shown, request: bool(request.params.grammar)),
        ],
        "name": [
            ({"tools": [ORDER], "tool_choice": NAME}, lambda shown, request: "order" in request.params.grammar),
            ({"tools": [ORDER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
            ({"tools": [WEATHER], "tool_choice": NAME}, "tool_choice"),
        ],
        "disable_parallel_tool_use": [
            (
                {"tools": [ORDER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
                lambda shown, request: "whole)*" not in request.params.grammar,
            )
        ],
    },
    anthropic.Thinking: {
        "type": [({"thinking": {"type": "disabled"}}, {}), ({"thinking": {"type": "adaptive"}}, {})],
        "budget_tokens": [({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking")],
        "display": [({"thinking": {"type": "adaptive", "display": "omitted"}}, {})],
    },
    anthropic.AnthropicMetadata: {"user_id": [({"metadata": {"user_id": "x" * 257}}, "metadata.user_id")]},
    anthropic.AnthropicJsonFormat: {
        "type": [({"output_format": {**JSON, "type": "text"}}, "output_format.type")],
        "schema_": [
            ({"output_format": JSON}, lambda shown, request: '"a"' in request.params.grammar),
            ({"output_format": {**JSON, "schema": {"not": {}}}}, "output_format.schema.not"),
        ],
    },
    anthropic.OutputConfig: {
        "effort": [
            ({"output_config": {"effort": "high"}}, {}),
            ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ],
        "format": [
            ({"output_config": {"format": None}}, {}),
            ({"output_config": {"format": {**JSON, "schema": {"not": {}}}}}, "output_config.format.schema.not"),
        ],
        "task_budget": [({"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget")],
    },
    anthropic.ContextManagement: {"edits": [({"context_management": {"edits": 5}}, "context_management.edits")]},
    anthropic.ContextEdit: {
        "type": [
            (
                {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
                "context_management.edits[0].type",
            )
        ],
        "keep": [({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {})],
    },
}  # fmt: skip
COUNTED = anthropic.CountTokensBody.model_fields.keys()
LISTED = [
    pytest.param(fields, expected, id=f"{model.__name__}.{name}-{number}")
    for model, named in CASES.items()
    for name, cases in named.items()
    for number, (fields, expected) in enumerate(cases)
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    directory = tmp_path_factory.mktemp("fields")
    publish(Repository(directory), chat_template=WITH_TOOLS)
    async with serving(directory) as world:
        yield world


@pytest.mark.parametrize("model", CASES, ids=lambda model: model.__name__)
def test_every_field_is_here(model: type[Wire]) -> None:
    assert CASES[model].keys() == model.model_fields.keys() | model.later.keys()


def test_every_model_is_here() -> None:
    for module in (anthropic, anthropic_blocks):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Wire) and kind.__module__ == module.__name__:
                assert kind in CASES or kind is anthropic.CountTokensBody, kind


@pytest.mark.parametrize(("fields", "expected"), LISTED)
@pytest.mark.asyncio(loop_scope="module")
async def test_fields(served: World, fields: Fields, expected: str | Check | Fields) -> None:
    engine = served.engine
    before = len(engine.requests)
    if isinstance(expected, str):
        response = await served.client.post("/v1/messages", json={**ASK, **fields})
        status = 404 if expected == "session_id" else 400
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        param = refused(response, status, kind)["param"]
        assert param == expected or status == 404
        assert len(engine.requests) == before
        return
    shown = await ask(served, **fields)
    request = engine.requests[-1]
    if callable(expected):
        assert expected(shown, request)
        return
    await ask(served, **expected)
    other = engine.requests[-1]
    assert request.token_ids == other.token_ids and len(engine.requests) == before + 2
    assert replace(request.params, seed=0) == replace(other.params, seed=0)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_user_and_the_request_id_are_in_the_log(served: World) -> None:
    with capture_logs() as lines:
        response = await served.client.post(
            "/v1/messages", json={**ASK, "metadata": {"user_id": "u-1"}, "request_id": "mine"}
        )
    assert response.headers["request-id"] == "mine"
    [line] = [line for line in lines if line["event"] == "request"]
    assert (line["user"], line["request_id"]) == ("u-1", "mine")


async def test_documents_and_sessions_act(serve: Serve) -> None:
    async with serve() as world:
        shown = await ask(world, documents=[{"text": "hello world"}])
        assert shown["context"]["parts"]["documents"] > 0
        session = (await world.client.post("/v1/sessions", json={"system": "You sell."})).json()["id"]
        first = await ask(world, session_id=session)
        second = await ask(world, session_id=session, messages=[{"role": "user", "content": "again"}])
        assert first["session_id"] == session and second["context"]["parts"]["history"] > 0
        said = (await world.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
        assert [each["content"] for each in said if each["role"] == "assistant"] == [REPLY, REPLY]


@pytest.mark.parametrize(
    "name", sorted(set(anthropic.MessagesBody.model_fields) - set(anthropic.CountTokensBody.model_fields))
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_count_takes_what_decides_it_alone(served: World, name: str) -> None:
    body = {"messages": ASK["messages"], name: 1}
    response = await served.client.post("/v1/messages/count_tokens", json=body)
    assert refused(response, 400, "invalid_request_error")["param"] == name
