"""Tools of a version whose template places none: described in the system part, called in JSON, results as text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_tools import ASK, CALLS, ORDER, WEATHER, ask, streamed
from tests.fake_service import World, says, serving

SPOKEN = '{"name": "weather", "arguments": {"city": "서울"}}\n{"name": "order", "arguments": {}}'
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fake_service.WINDOW", 2048)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, chat_template=PLAIN) as served:
        yield served


def prompt(world: World) -> str:
    return world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)


async def test_they_are_described_and_their_calls_read(world: World) -> None:
    says(world, SPOKEN)
    body = await ask(world)
    [choice] = body["choices"]
    assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"]
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"]["tool_calls"]] == CALLS
    assert any("places no tools" in note for note in body["context"]["notes"])
    assert body["context"]["parts"]["tools"] > 50
    assert "You can call these functions:" in prompt(world) and '"description": "of a city' in prompt(world)
    assert world.engine.requests[-1].params.grammar, "a call keeps its form"
    content, calls, reason, _ = await streamed(world)
    assert (content, calls, reason) == ("", CALLS, "tool_calls")
    assert "tools" in (await world.client.post("/api/show", json={"model": "demo"})).json()["capabilities"]


@pytest.mark.parametrize("field", [{"min_tokens": 3}, {"stop_token_ids": [20]}])
async def test_who_says_where_the_answer_ends_gets_no_form_of_calls(world: World, field: dict[str, Any]) -> None:
    says(world, "No function helps.")
    assert (await ask(world, **field))["choices"][0]["message"]["content"]
    assert not world.engine.requests[-1].params.grammar


async def test_words_stay_words(world: World) -> None:
    says(world, "No function helps.")
    [choice] = (await ask(world))["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", "No function helps.")


async def test_a_second_turn_has_the_calls_and_their_results_as_text(world: World) -> None:
    says(world, SPOKEN)
    message = (await ask(world))["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call, text in zip(message["tool_calls"], ("12 degrees", "done"), strict=True)
    ]
    says(world, "It is 12 degrees.")
    system = {"role": "system", "content": "Be short."}
    second = await ask(world, messages=[system, *ASK, message, *results])
    assert second["choices"][0]["message"]["content"] == "It is 12 degrees."
    text = prompt(world)
    assert text.index("Be short.") < text.index("You can call") < text.index("hello") < text.index(SPOKEN)
    assert text.index("Result of weather: 12 degrees") < text.index("Result of order: done")
    parts = second["context"]["parts"]
    assert sum(value for value in parts.values() if isinstance(value, int)) == second["usage"]["prompt_tokens"]


@pytest.mark.parametrize(("choice", "names"), [("required", ["weather", "order"]), ({"name": "order"}, ["order"])])
async def test_calls_are_forced(world: World, choice: Any, names: list[str]) -> None:
    given = choice if isinstance(choice, str) else {"type": "function", "function": choice}
    says(world, '{"name": "order", "arguments": {}}')
    body = await ask(world, tool_choice=given)
    assert body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "order"
    grammar = str(world.engine.requests[-1].params.grammar)
    assert [name for name in ("weather", "order") if name in grammar] == names


async def test_without_system_messages_the_first_text_has_them(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=NO_SYSTEM) as world:
        await ask(world)
        assert "[user]You can call these functions:" in prompt(world)


async def test_other_dialects_send_tools_too(world: World) -> None:
    says(world, '{"name": "order", "arguments": {}}')
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    anthropic = {
        "model": "demo",
        "max_tokens": 99,
        "messages": ASK,
        "tools": [{"name": "order", "input_schema": schema}],
    }
    answer = (await world.client.post("/v1/messages", json=anthropic)).json()
    assert [block["name"] for block in answer["content"] if block["type"] == "tool_use"] == ["order"]
    ollama = {"model": "demo", "messages": ASK, "tools": [ORDER], "stream": False}
    answer = (await world.client.post("/api/chat", json=ollama)).json()
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "order", json.dumps(answer)


@pytest.mark.parametrize(
    "more", [{}, {"tools": [WEATHER], "tool_choice": "none"}], ids=["no tools", "tool_choice none"]
)
async def test_a_last_turn_without_tools_has_the_calls_as_text(world: World, more: dict[str, Any]) -> None:
    says(world, SPOKEN)
    message = (await ask(world))["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "clear"} for each in message["tool_calls"]]
    says(world, "It is clear.")
    body = {"messages": [*ASK, message, *results], "max_tokens": 40, **more}
    answer = await world.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "It is clear."
    assert "Result of weather: clear" in prompt(world) and "You can call" not in prompt(world)
    assert any("sent as texts" in note for note in answer.json()["context"]["notes"])


async def test_calls_are_no_texts_where_tools_are_not_described(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "call_1", "content": "clear"})
    async with serving(tmp_path, chat_template=PLAIN, generic_tools=False) as world:
        answer = await world.client.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
        assert "DOSIRAK_GENERIC_TOOLS" in answer.json()["error"]["message"]
