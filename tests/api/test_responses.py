"""OpenAI's responses: items in and out, typed events in their order, functions, structured output, refusals by name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.engine.protocol.messages import FinishReason
from service.errors import Unavailable
from tests.api.conftest import Serve
from tests.fake_service import REPLY, WINDOW, World, publish, says, serving
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
    publish(Repository(tmp_path), chat_template=WITH_TOOLS)
    async with serving(tmp_path) as served:
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


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
async def test_a_choice_is_a_grammar(tools: World, choice: Any) -> None:
    says(tools, SPOKEN.partition("\n")[2])
    response = await ask(tools, tools=[WEATHER], tool_choice=choice)
    assert tools.engine.requests[-1].params.grammar and response["tool_choice"] == choice


async def test_a_format_is_a_grammar(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    response = await ask(world, text={"format": form})
    assert '"integer"' in world.engine.requests[-1].params.grammar
    assert response["text"]["format"] == form


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


async def test_truncation_is_the_window_policy(world: World) -> None:
    turns = [{"role": role, "content": f"{at} " + "words " * 30} for at in range(9) for role in ("user", "assistant")]
    long = [*turns, {"role": "user", "content": "now"}]
    refused = await world.client.post(PATH, json={"input": long, "truncation": "disabled", "max_output_tokens": 5})
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    response = await ask(world, input=long, truncation="auto", max_output_tokens=5)
    assert response["truncation"] == "auto" and response["context"]["truncated"]
    counted = (await world.client.post(f"{PATH}/input_tokens", json={"input": long, "truncation": "auto"})).json()
    assert 0 < counted["input_tokens"] < WINDOW
    past = (await world.client.post(f"{PATH}/input_tokens", json={"input": long})).json()["input_tokens"]
    assert past == (await world.client.post("/tokenize", json={"messages": long})).json()["count"] > WINDOW


async def test_a_failure_in_mid_stream_is_told(serve: Serve) -> None:
    async with serve(engine={"fail_after": 2, "failure": Unavailable("gone", retry_after=1)}) as world:
        found = await events(world)
        assert [each["type"] for each in found[-2:]] == ["error", "response.failed"]
        assert (found[-2]["message"], found[-1]["response"]["status"]) == ("gone", "failed")
        assert found[-1]["response"]["error"] == {"code": "server_error", "message": "gone"}
        assert found[-1]["response"]["output"][0]["content"][0]["text"]


async def test_an_answer_that_a_failure_cut_says_so(serve: Serve) -> None:
    async with serve(engine={"fail_after": 2, "end": FinishReason.ERROR}) as world:
        response = await ask(world)
        assert (response["status"], response["finish_detail"]) == ("incomplete", "error")


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input[0].arguments"),
        ({"truncation": "auto", "context": {"policy": "window"}}, "truncation"),
        ({"stream_options": {}}, "stream_options"),
        ({"background": True}, "background"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"max_tokens": 1}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(world: World, given: dict[str, Any], param: str) -> None:
    answer = await world.client.post(PATH, json={"input": "hello", **given})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert world.engine.requests == []


async def test_what_asks_for_nothing_is_accepted(world: World) -> None:
    nothing = {
        "background": False,
        "service_tier": "auto",
        "reasoning": {"effort": None},
        "text": {"verbosity": "medium"},
    }
    absent = dict.fromkeys(("tools", "tool_choice", "include", "metadata", "previous_response_id", "conversation"))
    await ask(world, **nothing, **absent, prompt_cache_retention="in_memory", context_management=[])
