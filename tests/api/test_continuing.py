"""An answer that goes on from an assistant's message: in every dialect, streamed or not, stored, with stop strings,
tools, reasoning and grammars."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_service import World, says, serving
from tests.tools import REASONING, WITH_TOOLS

pytestmark = pytest.mark.asyncio(loop_scope="module")
ASK = {"role": "user", "content": "hello"}
BEGUN = {"role": "assistant", "content": "Once there"}
CHAT = [ASK, BEGUN]
ANSWER = " was a box. And the end"
OPENAI: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
DIALECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", OPENAI),
    "anthropic": ("/v1/messages", {"model": "demo", "max_tokens": 100}),
    "ollama": ("/api/chat", {"model": "demo"}),
    "native": ("/generate", {"continue_final_message": True}),
}
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture
async def stored(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path, database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as served:
        yield served


def prompt(world: World) -> str:
    return world.tokenizer.decode(list(world.engine.requests[-1].token_ids), skip_special_tokens=False)


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer or of an event, in the words of any dialect."""
    if choices := answer.get("choices"):
        return str((choices[0].get("message") or choices[0].get("delta"))["content"])
    if "content" in answer:
        return "".join(str(block["text"]) for block in answer["content"])
    return str(answer["message"]["content"] if "message" in answer else answer["generated_text"])


def streamed(text: str) -> str:
    found = ""
    for line in text.splitlines():
        data = line.removeprefix("data:").strip()
        if data.startswith("{"):
            event = json.loads(data)
            choice = (event.get("choices") or [{}])[0]
            message = event.get("message", {}).get("content") or ""
            found += choice.get("delta", {}).get("content") or event.get("token", {}).get("text", "")
            found += event.get("delta", {}).get("text", "") + (message if isinstance(message, str) else "")
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_goes_on_from_the_last_message(shared: World, dialect: str) -> None:
    path, body = DIALECTS[dialect]
    await shared.client.post("/generate", json={"inputs": "load"})
    says(shared, ANSWER)
    whole = await shared.client.post(path, json={"messages": CHAT, "stream": False, **body})
    assert whole.status_code == 200, whole.text
    assert text_of(whole.json()) == ANSWER
    assert prompt(shared).endswith("user\nhello<|im_end|>\n<|im_start|>assistant\nOnce there")
    receipt = whole.json().get("context_receipt") or whole.json()["context"]
    assert receipt["notes"] == ["the answer goes on from m_1"]
    assert sum(receipt["parts"].values()) == receipt["used"] == len(shared.engine.requests[-1].token_ids)
    assert receipt["parts"]["current"] == len(shared.tokenizer.encode("Once there", add_special_tokens=False))
    events = await shared.client.post(path, json={"messages": CHAT, "stream": True, **body})
    assert streamed(events.text) == ANSWER
    stops = {"stop": ["box"]} if dialect == "openai" else {}
    stopped = await shared.client.post(path, json={"messages": CHAT, "stream": False, **body, **stops})
    assert text_of(stopped.json()) == (" was a " if stops else ANSWER)


@pytest.mark.parametrize(
    "path, body, names",
    [
        ("/v1/chat/completions", {"continue_final_message": True, "add_generation_prompt": True, "messages": CHAT},
         "add_generation_prompt"),
        ("/v1/chat/completions", {"add_generation_prompt": False, "messages": CHAT}, "add_generation_prompt"),
        ("/v1/chat/completions", {**OPENAI, "messages": [ASK]}, "continue_final_message"),
        ("/generate", {"continue_final_message": True, "messages": [ASK]}, "continue_final_message"),
        ("/generate", {"continue_final_message": True, "inputs": "hello"}, "continue_final_message"),
        ("/generate", {"continue_final_message": True, "messages": CHAT[1:], "session_id": "s_1"}, "session_id"),
        ("/v1/messages", {"model": "demo", "max_tokens": 9, "messages": [ASK, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]}]}, "tool_result"),
    ],
)  # fmt: skip
async def test_what_cannot_be_gone_on_from_is_refused_by_name(
    shared: World, path: str, body: dict[str, Any], names: str
) -> None:
    answer = await shared.client.post(path, json=body)
    assert answer.status_code in (400, 422) and names in answer.text, answer.text


async def test_counts_are_those_of_the_answers_prompt(shared: World) -> None:
    says(shared, ANSWER) if shared.engines else None
    body = {"model": "demo", "messages": CHAT}
    counted = (await shared.client.post("/v1/messages/count_tokens", json=body)).json()["input_tokens"]
    tokens = {"messages": CHAT, "continue_final_message": True}
    tokenized = (await shared.client.post("/tokenize", json=tokens)).json()
    previewed = (await shared.client.post("/v1/context/preview", json=tokens)).json()
    answer = await shared.client.post("/v1/messages", json={**body, "max_tokens": 9})
    assert answer.status_code == 200, answer.text
    assert counted == tokenized["count"] == previewed["context"]["used"] == len(shared.engine.requests[-1].token_ids)
    assert tuple(tokenized["tokens"]) == shared.engine.requests[-1].token_ids


