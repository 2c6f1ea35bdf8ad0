"""Templates and histories as they are found: what a template refuses or leaves empty is told by name in every dialect,
and every form of an empty content, of calls and of arguments is read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.fake_service import World, says, serving
from tests.tokenizers import CHAT_TEMPLATE
from tests.tools import AS_JSON

ASK = {"role": "user", "content": "hello"}
CHATS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("/generate", {}),
    "openai": ("/v1/chat/completions", {}),
    "anthropic": ("/v1/messages", {"model": "demo", "max_tokens": 9}),
    "ollama": ("/api/chat", {"model": "demo"}),
    "responses": ("/v1/responses", {"input": "hello", "messages": None}),
}
TEMPLATES = {
    "raises": ("{{ raise_exception('roles must alternate, one by one') }}", "roles must alternate, one by one"),
    "fails": ("{{ messages[0].content + 1 }}", "fails on this chat"),
    "empty": ("{% if false %}x{% endif %}", "writes nothing"),
}


@pytest.mark.parametrize("template", TEMPLATES)
async def test_a_templates_refusal_is_its_sentence_before_the_first_byte(tmp_path: Path, template: str) -> None:
    source, sentence = TEMPLATES[template]
    async with serving(tmp_path, chat_template=source) as world:
        for dialect, (path, more) in CHATS.items():
            for stream in (False, True):
                sent = {"messages": [ASK], "stream": stream, **more}
                body = {key: value for key, value in sent.items() if value is not None}
                answer = await world.client.post(path, json=body)
                assert answer.status_code in (400, 422), (dialect, stream, answer.text)
                assert sentence in answer.text and "event-stream" not in answer.headers["content-type"], dialect
        preview = await world.client.post("/v1/context/preview", json={"messages": [ASK]})
        assert preview.status_code in (400, 422) and sentence in preview.text


async def test_a_template_without_end_delays_its_own_request_alone(tmp_path: Path) -> None:
    """The event loop goes on while a thread renders, and the request is refused."""
    endless = "{% for i in range(60000) %}{% for j in range(60000) %}{% endfor %}{% endfor %}"
    waits: list[float] = []

    async def watch() -> None:
        while True:
            begun = perf_counter()
            await asyncio.sleep(0.001)
            waits.append(perf_counter() - begun)

    async with serving(tmp_path, chat_template=endless) as world:
        await world.client.post("/generate", json={"inputs": "hello"})  # loads it
        stood_still = list[bool]()
        for _ in range(3):  # a machine may stand still, the loop may not
            waits.clear()
            watching, begun = asyncio.create_task(watch()), perf_counter()
            answer = await world.client.post("/generate", json={"messages": [ASK]})
            took = perf_counter() - begun
            watching.cancel()
            assert answer.status_code == 422 and "template takes too long" in answer.text
            stood_still.append(max(waits) >= took / 2)
            if not stood_still[-1]:
                break
        assert not all(stood_still), "the event loop stood still"
        assert (await world.client.post("/generate", json={"inputs": "hello"})).status_code == 200


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
HISTORIES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "content null, no calls": ([{"role": "assistant", "content": None}], "assistant\n<|im_end|>"),
    "content null, calls null": ([{"role": "assistant", "content": None, "tool_calls": None}], "assistant\n<|im_end|>"),
    "content [], calls []": ([{"role": "assistant", "content": [], "tool_calls": []}], "assistant\n<|im_end|>"),
    "content empty": ([{"role": "assistant", "content": ""}], "assistant\n<|im_end|>"),
    "arguments as text": ([{"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]}, RESULT],
                          '"arguments": {"a": 1}}'),
    "arguments as an object": ([{"role": "assistant", "tool_calls": [call({"a": "서울"})]}, RESULT],
                               '"arguments": {"a": "서울"}}'),
    "arguments empty": ([{"role": "assistant", "tool_calls": [call("")]}, RESULT], '"arguments": {}}'),
    "arguments null": ([{"role": "assistant", "tool_calls": [call(None)]}, RESULT], '"arguments": {}}'),
    "result null": ([{"role": "assistant", "tool_calls": [call("{}")]}, {**RESULT, "content": None}], "tool\n<|im_end"),
}  # fmt: skip


@pytest.mark.parametrize("plain", [False, True], ids=["tojson", "as a text"])
async def test_every_form_of_a_history_is_read(tmp_path: Path, plain: bool) -> None:
    template = AS_JSON.replace("(function.arguments | tojson)", "function.arguments") if plain else AS_JSON
    async with serving(tmp_path, chat_template=template) as world:
        await world.client.post("/generate", json={"inputs": "load"})
        for name, (history, wanted) in HISTORIES.items():
            body = {"messages": [ASK, *history, ASK]}
            answer = await world.client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, (name, answer.text)
            ids = list(world.engine.requests[-1].token_ids)
            assert wanted in world.tokenizer.decode(ids, skip_special_tokens=False), name
            parts = answer.json()["context"]["parts"]
            assert sum(parts.values()) == len(ids)


async def test_a_chat_has_its_first_token_once(world: World) -> None:
    assert "bos_token" in CHAT_TEMPLATE
    await world.client.post("/v1/chat/completions", json={"messages": [ASK]})
    says(world, "x")
    ids = world.engine.requests[-1].token_ids
    assert ids[0] == world.tokenizer.bos_token_id and ids.count(ids[0]) == 1
