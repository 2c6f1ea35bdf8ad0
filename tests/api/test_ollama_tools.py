"""Tools on Ollama's `/api/chat`: calls as objects, whole or not told as calls, results by id, by name or in order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_cut_calls import ASK, BY_NAME, CUT, TOOLS, world_of
from tests.fake_service import World, says
from tests.tools import WITH_TOOLS

FAMILY = BY_NAME["Hermes, Qwen"]
CALLED = [
    {"name": "weather", "arguments": {"city": '서울}"', "days": 3}},
    {"name": "order", "arguments": {"menu": "비빔밥", "count": 2}},
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, WITH_TOOLS) as it:
        yield it


async def chat(world: World, messages: list[dict[str, Any]], status: int = 200, **more: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": messages, "tools": TOOLS, "stream": False, **more}
    answer = await world.client.post("/api/chat", json=body)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def streamed(world: World) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    body = {"model": "demo", "messages": ASK, "tools": TOOLS}
    lines = [json.loads(line) for line in (await world.client.post("/api/chat", json=body)).text.splitlines()]
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    return "".join(line["message"]["content"] for line in lines), calls, lines[-1]


async def test_calls_are_told_whole_and_their_results_go_on(world: World) -> None:
    says(world, FAMILY.says)
    answer = await chat(world, ASK)
    message = answer["message"]
    assert (message["content"], [each["function"] for each in message["tool_calls"]]) == ("Soon.", CALLED)
    content, calls, end = await streamed(world)
    assert (content, [each["function"] for each in calls], end["done_reason"]) == ("Soon.", CALLED, "stop")
    says(world, "Bye.")
    bare = {**message, "tool_calls": [{"function": {**each, "index": at}} for at, each in enumerate(CALLED)]}
    by_id = [{"tool_call_id": each["id"]} for each in message["tool_calls"]]
    by_name = [{"tool_name": "order"}, {"tool_name": "weather"}]
    for said, named in ((message, by_id), (bare, by_name), (bare, [{}, {}])):
        results = [{"role": "tool", "content": f"result {at}", **each} for at, each in enumerate(named)]
        assert (await chat(world, [*ASK, said, *results]))["message"]["content"] == "Bye."
        prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
        assert prompt.index("비빔밥") < prompt.index("result 0") < prompt.index("result 1")


@pytest.mark.parametrize("name", [name for name, (_, more, _) in CUT.items() if not more])
async def test_a_cut_call_is_content(world: World, name: str) -> None:
    text, _, arguments = CUT[name]
    says(world, text)
    message = (await chat(world, ASK))["message"]
    whole = 1 if name == "behind a whole one" else 0
    assert message["content"] == f'{{"name": "order", "arguments": {arguments}'
    assert len(message.get("tool_calls", [])) == whole
    content, calls, _ = await streamed(world)
    assert (content, len(calls)) == (message["content"], whole)


async def test_what_cannot_act_is_refused_by_name(world: World) -> None:
    called: dict[str, Any] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "order", "arguments": {}}}],
    }
    result = {"role": "tool", "content": "x"}
    cases: list[tuple[list[dict[str, Any]], str]] = [
        ([*ASK, result], "messages[1].tool_name"),
        ([*ASK, called, {**result, "tool_name": "weather"}], "messages[2].tool_name"),
        ([*ASK, called, {**result, "tool_call_id": "other"}], "messages[2].tool_call_id"),
        ([*ASK, called, result, result], "messages[3].tool_name"),
        ([{**ASK[0], "tool_calls": called["tool_calls"]}], "messages[0].tool_calls"),
        ([{**ASK[0], "tool_name": "order"}], "messages[0].tool_name"),
    ]
    for messages, named in cases:
        assert named in (await chat(world, messages, status=400))["error"]


async def test_cut_calls_stand_at_their_place_in_the_text_whole_or_streamed(world: World) -> None:
    call = '<tool_call>\n{"name": "order", "arguments": '
    cut = '{"name": "order", "arguments": '
    for spoken, content, calls in (
        (f'Sure.\n{call}{{"n": 3', f'Sure.\n{cut}{{"n": 3', 0),
        (f"A.\n{call}{{n: 3}}}}\n</tool_call>\nB.\n{call}{{}}}}\n</tool_call>C.", f"A.\n{cut}{{n: 3}}\nB.C.", 1),
    ):
        says(world, spoken)
        message = (await chat(world, ASK))["message"]
        assert (message["content"], len(message.get("tool_calls", []))) == (content, calls)
        told, streamed_calls, _ = await streamed(world)
        assert (told, len(streamed_calls)) == (content, calls)
