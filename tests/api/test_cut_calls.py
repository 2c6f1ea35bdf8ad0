"""Calls that are not whole: told as far as they came, never as whole, and accepted when a client sends them back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from models.repository.repository import Repository
from service.text.tools.formats import TOOL_FORMATS
from tests.api.test_tools import streamed
from tests.fake_service import World, publish, says, serving
from tests.families import FAMILIES, REFUSED, Family
from tests.tokenizers import byte_level
from tests.tools import WITH_TOOLS

ASK = [{"role": "user", "content": "hello"}]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in given.items()}},
        },
    }
    for name, given in {
        "weather": {"city": "string", "days": "integer"},
        "order": {"menu": "string", "count": "integer"},
    }.items()
]
BY_NAME = {family.name: family for family in FAMILIES}
CALL = '<tool_call>\n{"name": "order", "arguments": '
CUT = {
    "by the model's end": (f'{CALL}{{"n": 3', {}, '{"n": 3'),
    "by a stop string": (f'{CALL}{{"n": 3, "a": "stop here"}}}}\n</tool_call>', {"stop": ["stop"]}, '{"n": 3, "a": "'),
    "behind a whole one": (f'{CALL}{{}}}}\n</tool_call>\n{CALL}{{"n": 3', {}, '{"n": 3'),
    "NaN": (f'{CALL}{{"n": NaN}}}}\n</tool_call>', {}, '{"n": NaN}'),
    "half a pair": (f'{CALL}{{"a": "\\ud83d"}}}}\n</tool_call>', {}, '{"a": "\\ud83d"}'),
    "no JSON": (f"{CALL}{{n: 3}}}}\n</tool_call>", {}, "{n: 3}"),
}  # fmt: skip


@asynccontextmanager
async def world_of(tmp_path: Path, template: object, **files: Any) -> AsyncIterator[World]:
    publish(Repository(tmp_path), chat_template=template, window=8192, **files)
    async with serving(tmp_path, database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as it:
        yield it


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path, WITH_TOOLS) as it:
        yield it


async def chat(world: World, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    body = {"messages": messages, "tools": TOOLS, "max_tokens": 400, **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def results(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": each["id"], "content": "done"} for each in message["tool_calls"]]


@pytest.mark.parametrize("name", CUT)
async def test_a_cut_call_is_not_told_as_whole_and_is_taken_back(world: World, name: str) -> None:
    text, more, arguments = CUT[name]
    says(world, text)
    choice = await chat(world, ASK, **more)
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][-1]["function"]["arguments"] == arguments
    content, calls, reason, _ = await streamed(world, tools=TOOLS, max_tokens=400, **more)
    assert (content, calls[-1], reason) == ("", ("order", arguments), "stop")
    says(world, "Bye.")
    for behind in (ASK, results(choice["message"])):
        assert (await chat(world, [*ASK, choice["message"], *behind]))["message"]["content"] == "Bye."
        prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
        assert json.dumps({"INVALID_JSON": arguments}) in prompt


@pytest.mark.parametrize("name", CUT)
async def test_a_response_with_a_cut_call_is_incomplete_and_goes_on(world: World, name: str) -> None:
    text, more, _ = CUT[name]
    if more:
        return  # responses have no stop strings
    says(world, text)
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    first = (await world.client.post("/v1/responses", json={"input": "hello", "tools": tools})).json()
    assert (first["status"], first["output"][-1]["status"]) == ("incomplete", "incomplete")
    body = {"input": "hello", "tools": tools, "stream": True}
    events = (await world.client.post("/v1/responses", json=body)).text
    assert "event: response.incomplete" in events and "event: response.completed" not in events
    says(world, "Bye.")
    call = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "bad"}
    for more_input in ("go on", [call]):
        body = {"input": more_input, "tools": tools, "previous_response_id": first["id"]}
        again = await world.client.post("/v1/responses", json=body)
        assert again.status_code == 200, again.text
    items = [{"role": "user", "content": "hello"}, *first["output"], call]
    assert (await world.client.post("/v1/responses", json={"input": items, "tools": tools})).status_code == 200


@pytest.mark.parametrize("name", ["by the model's end", "half a pair"])
async def test_a_session_takes_the_result_of_a_call_that_the_model_cut(world: World, name: str) -> None:
    session = (await world.client.post("/v1/sessions", json={})).json()["id"]
    text, _, arguments = CUT[name]
    says(world, text)
    message = (await chat(world, ASK, session_id=session))["message"]
    says(world, "Bye.")
    assert (await chat(world, results(message), session_id=session))["message"]["content"] == "Bye."
    prompt = world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)
    assert json.dumps({"INVALID_JSON": arguments}) in prompt
    more = {"session_id": session, "context": {"policy": "window"}}
    assert (await chat(world, ASK, **more))["message"]["content"] == "Bye."


async def test_a_text_that_utf_8_does_not_have_makes_no_call(world: World) -> None:
    says(world, text := '<tool_call>\n{"arguments": "{\\"a\\": \\"\\ud83d\\"}", "name": "order"}\n</tool_call>')
    assert (await chat(world, ASK))["message"]["content"] == text
    assert (await streamed(world, tools=TOOLS, max_tokens=400))[:3] == (text, [], "stop")


async def test_line_ends_in_arguments_are_escaped(world: World) -> None:
    says(world, f'{CALL}{{"text": "a\nb\tc"}}}}\n</tool_call>')
    choice = await chat(world, ASK)
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"text": "a\nb\tc"}


async def test_anthropic_tells_no_tool_use_of_a_cut_call(world: World) -> None:
    says(world, CUT["by the model's end"][0])
    tools = [{"name": "order", "input_schema": {"type": "object"}}]
    body = {"model": "demo", "messages": ASK, "tools": tools, "max_tokens": 400}
    answer = (await world.client.post("/v1/messages", json=body)).json()
    assert (answer["stop_reason"], answer["content"][-1]["input"]) == ("end_turn", {"n": 3})
    result = [{"type": "tool_result", "tool_use_id": answer["content"][-1]["id"], "content": "bad"}]
    turns = [*ASK, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": result}]
    assert (await world.client.post("/v1/messages", json={**body, "messages": turns})).status_code == 200


@pytest.mark.parametrize("name", ["Mistral, old", "Llama 3.1", "Granite 3", "gpt-oss", "Kimi K2"])
async def test_two_turns_of_a_family(tmp_path: Path, name: str) -> None:
    """Streamed and not; the second turn has the ids of the first, or a client's own."""
    family = BY_NAME[name]
    async with world_of(tmp_path, family.template) as world:
        says(world, family.says)
        choice = await chat(world, ASK)
        message = choice["message"]
        count = 1 if family.alone else 2
        assert (message["content"] or "", choice["finish_reason"]) == (family.content, "tool_calls")
        assert [each["function"]["name"] for each in message["tool_calls"]] == ["weather", "order"][:count]
        content, calls, reason, _ = await streamed(world, tools=TOOLS, max_tokens=400)
        assert (content, len(calls), reason) == (family.content, count, "tool_calls")
        foreign = json.loads(json.dumps(message))
        for at, each in enumerate(foreign["tool_calls"]):
            each["id"] = f"call_of_a_client_{at}"
        for sent in (message, foreign):
            says(world, family.says)
            again = await chat(world, [*ASK, sent, *results(sent)], max_tokens=330)
            assert len(again["message"]["tool_calls"]) == count


