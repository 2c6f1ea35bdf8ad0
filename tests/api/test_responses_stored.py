"""Stored responses, by OpenAI's own client: read again, gone on from, listed, deleted, expired."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from service.errors import NotFound
from service.storage.sessions import StoredAnswer
from tests.api.conftest import KEY, Serve
from tests.fake_service import REPLY, World, over_http, says, serving
from tests.tools import WITH_TOOLS

CALLED = 'Soon.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>'
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False},
}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("tests.fake_service.WINDOW", 2048)
    async with serving(tmp_path, chat_template=WITH_TOOLS) as served:
        yield served


@pytest.fixture
async def client(world: World) -> AsyncIterator[Any]:
    async with over_http(world) as url:
        yield AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def prompts(world: World) -> list[str]:
    tokenizer = world.tokenizer
    return [tokenizer.decode(list(each.token_ids), skip_special_tokens=False) for each in world.engine.requests]


async def ask(world: World, **fields: Any) -> dict[str, Any]:
    response = await world.client.post("/v1/responses", json={"temperature": 0, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def refused(world: World, **fields: Any) -> str:
    response = await world.client.post("/v1/responses", json={"input": "x", **fields})
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["param"])


async def test_the_events_are_those_of_the_whole(world: World, client: Any) -> None:
    events = [
        event async for event in await client.responses.create(model="demo", input="안녕", temperature=0, stream=True)
    ]
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == REPLY
    last = events[-1]
    assert last.type == "response.completed"
    kept = await client.responses.retrieve(last.response.id)
    assert kept.output == last.response.output
    assert kept.output_text == REPLY


async def test_calls_and_their_results_by_previous_response_id(world: World, client: Any) -> None:
    says(world, CALLED)
    tools = [WEATHER]
    first = await client.responses.create(model="demo", input="서울 날씨?", tools=tools)
    message, call = first.output
    assert message.type == "message"
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "서울"}')
    says(world, "맑아요.")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "맑음 21도"}
    second = await client.responses.create(
        model="demo", previous_response_id=first.id, input=[result], tools=tools, instructions="짧게."
    )
    assert second.output_text == "맑아요."
    prompt = prompts(world)[-1]
    places = [prompt.index(each) for each in ("짧게.", "서울 날씨?", "Soon.", "맑음 21도")]
    assert places == sorted(places)
    third = await client.responses.create(model="demo", previous_response_id=second.id, input="고마워")
    assert "짧게." not in prompts(world)[-1]
    assert "맑아요." in prompts(world)[-1]
    listed = await client.responses.input_items.list(third.id)
    assert [item.content[0].text for item in listed.data] == ["고마워"]
    whole = [each.model_dump(exclude_none=True) for each in (*first.output, *second.output)]
    same = await client.responses.create(
        model="demo",
        input=[
            {"role": "user", "content": "서울 날씨?"},
            *whole[:2],
            result,
            *whole[2:],
            {"role": "user", "content": "고마워"},
        ],
        store=False,
    )
    assert prompts(world)[-1] == prompts(world)[-2]
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(same.id)


async def test_an_item_by_its_reference(world: World, client: Any) -> None:
    """Of the output of a stored response, and of what its request brought; without a type too, as OpenAI has it."""
    says(world, CALLED)
    first = await client.responses.create(model="demo", input="서울 날씨?", tools=[WEATHER])
    asked = (await client.responses.input_items.list(first.id)).data[0]
    result = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "맑음 21도"}
    named: list[dict[str, Any]] = [{"type": "item_reference", "id": each.id} for each in (asked, *first.output)]
    named[1].pop("type")
    whole = [{"role": "user", "content": "서울 날씨?"}, *(each.model_dump(exclude_none=True) for each in first.output)]
    second = await ask(world, input=[*named, result], tools=[WEATHER])
    await ask(world, input=[*whole, result], tools=[WEATHER])
    assert prompts(world)[-1] == prompts(world)[-2] and "맑음 21도" in prompts(world)[-1]
    listed = await client.responses.input_items.list(second["id"], order="asc")
    assert [each.type for each in listed.data] == ["message", "message", "function_call", "function_call_output"]
    counted = await client.responses.input_tokens.count(model="demo", input=[*named, result], tools=[WEATHER])
    assert counted.input_tokens == len(world.engine.requests[-1].token_ids)


@pytest.mark.parametrize("wrong", ["msg_" + "0" * 32, "msg_1", "rs_x", "resp"])
async def test_a_reference_to_no_item_is_refused_by_its_place(world: World, wrong: str) -> None:
    kept = await ask(world, input="x", store=False)
    for id in (wrong, kept["output"][0]["id"], kept["id"]):
        body = {"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": id}]}
        answer = await world.client.post("/v1/responses", json=body)
        assert answer.status_code == 404 and answer.json()["error"]["param"] == "input[1].id", answer.text
    answer = await world.client.post("/v1/conversations", json={"items": body["input"]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "items[1].type", answer.text


async def test_a_streamed_call(world: World, client: Any) -> None:
    says(world, CALLED)
    tools = [WEATHER]
    async with client.responses.stream(model="demo", input="서울 날씨?", tools=tools) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds.count("response.output_item.done") == 2
    assert [item.type for item in final.output] == ["message", "function_call"]
    kept = await client.responses.retrieve(final.id)
    assert [(item.id, item.type) for item in kept.output] == [(item.id, item.type) for item in final.output]
    assert kept.output_text == final.output_text == "Soon."
    assert kept.output[1].arguments == '{"city": "서울"}'


async def test_items_by_pages(client: Any) -> None:
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    made = await client.responses.create(model="demo", input=items)
    seen = [item async for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert [item.content[0].text for item in seen] == list("01234")
    newest = await client.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in newest.data] == ["4", "3"]
    with pytest.raises(openai.NotFoundError):
        await client.responses.input_items.list(made.id, after="msg_0")


async def test_a_deleted_response_is_gone_on_from_no_more(client: Any) -> None:
    first = await client.responses.create(model="demo", input="하나")
    second = await client.responses.create(model="demo", input="둘", previous_response_id=first.id)
    await client.responses.delete(first.id)
    for gone in (client.responses.retrieve(first.id), client.responses.delete(first.id)):
        with pytest.raises(openai.NotFoundError):
            await gone
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.create(model="demo", input="셋", previous_response_id=second.id)
    assert refused.value.param == "previous_response_id"
    assert (await client.responses.retrieve(second.id)).output_text == second.output_text


def brought(id: str, items: int, previous: str | None = None) -> StoredAnswer:
    """A response whose request brought so many items."""
    asked = [{"type": "message", "role": "user", "content": f"{number}"} for number in range(items)]
    return StoredAnswer(id, "response", "demo:1", {}, asked, {"output": []}, previous)


async def test_a_thread_may_have_more_items_than_a_request(serve: Serve) -> None:
    async with serve() as world:
        stored = (await world.app.state.service.answers.conversations.store()).answers
        await stored.add("anonymous", brought("resp_1", 2100))
        await stored.add("anonymous", brought("resp_2", 2100, "resp_1"))
        answer = await ask(world, previous_response_id="resp_2", input="그래서?", truncation="auto")
        assert answer["context"]["dropped_tokens"] > 0 and "그래서?" in prompts(world)[-1]


async def test_a_thread_that_is_too_long_is_refused_by_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.openai.responses.routes.MOST_BEFORE", 4)
    stored = (await world.app.state.service.answers.conversations.store()).answers
    await stored.add("anonymous", brought("resp_1", 4))
    await stored.add("anonymous", brought("resp_2", 1, "resp_1"))
    assert (await ask(world, previous_response_id="resp_1", input="x"))["status"] == "completed"
    assert await refused(world, previous_response_id="resp_2") == "previous_response_id"


async def test_another_owners_response_is_not_there(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world, over_http(world) as url:
        mine: Any = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
        made = await mine.responses.create(model="demo", input="x")
        stored = (await world.app.state.service.answers.conversations.store()).answers
        with pytest.raises(NotFound, match="no stored response"):
            await stored.get("another", "response", made.id)


async def test_the_count_is_the_responses_input(world: World, client: Any) -> None:
    tools = [WEATHER]
    first = await client.responses.create(model="demo", input="하나", instructions="짧게.", tools=tools)
    count = await client.responses.input_tokens.count(model="demo", input="하나", instructions="짧게.", tools=tools)
    assert first.usage is not None
    assert count.input_tokens == first.usage.input_tokens
    assert (await client.responses.input_tokens.count(input="가" * 3000)).input_tokens > 2048


async def test_an_owner_keeps_the_newest(serve: Serve) -> None:
    async with serve(sessions_max_per_owner=2) as world:
        ids = [(await ask(world, input=text))["id"] for text in ("하나", "둘", "셋")]
        found = [(await world.client.get(f"/v1/responses/{id}")).status_code for id in ids]
        assert found == [404, 200, 200]


async def test_a_response_expires(serve: Serve) -> None:
    async with serve(sessions_ttl_seconds=1) as world:
        id = (await ask(world, input="x"))["id"]
        await asyncio.sleep(1.05)
        assert (await world.client.get(f"/v1/responses/{id}")).status_code == 404


async def test_the_same_key_is_one_response(world: World) -> None:
    headers = {"Idempotency-Key": "k1"}
    for stream in (False, True):
        headers = {"Idempotency-Key": f"key-{stream}"}
        body = {"input": "x", "stream": stream}
        first, second = [await world.client.post("/v1/responses", json=body, headers=headers) for _ in range(2)]
        assert first.content == second.content
        assert second.headers["idempotent-replayed"] == "true"
    assert len(world.engine.requests) == 2


async def test_a_call_that_a_limit_cut_is_gone_on_from(world: World, client: Any) -> None:
    says(world, CALLED)
    made = await client.responses.create(model="demo", input="날씨?", tools=[WEATHER], max_output_tokens=60)
    assert made.output[-1].type == "function_call"
    assert made.output[-1].status == "incomplete"
    await client.responses.create(model="demo", previous_response_id=made.id, input="그래서?")
    prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids))
    assert json.dumps(made.output[-1].arguments, ensure_ascii=False) in prompt
