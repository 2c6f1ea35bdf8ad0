"""OpenAI's responses: items in and out, typed events in their order, functions, structured output, refusals by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient

from service.engine.protocol.messages import FinishReason
from service.errors import Unavailable
from service.text.tools import CallReader, CallText
from tests.api.conftest import Serve
from tests.api.reading import openai_error
from tests.fake_service import REPLY, World, over_http, says, serving
from tests.tools import WITH_TOOLS

PATH = "/v1/responses"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SPOKEN = 'Soon.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>'


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=WITH_TOOLS) as served:
        yield served


async def ask(world: World, **body: Any) -> dict[str, Any]:
    answer = await world.client.post(PATH, json={"input": "hello", "temperature": 0, **body})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def events(world: World, **body: Any) -> list[dict[str, Any]]:
    answer = await world.client.post(PATH, json={"input": "hello", "temperature": 0, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return found


def bare(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer: ids and times."""
    changing = {"id", "created_at", "completed_at", "timings"}
    items = [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in response["output"]]
    return {**{key: value for key, value in response.items() if key not in changing}, "output": items}


async def test_a_text_is_answered(world: World) -> None:
    response = await ask(world, instructions="be kind", metadata={"a": "b"}, user="u-1")
    [message] = response["output"]
    assert message["content"] == [{"type": "output_text", "text": REPLY, "annotations": [], "logprobs": []}]
    assert (message["role"], message["status"], response["status"]) == ("assistant", "completed", "completed")
    usage = response["usage"]
    [sent] = world.engine.requests
    assert usage["input_tokens"] == len(sent.token_ids) == response["context"]["used"]
    assert usage["input_tokens_details"] == {"cached_tokens": 3, "cache_write_tokens": len(sent.token_ids) - 3}
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    told = {
        "model": "demo:1",
        "instructions": "be kind",
        "metadata": {"a": "b"},
        "user": "u-1",
        "truncation": "disabled",
    }
    assert told.items() <= response.items()
    assert "be kind" in world.tokenizer.decode(list(sent.token_ids), skip_special_tokens=False)


async def test_a_stream_is_the_whole_response_step_by_step(world: World) -> None:
    whole, found = await ask(world), await events(world)
    kinds = [each["type"].removeprefix("response.") for each in found]
    begin = ["created", "in_progress", "output_item.added", "content_part.added"]
    end = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    middle = kinds[len(begin) : -len(end)]
    assert (kinds[: len(begin)], kinds[-len(end) :], set(middle)) == (begin, end, {"output_text.delta"})
    assert "".join(each["delta"] for each in found if "delta" in each) == REPLY
    assert bare(found[-1]["response"]) == bare(whole)
    assert found[0]["response"]["status"] == "in_progress" and found[0]["response"]["output"] == []
    assert found[2]["item"]["content"] == [] and found[-2]["item"] == found[-1]["response"]["output"][0]
    assert len({each["item_id"] for each in found if "item_id" in each}) == 1


async def test_calls_are_items_of_their_own(tools: World) -> None:
    says(tools, SPOKEN)
    whole, found = await ask(tools, tools=[WEATHER]), await events(tools, tools=[WEATHER])
    message, call = whole["output"]
    assert (message["content"][0]["text"], call["name"], call["arguments"]) == ("Soon.", "weather", '{"city": "서울"}')
    assert bare(found[-1]["response"]) == bare(whole)
    deltas = [each for each in found if each["type"] == "response.function_call_arguments.delta"]
    assert "".join(each["delta"] for each in deltas) == '{"city": "서울"}' and len(deltas) > 1
    assert {each["output_index"] for each in deltas} == {1}
    kinds = [each["type"] for each in found]
    assert kinds.index("response.output_text.done") < kinds.index("response.function_call_arguments.delta")


