"""Every parameter of huggingface_hub's client acts or is refused by name: the real client over HTTP."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import HfHubHTTPError, ValidationError

from models.repository.repository import Repository
from service.engine.protocol.messages import Request
from service.text.tokenizer import Tokenizer
from tests.fake_service import REPLY, World, over_http, publish, serving
from tests.tools import WITH_TOOLS

Shown = Any
Check = Callable[[Shown, Request], bool]
PROMPT = "안녕하세요"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
CHAT = [{"role": "user", "content": PROMPT}]


def grammar_of(request: Request) -> bool:
    return '"properties"' in request.params.grammar or '"a"' in request.params.grammar


TEXT: dict[str, list[tuple[Any, Check | str]]] = {
    "adapter_id": [("nobody", "nobody"), ("demo:1", lambda shown, request: shown == REPLY)],
    "best_of": [(2, lambda shown, request: bool(shown))],
    "decoder_input_details": [(True, lambda shown, request: len(shown.details.prefill) == len(request.token_ids))],
    "details": [(True, lambda shown, request: shown.details.generated_tokens == len(shown.details.tokens) > 0)],
    "do_sample": [(True, lambda shown, request: request.params.temperature == 1)],
    "frequency_penalty": [(0.5, lambda shown, request: request.params.frequency_penalty == 0.5)],
    "grammar": [
        ({"type": "json", "value": SCHEMA}, lambda shown, request: grammar_of(request)),
        ({"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}}, lambda shown, request: grammar_of(request)),
        ({"type": "regex", "value": "[ab]+"}, lambda shown, request: "[ab]+" in request.params.grammar),
    ],
    "max_new_tokens": [(3, lambda shown, request: request.params.max_tokens == 3 and len(shown) < len(REPLY))],
    "repetition_penalty": [(1.5, lambda shown, request: request.params.repetition_penalty == 1.5)],
    "return_full_text": [(True, lambda shown, request: shown == PROMPT + REPLY)],
    "seed": [(7, lambda shown, request: request.params.seed == 7)],
    "stop": [(["하나"], lambda shown, request: shown == "안녕하세요, 도시락 ")],
    "temperature": [(0.5, lambda shown, request: request.params.temperature == 0.5)],
    "top_k": [(3, lambda shown, request: request.params.top_k == 3)],
    "top_n_tokens": [(1, lambda shown, request: len(shown.details.top_tokens[0]) == 1)],
    "top_p": [(0.5, lambda shown, request: request.params.top_p == 0.5)],
    "truncate": [(1, lambda shown, request: len(request.token_ids) == 1)],
    "typical_p": [(0.5, lambda shown, request: request.params.typical_p == 0.5)],
    "watermark": [(True, "parameters.watermark"), (False, lambda shown, request: shown == REPLY)],
}
"""A value of each parameter, and what it changes; or what refuses it."""
DETAILS = {name: {"details": True} for name in ("decoder_input_details", "top_n_tokens")}
"""What the client wants beside a parameter."""
NOT_SENT = {"self", "prompt", "messages", "model", "stream", "extra_body"}
CHATS: dict[str, list[tuple[Any, Check | str]]] = {
    "frequency_penalty": [(0.5, lambda shown, request: request.params.frequency_penalty == 0.5)],
    "logit_bias": [({"5": 1.0}, lambda shown, request: request.params.logit_bias == ((5, 1.0),))],
    "logprobs": [(True, lambda shown, request: bool(shown.choices[0].logprobs.content))],
    "max_tokens": [(3, lambda shown, request: shown.usage.completion_tokens == 3)],
    "n": [(2, lambda shown, request: len(shown.choices) == 2)],
    "presence_penalty": [(0.5, lambda shown, request: request.params.presence_penalty == 0.5)],
    "response_format": [
        (NAMED, lambda shown, request: grammar_of(request)),
        ({"type": "json", "value": SCHEMA}, lambda shown, request: grammar_of(request)),
        ({"type": "json_object"}, lambda shown, request: bool(request.params.grammar)),
        ({"type": "text"}, lambda shown, request: not request.params.grammar),
    ],
    "seed": [(7, lambda shown, request: request.params.seed == 7)],
    "stop": [(["하나"], lambda shown, request: shown.choices[0].message.content == "안녕하세요, 도시락 ")],
    "stream_options": [({"include_usage": True}, "stream_options")],
    "temperature": [(0.5, lambda shown, request: request.params.temperature == 0.5)],
    "tool_choice": [("none", lambda shown, request: not request.params.grammar), ("required", "tool_choice")],
    "tool_prompt": [("Call!", "tool_prompt"), ("", lambda shown, request: True)],
    "tools": [([TOOL], lambda shown, request: bool(request.params.grammar)), ([], lambda shown, request: True)],
    "top_logprobs": [(1, "top_logprobs")],
    "top_p": [(0.5, lambda shown, request: request.params.top_p == 0.5)],
}


def cases(table: dict[str, list[tuple[Any, Check | str]]]) -> list[Any]:
    return [
        pytest.param(name, value, expected, id=f"{name}={value}")
        for name, values in table.items()
        for value, expected in values
    ]


@pytest.mark.parametrize(("method", "table"), [("text_generation", TEXT), ("chat_completion", CHATS)])
def test_every_parameter_of_the_client_is_here(method: str, table: dict[str, Any]) -> None:
    assert set(inspect.signature(getattr(AsyncInferenceClient, method)).parameters) - NOT_SENT == table.keys()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(repository_directory: Path) -> AsyncIterator[tuple[World, Any]]:
    """One server for all parameters, and a client to it."""
    async with serving(repository_directory) as world, over_http(world) as url:
        yield world, AsyncInferenceClient(model=url)


@pytest.mark.parametrize(("name", "value", "expected"), cases(TEXT))
@pytest.mark.asyncio(loop_scope="module")
async def test_text_generation(served: tuple[World, Any], name: str, value: Any, expected: Check | str) -> None:
    world, client = served
    asking = client.text_generation(PROMPT, **{name: value, **DETAILS.get(name, {})})
    if isinstance(expected, str):
        with pytest.raises((ValidationError, HfHubHTTPError), match=re.escape(expected)):
            await asking
    else:
        assert expected(await asking, world.engine.requests[-1])


@pytest.mark.parametrize(("name", "value", "expected"), cases(CHATS))
@pytest.mark.asyncio(loop_scope="module")
async def test_chat_completion(served: tuple[World, Any], name: str, value: Any, expected: Check | str) -> None:
    world, client = served
    asking = client.chat_completion(CHAT, **{"max_tokens": 50, "temperature": 0, name: value})
    if isinstance(expected, str):
        with pytest.raises(HfHubHTTPError, match=re.escape(expected)):
            await asking
    else:
        assert expected(await asking, world.engine.requests[-1])


@pytest.mark.asyncio(loop_scope="module")
async def test_what_langchain_sends_with_every_request(served: tuple[World, Any]) -> None:
    world, client = served
    defaults = {"max_new_tokens": 100, "top_p": 0.95, "typical_p": 0.95, "temperature": 0.8, "return_full_text": False}
    unset: dict[str, Any] = {"top_k": None, "repetition_penalty": None, "truncate": None, "seed": None, "stop": []}
    asked = {**defaults, **unset, "do_sample": False, "watermark": False, "model": client.model}
    assert await client.text_generation(PROMPT, **asked)
    params = world.engine.requests[-1].params
    assert (params.temperature, params.top_p, params.typical_p) == (0.8, 0.95, 0.95), "sampled, as TGI does"
    assert [each async for each in await client.text_generation(PROMPT, **asked, stream=True)]


@pytest.mark.asyncio(loop_scope="module")
async def test_likeliest_tokens_without_details_leave_the_text_as_it_is(served: tuple[World, Any]) -> None:
    """The client sends `top_n_tokens` then, and reads the text alone."""
    assert await served[1].text_generation(PROMPT, top_n_tokens=1) == REPLY


async def test_an_adapter_is_named_as_a_model(tmp_path: Path) -> None:
    for name in ("demo", "adapter"):
        publish(Repository(tmp_path), name)
    async with serving(tmp_path) as world, over_http(world) as url:
        shown = await AsyncInferenceClient(base_url=url).text_generation(PROMPT, adapter_id="adapter:1")
        assert shown == REPLY and len(world.engines) == 2 and len(world.engine.requests) == 1
        body = {"inputs": "x", "model": "demo", "parameters": {"adapter_id": "adapter:1"}}
        twice = await world.client.post("/generate", json=body)
        assert twice.status_code == 422 and "parameters.adapter_id" in twice.json()["error"]


async def test_chat_with_tools(tmp_path: Path) -> None:
    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0]]

    async with serving(tmp_path, chat_template=WITH_TOOLS, engine={"script": script}) as world, over_http(world) as url:
        client: Any = AsyncInferenceClient(base_url=url)
        stream = await client.chat_completion(
            CHAT, tools=[TOOL], tool_choice="required", stream=True, stream_options={"include_usage": True}
        )
        parts = [each async for each in stream]
        calls = [call for part in parts for choice in part.choices for call in choice.delta.tool_calls or ()]
        assert "".join(call.function.arguments for call in calls) == '{"a": 1}'
        assert parts[-1].usage.completion_tokens > 0
        for named in ("f", {"type": "function", "function": {"name": "f"}}):
            answer = await client.chat_completion(CHAT, tools=[TOOL], tool_choice=named)
            assert answer.choices[0].message.tool_calls[0].function.name == "f"
        assert len({request.params.grammar for request in world.engine.requests}) == 2