@pytest.mark.parametrize("name", ["Kimi K2", "DeepSeek V3, R1", "gpt-oss", "Mistral, new", "FunctionGemma", "LFM2"])
async def test_marks_that_are_control_tokens(tmp_path: Path, name: str) -> None:
    family, rust = BY_NAME[name], byte_level()
    form = TOOL_FORMATS[family.form]
    rust.add_special_tokens(list(form.marks))
    async with world_of(tmp_path, family.template, rust=rust) as world:
        says(world, family.says)
        choice = await chat(world, ASK)
        names = [each["function"]["name"] for each in choice["message"]["tool_calls"]]
        assert (choice["message"]["content"], names) == (family.content, ["weather", "order"][: len(names)])
        content, calls, _, _ = await streamed(world, tools=TOOLS, max_tokens=400)
        assert (content, [called for called, _ in calls]) == (family.content, names)
        body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
        forced = await world.client.post("/v1/chat/completions", json=body)
        assert forced.status_code == (200 if form.head else 400), forced.text
        grammar = world.engine.requests[-1].params.grammar
        assert not form.head or f"<[{world.tokenizer.id_of(form.first_mark)}]>" in grammar


async def test_ids_are_as_mistrals_template_takes_them(tmp_path: Path) -> None:
    family = BY_NAME["Mistral, old"]
    async with world_of(tmp_path, family.template) as world:
        says(world, family.says)
        ids = [each["id"] for each in (await chat(world, ASK))["message"]["tool_calls"]]
        assert all(len(id) == 9 and id.isalnum() for id in ids) and len(set(ids)) == 2
        id = (await world.client.post("/v1/sessions", json={})).json()["id"]
        tools = [{"name": "weather", "input_schema": {"type": "object"}}]
        body = {"session_id": id, "max_tokens": 400, "tools": tools, "messages": ASK}
        first = (await world.client.post("/v1/messages", json=body)).json()
        result = {"type": "tool_result", "tool_use_id": first["content"][0]["id"], "content": "clear"}
        second = {**body, "messages": [{"role": "user", "content": [result]}]}
        answer = await world.client.post("/v1/messages", json=second)
        assert answer.status_code == 200, answer.text


async def test_capabilities_say_tools_where_the_form_is_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    templates = {
        "demo": FAMILIES[0],
        **{f"no{at}": Family("", "", hint, "", "") for at, hint in enumerate(REFUSED.values())},
    }
    for name, family in templates.items():
        publish(repository, name=name, chat_template=family.template)
    async with serving(tmp_path) as world:
        for name in templates:
            told = (await world.client.post("/api/show", json={"model": name})).json()["capabilities"]
            assert ("tools" in told) == (name == "demo")
            body = {"model": name, "messages": ASK, "tools": TOOLS, "stream": True, "max_tokens": 4}
            answer = await world.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == (200 if name == "demo" else 400), answer.text
            assert name == "demo" or answer.json()["error"]["param"] == "tools"


@pytest.mark.parametrize("name", [name for name, (_, more, _) in CUT.items() if not more])
async def test_a_conversation_lists_a_cut_call_as_its_response_told_it(world: World, name: str) -> None:
    says(world, f"Sure.\n{CUT[name][0]}")
    tools = [{"type": "function", **each["function"]} for each in TOOLS]
    conversation = (await world.client.post("/v1/conversations", json={})).json()["id"]
    body = {"input": "hello", "tools": tools, "conversation": conversation}
    told = (await world.client.post("/v1/responses", json=body)).json()["output"]
    url = f"/v1/conversations/{conversation}/items?order=asc"
    listed = (await world.client.get(url)).json()["data"][1:]
    assert [(each["id"], each["status"], each.get("arguments")) for each in listed] == [
        (each["id"], each["status"], each.get("arguments")) for each in told
    ]
    assert (listed[-1]["status"], listed[-1]["arguments"]) == ("incomplete", CUT[name][2])
