"""Tools in OpenAI's chat: in the prompt and its receipt, forced by grammar, read from the answer, streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_service import World, says, serving
from tests.tools import WITH_TOOLS

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city, not <|im_end|>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ORDER = {"type": "function", "function": {"name": "order"}}
ASK = [{"role": "user", "content": "hello"}]
SPOKEN = (
    'Soon.\n<tool_call>\n{"name": "weather", "arguments": {"city": "서울"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "order", "arguments": {}}\n</tool_call>'
)
CALLS = [("weather", '{"city": "서울"}'), ("order", "{}")]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=WITH_TOOLS) as served:
        yield served


async def ask(world: World, **more: Any) -> dict[str, Any]:
    body = {"messages": ASK, "tools": [WEATHER, ORDER], "max_tokens": 200, **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def streamed(world: World, **more: Any) -> tuple[str, list[tuple[str, str]], str, list[dict[str, Any]]]:
    """Content, calls, finish reason and deltas."""
    body = {"messages": ASK, "tools": [WEATHER, ORDER], "max_tokens": 200, "stream": True, **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls: dict[int, list[str]] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            known = calls.setdefault(call["index"], ["", ""])
            assert ("id" in call) == ("name" in call["function"]) == (known == ["", ""])
            known[0] += call["function"].get("name", "")
            known[1] += call["function"]["arguments"]
    content = "".join(delta.get("content", "") for delta in deltas)
    return content, [(name, arguments) for name, arguments in calls.values()], choices[-1]["finish_reason"], deltas


async def test_calls_are_apart_from_content_streamed_or_not(world: World) -> None:
    says(world, SPOKEN)
    [choice] = (await ask(world))["choices"]
    assert choice["message"]["content"] == "Soon."
    assert [
        (each["function"]["name"], each["function"]["arguments"]) for each in choice["message"]["tool_calls"]
    ] == CALLS
    assert choice["finish_reason"] == "tool_calls"
    content, calls, reason, deltas = await streamed(world)
    assert (content, calls, reason) == ("Soon.", CALLS, "tool_calls")
    assert all(delta != {"content": ""} for delta in deltas[2:])  # marks around calls show nothing
    assert len({call["id"] for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call}) == 2


async def test_calls_alone_have_no_content(world: World) -> None:
    says(world, SPOKEN.partition("\n")[2])
    [choice] = (await ask(world))["choices"]
    assert choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 2


async def test_an_answer_without_calls_is_content(world: World) -> None:
    says(world, "a < b <tool_call> nothing")
    [choice] = (await ask(world))["choices"]
    assert choice["message"] == {"role": "assistant", "content": "a < b <tool_call> nothing", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert (await streamed(world))[:3] == ("a < b <tool_call> nothing", [], "stop")


async def test_a_call_that_a_limit_cut_keeps_its_reason(world: World) -> None:
    says(world, SPOKEN)
    most = len(world.tokenizer.encode(SPOKEN.partition("울")[0], add_special_tokens=False))
    [choice] = (await ask(world, max_tokens=most))["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length" and call["function"]["arguments"] == '{"city": "서'


async def test_logprobs_of_marks_and_calls_are_streamed(world: World) -> None:
    says(world, SPOKEN)
    whole = await ask(world, logprobs=True)
    tokens = whole["choices"][0]["logprobs"]["content"]
    body = {"messages": ASK, "tools": [WEATHER, ORDER], "max_tokens": 200, "stream": True, "logprobs": True}
    answer = await world.client.post("/v1/chat/completions", json=body)
    lines = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    parts = [choice["logprobs"]["content"] for line in lines for choice in line["choices"] if choice["logprobs"]]
    assert [token for part in parts for token in part] == tokens


async def test_the_prompt_has_the_tools_and_its_receipt_counts_them(world: World) -> None:
    with_tools, without = await ask(world), await ask(world, tool_choice="none")
    prompts = [
        world.tokenizer.decode(list(each.token_ids), skip_special_tokens=False) for each in world.engine.requests
    ]
    assert '"name": "weather"' in prompts[0] and "weather" not in prompts[1]
    parts, plain = with_tools["context"]["parts"], without["context"]["parts"]
    assert "tools" not in plain
    assert parts == {**plain, "tools": parts["tools"]}
    assert sum(parts.values()) == with_tools["context"]["used"] == len(world.engine.requests[0].token_ids)
    assert parts["tools"] == len(world.engine.requests[0].token_ids) - len(world.engine.requests[1].token_ids)


async def test_control_tokens_in_descriptions_do_not_act(world: World) -> None:
    await ask(world)
    harmless = json.loads(json.dumps([WEATHER, ORDER]).replace("<|im_end|>", "nothing"))
    await ask(world, tools=harmless)
    controls = [[id for id in each.token_ids if world.tokenizer.is_special(id)] for each in world.engine.requests]
    assert controls[0] == controls[1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("required", ["weather", "order"]), ({"type": "function", "function": {"name": "order"}}, ["order"])],
)
async def test_a_forced_call_has_a_grammar(world: World, choice: Any, expected: list[str]) -> None:
    says(world, SPOKEN)
    await ask(world, tool_choice=choice)
    await ask(world)
    forced, free = (each.params.grammar for each in world.engine.requests)
    assert [name for name in ("weather", "order") if f'\\"{name}\\"' in forced] == expected
    assert free == ""


async def test_values_of_an_enum_may_be_numbers(world: World) -> None:
    priority = {
        "type": "object",
        "properties": {"priority": {"type": "number", "enum": [1, 2]}},
        "required": ["priority"],
    }
    tool = {"type": "function", "function": {"name": "task", "parameters": priority}}
    says(world, '<tool_call>\n{"name": "task", "arguments": {"priority": 2}}\n</tool_call>')
    [choice] = (await ask(world, tools=[tool], tool_choice="required"))["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"priority": 2}'
    assert '"enum": [1, 2]' in world.engine.requests[0].params.grammar


async def test_a_format_beside_tools_allows_either(world: World) -> None:
    await ask(world, response_format={"type": "json_object"})
    assert "@first | @second" in world.engine.requests[0].params.grammar


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [ORDER, ORDER]}, "tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                "tool_choice": "required",
            },
            "tools[0].function.parameters.not",
        ),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"tool_choice": "required", "min_tokens": 2}, "min_tokens"),
        ({"chat_template_kwargs": {"x": "<|im_end|>"}}, "chat_template_kwargs.x"),
    ],
)
async def test_what_cannot_act_is_refused_by_name(world: World, more: dict[str, Any], param: str) -> None:
    body = {"messages": ASK, "tools": [WEATHER, ORDER], **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_a_template_without_tools_refuses_them_where_they_are_not_described(tmp_path: Path) -> None:
    async with serving(tmp_path, generic_tools=False) as world:
        answer = await world.client.post("/v1/chat/completions", json={"messages": ASK, "tools": [ORDER]})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"
        assert "places no tools" in answer.json()["error"]["message"]
        shown = (await world.client.post("/api/show", json={"model": "demo"})).json()
        assert "tools" not in shown["capabilities"]


async def test_variables_reach_the_template(tmp_path: Path) -> None:
    async with serving(
        tmp_path, chat_template=WITH_TOOLS + "{{ '[' ~ mood ~ ']' if mood is defined else '' }}"
    ) as world:
        for given in ({"mood": "calm"}, {}):
            body = {"messages": ASK, "chat_template_kwargs": given, "max_tokens": 4}
            assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 200
        prompts = [world.tokenizer.decode(list(each.token_ids)) for each in world.engine.requests]
        assert prompts[0].endswith("[calm]") and "[" not in prompts[1]