async def test_a_session_keeps_one_message_and_the_next_turn_has_it_whole(stored: World) -> None:
    session = (await stored.client.post("/v1/sessions", json={})).json()["id"]
    await stored.client.post("/generate", json={"inputs": "load"})
    says(stored, ANSWER)
    turn = {"session_id": session, "messages": CHAT, "continue_final_message": True}
    answer = await stored.client.post("/generate", json=turn)
    assert answer.status_code == 200, answer.text
    assert answer.json()["generated_text"] == ANSWER
    said = (await stored.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
    assert [(each["role"], each["content"]) for each in said] == [
        ("user", "hello"), ("assistant", f"Once there{ANSWER}")
    ]  # fmt: skip
    assert said[1]["context"]["kept"] == [each["id"] for each in said] == answer.json()["context"]["kept"]
    second = await stored.client.post("/generate", json={"session_id": session, "messages": [ASK]})
    assert second.status_code == 200, second.text
    assert f"<|im_start|>assistant\nOnce there{ANSWER}<|im_end|>" in prompt(stored)
    anthropic = {"model": "demo", "max_tokens": 50, "session_id": session, "messages": CHAT}
    third = await stored.client.post("/v1/messages", json=anthropic)
    assert third.status_code == 200, third.text
    assert prompt(stored).endswith("<|im_start|>assistant\nOnce there")


async def test_a_grammar_has_taken_the_text_in_or_is_refused(shared: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, **OPENAI}
    for begun, status in (('{"a": 1', 200), ("Sure: ", 400), ('{"a": 1}', 400), ("", 200)):
        messages = [ASK, {"role": "assistant", "content": begun}]
        answer = await shared.client.post("/v1/chat/completions", json={**asked, "messages": messages})
        assert answer.status_code == status, (begun, answer.text)
        if status == 200:
            assert shared.engine.requests[-1].params.grammar_begun == begun
        else:
            assert "goes on from" in answer.text and "response_format" in answer.json()["error"]["param"]


async def test_calls_are_read_behind_a_text_and_a_begun_call_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=WITH_TOOLS) as world:
        await world.client.post("/generate", json={"inputs": "load"})
        says(world, ' soon.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
        body = {"messages": CHAT, "tools": [WEATHER], **OPENAI}
        [choice] = (await world.client.post("/v1/chat/completions", json=body)).json()["choices"]
        assert choice["message"]["content"] == " soon." and choice["finish_reason"] == "tool_calls"
        for begun in ('<tool_call>\n{"name": "wea', "I call <tool_"):
            body["messages"] = [ASK, {"role": "assistant", "content": begun}]
            answer = await world.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400 and "begins a call" in answer.text, answer.text


async def test_reasoning_is_read_from_where_the_text_left_it(tmp_path: Path) -> None:
    async with serving(tmp_path, chat_template=REASONING) as world:
        await world.client.post("/generate", json={"inputs": "load"})
        for begun, spoken, reasoning, content in (
            ("<think>\nIt", " rains.\n</think>\n\nStay.", " rains.", "Stay."),
            ("<think>\nIt rains.\n</think>\n\n", "Stay.", None, "Stay."),
            ("Stay", " <think> in", None, " <think> in"),
            ("", "<think>\nhm\n</think>\n\nStay.", "hm", "Stay."),
        ):
            says(world, spoken)
            body = {"messages": [ASK, {"role": "assistant", "content": begun}], **OPENAI}
            message = (await world.client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            assert (message.get("reasoning_content"), message["content"]) == (reasoning, content), begun


async def test_trimming_leaves_the_begun_message_whole(shared: World) -> None:
    old = [{"role": "user", "content": "old"}, {"role": "assistant", "content": "yes"}] * 9
    begun = {"role": "assistant", "content": "word " * 30 + "end"}
    for policy in ("window", "middle"):
        context = {"policy": policy, "max_input_tokens": 230}
        long = {"role": "user", "content": "new " * 90}
        body = {"messages": [*old, long, begun], "context": context, "continue_final_message": True}
        answer = await shared.client.post("/generate", json=body)
        if policy == "window":
            assert answer.status_code == 422
            body["messages"] = [*old, ASK, begun]
            answer = await shared.client.post("/generate", json=body)
        assert answer.status_code == 200, answer.text
        assert prompt(shared).endswith("assistant\n" + str(begun["content"]))
        receipt = answer.json()["context"]
        assert receipt["truncated"] and receipt["used"] == len(shared.engine.requests[-1].token_ids)


async def test_a_session_keeps_the_reasoning_that_a_text_has_begun(tmp_path: Path) -> None:
    database = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with serving(tmp_path, chat_template=REASONING, database_url=database) as world:
        for begun, spoken, reasoning, content in (
            ("<think>\nIt", " rains.\n</think>\n\nStay.", "It rains.", "Stay."),
            ("<think>\nIt", " rains.", "It rains.", ""),
            ("<think>\nIt rains.\n</think>\n\nStay", " in.", "It rains.", "Stay in."),
            ("<think>\nIt rains.\n</think>", "\n\nStay.", "It rains.", "Stay."),
            ("Stay", " <think> in", None, "Stay <think> in"),
        ):
            says(world, spoken)
            session = (await world.client.post("/v1/sessions", json={})).json()["id"]
            body = {"session_id": session, "messages": [ASK, {"role": "assistant", "content": begun}], **OPENAI}
            assert (await world.client.post("/v1/chat/completions", json=body)).status_code == 200
            last = (await world.client.get(f"/v1/sessions/{session}/messages")).json()["data"][-1]
            assert (last.get("reasoning"), last["content"]) == (reasoning, content), begun