async def test_a_loop_of_calls_sends_what_a_chat_sends(tools: World) -> None:
    says(tools, SPOKEN)
    first = await ask(tools, tools=[WEATHER])
    call = first["output"][1]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "clear"}
    start = {"role": "user", "content": "hello"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    await ask(tools, tools=[WEATHER], input=[start, thought, *first["output"], result])
    made = {"id": call["call_id"], "type": "function", "function": {"name": "weather", "arguments": call["arguments"]}}
    chat = [
        start,
        {"role": "assistant", "content": "Soon.", "tool_calls": [made]},
        {"role": "tool", "content": "clear", "tool_call_id": call["call_id"]},
    ]
    tool = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    await tools.client.post("/v1/chat/completions", json={"messages": chat, "tools": [tool], "temperature": 0})
    assert tools.engine.requests[1].token_ids == tools.engine.requests[2].token_ids


async def test_logprobs_are_those_of_the_text(world: World) -> None:
    include = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, found = await ask(world, **include), await events(world, **include)
    logprobs = whole["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == whole["usage"]["output_tokens"] and len(logprobs[0]["top_logprobs"]) == 2
    streamed = [token for each in found if each["type"].endswith("text.delta") for token in each["logprobs"]]
    assert streamed == logprobs[: len(streamed)] and len(streamed) >= len(logprobs) - 1


async def test_a_limit_leaves_a_response_incomplete(world: World) -> None:
    response, found = await ask(world, max_output_tokens=2), await events(world, max_output_tokens=2)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete" and found[-1]["type"] == "response.incomplete"


async def test_what_does_not_fit_is_told_in_the_names_of_responses(world: World) -> None:
    body = {"model": "demo", "input": "안녕", "max_output_tokens": 100_000, "store": False}
    refusal = openai_error(await world.client.post("/v1/responses", json=body), 400, "context_length_exceeded")
    assert refusal["param"] == "input" and "lower max_output_tokens to" in refusal["message"]


async def test_a_failure_in_mid_stream_is_told(serve: Serve) -> None:
    async with serve(engine={"fail_after": 2, "failure": Unavailable("gone", retry_after=1)}) as world:
        found = await events(world)
        assert [each["type"] for each in found[-2:]] == ["error", "response.failed"]
        assert (found[-2]["message"], found[-1]["response"]["status"]) == ("gone", "failed")
        assert found[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}
        assert found[-1]["response"]["output"][0]["content"][0]["text"]


async def test_a_failure_of_an_output_that_cannot_be_sent_is_told(
    tools: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the output that can."""
    says(tools, SPOKEN)
    monkeypatch.setattr(CallReader, "add", lambda self, _: self._pieces.append(CallText(0, "\ud83d")))
    body = {"input": "hello", "tools": [WEATHER], "stream": True}
    async with over_http(tools) as url, AsyncClient(base_url=url) as client:
        blocks = (await client.post(PATH, json=body)).text.strip().split("\n\n")
    found = [json.loads(block.split("data: ")[1]) for block in blocks]
    assert [each["type"] for each in found[-2:]] == ["error", "response.failed"]
    assert [each["type"] for each in found[-1]["response"]["output"]] == ["message"]


async def test_an_answer_that_a_failure_cut_says_so(serve: Serve) -> None:
    async with serve(engine={"fail_after": 2, "end": FinishReason.ERROR}) as world:
        response = await ask(world)
        assert (response["status"], response["finish_detail"]) == ("incomplete", "error")


async def test_text_behind_a_call_leaves_the_result_behind_its_call(tools: World) -> None:
    """The prompt is the same by items, by the previous response and in a conversation."""
    says(tools, f"{SPOKEN}\nOne moment.")
    kept = (await tools.client.post("/v1/conversations", json={})).json()["id"]
    for way in ("items", "previous", "conversation"):
        more = {"conversation": kept} if way == "conversation" else {}
        first = await ask(tools, tools=[WEATHER], **more)
        assert [each["type"] for each in first["output"]] == ["message", "function_call", "message"]
        result = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "clear"}
        start = [{"role": "user", "content": "hello"}, *first["output"]] if way == "items" else []
        more |= {"previous_response_id": first["id"]} if way == "previous" else {}
        await ask(tools, tools=[WEATHER], input=[*start, result], **more)
    prompts = [tools.engine.requests[at].token_ids for at in (1, 3, 5)]
    assert prompts[0] == prompts[1] == prompts[2]
    text = tools.tokenizer.decode(list(prompts[0]), skip_special_tokens=False)
    assert text.index("One moment.") < text.index("clear") and text.count("<|im_start|>assistant") == 2
