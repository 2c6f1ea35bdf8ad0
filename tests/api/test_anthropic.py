"""Anthropic's messages: what its client sends, shapes to the letter, streams, tools, stop reasons, errors, models."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import FinishReason, Request
from service.text.tokenizer import Tokenizer
from tests.api.anthropic import ASK, CALLED, ORDER, SYSTEM, WEATHER, ask, count, events, gathered, refused, streamed
from tests.api.conftest import KEY, Serve
from tests.fake_service import CACHED, REPLY, World, over_http, publish, says, serving
from tests.tools import WITH_TOOLS
from tests.waiting import until

SPOKEN = (
    'Soon.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "order", "arguments": {}}\n</tool_call>'
)
CALLS = [("weather", {"city": "서울"}), ("order", {})]
WINDOW = 2048


class Order(BaseModel):
    """An answer that a client wants, as pydantic writes its schema."""

    dish: Literal["bulgogi", "kimbap"]
    count: int


KV_CACHE = 1024


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("tests.fake_service.WINDOW", WINDOW)
    async with serving(tmp_path, chat_template=WITH_TOOLS) as served:
        yield served


def prompts(world: World) -> list[str]:
    tokenizer = world.tokenizer
    return [tokenizer.decode(list(each.token_ids), skip_special_tokens=False) for each in world.engine.requests]


def calls(shown: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(each["name"], each["input"]) for each in shown["content"] if each["type"] == "tool_use"]


def spoken(*parts: Any) -> dict[str, Any]:
    """Without what differs between two answers to one request."""
    return {name: value for name, value in parts[0].items() if name not in ("id", "timings")}


async def test_an_answer(world: World) -> None:
    shown = await ask(world)
    assert shown["content"] == [{"type": "text", "text": REPLY}]
    assert (shown["type"], shown["role"], shown["model"]) == ("message", "assistant", "demo:1")
    assert (shown["stop_reason"], shown["stop_sequence"]) == ("end_turn", None)
    [request] = world.engine.requests
    usage = shown["usage"]
    assert usage["cache_read_input_tokens"] == CACHED and usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + CACHED == len(request.token_ids) == shown["context"]["used"]
    assert usage["output_tokens"] == len(world.tokenizer.encode(REPLY)) + 1
    assert shown["digest"] and shown["timings"]["ttft_ms"] is not None


async def test_a_stream_is_the_same_answer(world: World) -> None:
    whole = await ask(world)
    found = await streamed(world)
    assert spoken(gathered(found)) == spoken(whole)
    assert found[0]["message"]["content"] == [] and found[0]["message"]["stop_reason"] is None
    assert found[0]["message"]["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert sum(each["type"] == "content_block_delta" for each in found) > 5


async def test_blocks_become_the_templates_messages(world: World) -> None:
    await ask(world, messages=CALLED, system=SYSTEM, tools=[WEATHER])
    body = {
        "messages": [
            {"role": "system", "content": "You sell lunch boxes.\nAnswer in one sentence."},
            {"role": "user", "content": "hello, weather?"},
            {
                "role": "assistant",
                "content": "Soon.",
                "tool_calls": [
                    {"id": id, "function": {"name": "weather", "arguments": json.dumps({"city": city})}}
                    for id, city in (("toolu_1", "서울"), ("toolu_2", "부산"))
                ],
            },
            {"role": "tool", "tool_call_id": "toolu_1", "content": "clear"},
            {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no such city"},
            {"role": "user", "content": "hello again"},
        ],
        "tools": [
            {"type": "function", "function": {**WEATHER_FUNCTION, "parameters": WEATHER["input_schema"]}},
        ],
    }
    assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 200
    ours, openais = prompts(world)
    assert ours == openais and "Two cities" not in ours


WEATHER_FUNCTION = {"name": "weather", "description": "of a city"}


async def test_neighbours_of_one_role_are_one_message(world: World) -> None:
    said = [{"role": "user", "content": text} for text in ("hello", "world")]
    await ask(world, messages=said)
    await ask(world, messages=[{"role": "user", "content": "hello\nworld"}])
    apart, joined = prompts(world)
    assert apart == joined


async def test_a_later_system_message_is_the_users_text_at_its_place(world: World) -> None:
    """Also between a call and its result, which stay together."""
    user, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}
    now = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    asked, called, results = CALLED
    first = {"role": "system", "content": "You sell."}
    for given, meant in (
        ([user, now], [{"role": "user", "content": "hello\nBe brief."}]),
        ([now, user], [user]),
        ([user, answer, now, user], [user, answer, {"role": "user", "content": "Be brief.\nhello"}]),
        ([user, answer, now], [user, answer, {"role": "user", "content": "Be brief."}]),
        ([asked, called, now, results], [asked, called, {**results, "content": _with_text(results, "Be brief.")}]),
    ):
        system = "You sell." if given[0] is not now else "You sell.\nBe brief."
        await ask(world, messages=given, system="You sell.", tools=[WEATHER])
        await ask(world, messages=[{**first, "content": system}, *meant], tools=[WEATHER])
        ours, theirs = prompts(world)[-2:]
        assert ours == theirs


def _with_text(results: dict[str, Any], text: str) -> list[dict[str, Any]]:
    *before, last = results["content"]
    return [*before, {"type": "text", "text": f"{text}\n{last['text']}"}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([CALLED[0], CALLED[2]], "messages[1].content[0].tool_use_id"),
        ([*CALLED[:2], {"role": "user", "content": "no"}, CALLED[2]], "messages[3].content[0].tool_use_id"),
        (
            [*CALLED[:2], {"role": "user", "content": [{"type": "text", "text": "x"}, *CALLED[2]["content"]]}],
            "messages[2].content[1].tool_use_id",
        ),
    ],
)
async def test_a_result_needs_its_call(world: World, messages: Any, param: str) -> None:
    response = await world.client.post("/v1/messages", json={**ASK, "messages": messages, "tools": [WEATHER]})
    assert refused(response, 400, "invalid_request_error")["param"] == param


@pytest.mark.parametrize("more", [{}, {"tools": [WEATHER]}, {"messages": CALLED, "system": SYSTEM, "tools": [WEATHER]}])
async def test_the_count_is_that_of_the_answer(world: World, more: dict[str, Any]) -> None:
    usage = (await ask(world, **more))["usage"]
    assert await count(world, **more) == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_the_count_goes_past_the_window(world: World) -> None:
    short, long = ([{"role": "user", "content": "a" * length}] for length in (100, 2100))
    assert await count(world, messages=long) - await count(world, messages=short) == 2000
    assert await count(world, messages=long) > WINDOW and not world.engine.requests


async def test_calls_streamed_or_not(world: World) -> None:
    says(world, SPOKEN)
    tools = [WEATHER, ORDER]
    shown = await ask(world, tools=tools)
    assert [each["type"] for each in shown["content"]] == ["text", "tool_use", "tool_use"]
    assert shown["content"][0]["text"] == "Soon." and calls(shown) == CALLS
    assert shown["stop_reason"] == "tool_use"
    ids = [each["id"] for each in shown["content"][1:]]
    assert len(set(ids)) == 2 and all(each.startswith("toolu_") for each in ids)
    found = await streamed(world, tools=tools)
    parts = gathered(found)
    assert calls(parts) == CALLS and parts["stop_reason"] == "tool_use"
    begun = [each["content_block"] for each in found if each["type"] == "content_block_start"]
    assert [each.get("input") for each in begun] == [None, {}, {}]


@pytest.mark.parametrize("per_step", [1, 4, 400])
async def test_text_behind_a_call_is_a_block_of_its_own(world: World, per_step: int) -> None:
    says(world, SPOKEN.partition('\n<tool_call>\n{"name": "order"')[0] + "\nDone.")
    world.engine.per_step = per_step
    whole = await ask(world, tools=[WEATHER])
    assert [each["type"] for each in whole["content"]] == ["text", "tool_use", "text"]
    assert [each.get("text") for each in whole["content"]] == ["Soon.", None, "\nDone."]
    parts = gathered(await streamed(world, tools=[WEATHER]))
    for each in (*whole["content"], *parts["content"]):
        each.pop("id", None)
    assert parts["content"] == whole["content"]


async def test_a_call_that_a_limit_cut(world: World) -> None:
    says(world, SPOKEN)
    most = len(world.tokenizer.encode(SPOKEN.partition("}}")[0][:-1], add_special_tokens=False))
    shown = await ask(world, tools=[WEATHER], max_tokens=most)
    assert shown["stop_reason"] == "max_tokens" and calls(shown) == [("weather", {})]
    assert calls(gathered(await streamed(world, tools=[WEATHER], max_tokens=most))) == [("weather", {})]


async def test_a_call_that_is_no_json_is_not_lost(world: World) -> None:
    says(world, SPOKEN.replace('"서울"', "서울"))
    assert calls(await ask(world, tools=[WEATHER])) == [("weather", {"INVALID_JSON": '{"city": 서울}'})]


async def test_one_call_where_only_one_may_be(world: World) -> None:
    says(world, SPOKEN)
    for per_step in (1, 400):
        world.engine.per_step = per_step
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        shown = await ask(world, tools=[WEATHER, ORDER], tool_choice=choice)
        assert calls(shown) == CALLS[:1] and shown["stop_reason"] == "tool_use"
        assert calls(gathered(await streamed(world, tools=[WEATHER, ORDER], tool_choice=choice))) == CALLS[:1]
        function = [{"type": "function", "function": {"name": each["name"]}} for each in (WEATHER, ORDER)]
        body = {"messages": ASK["messages"], "tools": function, "parallel_tool_calls": False, "max_tokens": 200}
        openais = (await world.client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert len(openais["message"]["tool_calls"]) == 1 and openais["finish_reason"] == "tool_calls"


async def test_stop_reasons(world: World) -> None:
    shown = await ask(world, stop_sequences=["하나", "주세요"])
    assert (shown["stop_reason"], shown["stop_sequence"]) == ("stop_sequence", "하나")
    assert shown["content"][0]["text"] == "안녕하세요, 도시락 "
    assert (await ask(world, max_tokens=2))["stop_reason"] == "max_tokens"
    nothing = await ask(world, max_tokens=0)
    assert (nothing["stop_reason"], nothing["content"], nothing["usage"]["output_tokens"]) == ("max_tokens", [], 0)
    world.engine.fail_after, world.engine.end = 3, FinishReason.CONTENT_FILTER
    assert (await ask(world))["stop_reason"] == "refusal"
    world.engine.end = FinishReason.DEADLINE
    late = await ask(world)
    assert (late["stop_reason"], late["finish_detail"]) == ("max_tokens", "deadline")
    assert gathered(await streamed(world))["finish_detail"] == "deadline"


async def test_max_tokens_is_an_upper_bound(world: World) -> None:
    """Agents ask for 32,000 whatever the window is."""
    world.engine.script = lambda request, tokenizer: tokenizer.encode("a", add_special_tokens=False)
    shown = await ask(world, max_tokens=32_000)
    assert shown["stop_reason"] == "model_context_window_exceeded"
    assert shown["usage"]["output_tokens"] == KV_CACHE - shown["context"]["used"]
    long = [{"role": "user", "content": "a" * (KV_CACHE - 200)}]
    response = await world.client.post("/v1/messages", json={**ASK, "max_tokens": 32_000, "messages": long})
    refusal = refused(response, 400, "invalid_request_error")
    assert refusal["code"] == "context_length_exceeded" and refusal["param"] == "max_tokens"
    assert re.match(r"prompt is too long: 1\d{3} tokens > \d+ maximum\. The prompt has", refusal["message"])


async def test_sampling_reaches_the_engine(world: World) -> None:
    await ask(world, temperature=0.5, top_p=0.25, top_k=7, seed=3, metadata={"user_id": "u"}, priority=2)
    body = {name: value for name, value in ASK.items() if name != "temperature"}
    assert (await world.client.post("/v1/messages", json=body)).status_code == 200
    given, default = (each.params for each in world.engine.requests)
    assert (given.temperature, given.top_p, given.top_k, given.seed) == (0.5, 0.25, 7, 3)
    assert (default.temperature, default.top_p, default.top_k) == (1.0, 1.0, 0)


async def test_a_stream_that_fails_ends_with_an_error(serve: Serve) -> None:
    async with serve(engine={"fail_after": 3, "failure": EngineFailed("gone")}) as world:
        response = await world.client.post("/v1/messages", json={**ASK, "stream": True})
        last = events(response)[-1]
        assert last["type"] == "error" and last["request_id"] == response.headers["request-id"]
        assert last["error"]["type"] in ("api_error", "overloaded_error")


async def test_pings_while_a_stream_waits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.answering.streaming.HEADERS_SECONDS", 0.0)
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}) as world:
        asking = asyncio.create_task(world.client.post("/v1/messages", json={**ASK, "stream": True}))
        await until(lambda: bool(world.engine.held))
        for _ in range(50):  # turns of the event loop until the headers and the first ping are out
            await asyncio.sleep(0.001)
        hold.set()
        found = events(await asking)
        assert found[0] == {"type": "ping"} and gathered(found)["content"]


async def test_a_repeated_request_gets_the_same_bytes(world: World) -> None:
    headers, body = {"Idempotency-Key": "k"}, {**ASK, "stream": True}
    first, second = [await world.client.post("/v1/messages", json=body, headers=headers) for _ in range(2)]
    assert first.content == second.content and gathered(events(second))["stop_reason"] == "end_turn"
    assert second.headers["request-id"] == first.headers["request-id"] and len(world.engine.requests) == 1


async def test_overload_is_503_in_anthropics_words(serve: Serve) -> None:
    async with serve(max_in_progress=1, engine={"hold": asyncio.Event()}) as world:
        first = asyncio.create_task(world.client.post("/v1/messages", json=ASK))
        await until(lambda: bool(world.engine.held))
        response = await world.client.post("/v1/messages", json=ASK)
        assert refused(response, 503, "overloaded_error")["code"] == "overloaded"
        assert int(response.headers["retry-after"]) >= 1
        world.engine.hold.set()  # type: ignore[union-attr]
        assert (await first).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("GET", "/v1/messages/nothing", 404, "not_found_error"),
        ("POST", "/v1/messages", 415, "invalid_request_error"),
    ],
)
async def test_other_refusals(world: World, method: str, path: str, status: int, kind: str) -> None:
    refused(await world.client.request(method, path), status, kind)


async def test_either_header_has_the_key(guarded: World) -> None:
    async def status(**headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await guarded.client.post("/v1/messages", json=ASK, headers=named)

    assert (await status(x_api_key=KEY)).status_code == 200
    assert (await status(authorization=f"Bearer {KEY}")).status_code == 200
    assert (await status(x_api_key=KEY, authorization="Bearer other")).status_code == 200
    assert (await status(x_api_key="other", authorization=f"Bearer {KEY}")).status_code == 200
    for headers in ({}, {"x_api_key": "other"}, {"x_api_key": ""}, {"authorization": KEY}):
        refused(await status(**headers), 401, "authentication_error")


async def test_models_in_anthropics_shape(world: World) -> None:
    publish(world.deployments.repository, "other")
    openais = (await world.client.get("/v1/models")).json()
    ids = [each["id"] for each in openais["data"]]
    headers = {"anthropic-version": "2023-06-01"}

    async def page(**query: Any) -> dict[str, Any]:
        response = await world.client.get("/v1/models", params=query, headers=headers)
        assert response.status_code == 200, response.text
        return dict(response.json())

    assert [each["id"] for each in (await page())["data"]] == ids == ["demo", "demo:1", "other", "other:1"]
    first = await page(limit=3)
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, "demo", "other")
    rest = await page(limit=3, after_id="other")
    assert (rest["has_more"], [each["id"] for each in rest["data"]]) == (False, ["other:1"])
    before = await page(limit=1, before_id="other")
    assert (before["has_more"], [each["id"] for each in before["data"]]) == (True, ["demo:1"])
    empty = await page(after_id="other:1")
    assert empty == {"data": [], "has_more": False, "first_id": None, "last_id": None}
    response = await world.client.get("/v1/models", params={"after_id": "nope"}, headers=headers)
    assert refused(response, 400, "invalid_request_error")["param"] == "after_id"
    refused(await world.client.get("/v1/models/nope", headers=headers), 404, "not_found_error")


async def test_the_real_client(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=WITH_TOOLS, admin_key=KEY) as world, over_http(world) as url:
        client = anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0)
        greedy: dict[str, Any] = {"model": "demo", "max_tokens": 99, "extra_body": {"temperature": 0}}
        asked: list[Any] = [{"role": "user", "content": "hello"}]
        message = await client.messages.create(**greedy, messages=asked)
        assert [(each.type, each.to_dict()["text"]) for each in message.content] == [("text", REPLY)]
        assert message._request_id
        async with client.messages.stream(**greedy, messages=asked) as stream:
            assert "".join([text async for text in stream.text_stream]) == REPLY
            assert (await stream.get_final_message()).usage.output_tokens == message.usage.output_tokens
        counted = await client.messages.count_tokens(model="demo", messages=asked)
        assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
        assert [each.id async for each in client.models.list(limit=1)] == ["demo", "demo:1"]
        assert (await client.models.retrieve("demo:1")).max_input_tokens == 512
        with pytest.raises(anthropic.BadRequestError, match="max_tokens") as refusal:
            await client.messages.create(**{**greedy, "max_tokens": -1}, messages=asked)
        assert refusal.value.type == "invalid_request_error" and refusal.value.request_id
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="other").models.list()


async def test_the_real_client_runs_tools(world: World) -> None:
    """A question, two calls, their results, and an answer: not streamed, then streamed."""
    async with over_http(world) as url:
        client = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0)
        greedy: dict[str, Any] = {"model": "demo", "max_tokens": 200, "extra_body": {"temperature": 0}}
        tools: Any = [WEATHER, ORDER]
        for is_streamed in (False, True):
            chat: list[Any] = [{"role": "user", "content": "hello"}]
            said = []
            for reply in (SPOKEN, REPLY):
                says(world, reply)
                if is_streamed:
                    async with client.messages.stream(**greedy, messages=chat, tools=tools) as stream:
                        message = await stream.get_final_message()
                else:
                    message = await client.messages.create(**greedy, messages=chat, tools=tools)
                called = [each for each in message.content if each.type == "tool_use"]
                said.append([(each.name, each.input) for each in called])
                results = [{"type": "tool_result", "tool_use_id": each.id, "content": "ok"} for each in called]
                chat += [message.to_param(), {"role": "user", "content": results}]
            assert said == [CALLS, []]
            assert message.stop_reason == "end_turn"
            assert prompts(world)[-1].count("<|im_start|>tool\nok") == 2


async def test_the_real_client_parses(serve: Serve) -> None:
    def script(request: Request, tokenizer: Tokenizer) -> list[int]:
        text = '{"dish": "kimbap", "count": 2}'
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0]]

    async with serve(engine={"script": script}) as world, over_http(world) as url:
        client = anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0)
        parsed = await client.messages.parse(
            model="demo", max_tokens=99, messages=[{"role": "user", "content": "x"}], output_format=Order
        )
        assert parsed.parsed_output == Order(dish="kimbap", count=2)
        assert world.engine.requests[0].params.grammar
