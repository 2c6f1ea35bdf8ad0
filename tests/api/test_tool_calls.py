"""Tool calls and results in the chats of both dialects, for a version whose template places them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_service import WINDOW, World, serving
from tests.tools import TEMPLATES

CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "서울"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "hello, weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": [{"type": "text", "text": "clear"}], "tool_call_id": "call_1"},
]
SHORT = {"max_new_tokens": 8}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(
        tmp_path, chat_template=TEMPLATES["json"], database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    ) as served:
        yield served


async def test_both_dialects_send_the_same_tokens(world: World) -> None:
    native = await world.client.post("/generate", json={"messages": CHAT, "parameters": SHORT})
    absent = [CHAT[0], {"role": "assistant", "tool_calls": [CALL]}, CHAT[2]]
    theirs = await world.client.post("/v1/chat/completions", json={"messages": absent, "max_tokens": 8})
    counted = await world.client.post("/tokenize", json={"messages": CHAT})
    assert native.status_code == theirs.status_code == counted.status_code == 200, (native.text, theirs.text)
    sent = [request.token_ids for request in world.engine.requests]
    assert sent[0] == sent[1] == tuple(counted.json()["tokens"])
    prompt = world.tokenizer.decode(list(sent[0]), skip_special_tokens=False)
    assert '{"name": "get_weather", "arguments": {"city": "서울"}}' in prompt
    assert prompt.endswith("clear<|im_end|>\n<|im_start|>assistant\n")
    receipt = native.json()["context"]
    assert receipt == {**theirs.json()["context"], "reserved_output": 8}
    assert receipt["kept"] == ["m_0", "m_1", "m_2"]
    assert receipt["parts"]["current"] == len(world.tokenizer.encode("clear", add_special_tokens=False))
    assert receipt["parts"]["history"] > len(world.tokenizer.encode('{"city": "서울"}', add_special_tokens=False))


async def test_a_long_chat_is_cut_with_calls_and_results_together(world: World) -> None:
    chat = [each for _ in range(12) for each in (*CHAT, {"role": "assistant", "content": "It is clear."})]
    body = {"messages": [*chat, *CHAT], "parameters": SHORT, "context": {"policy": "window"}}
    receipt = (await world.client.post("/v1/context/preview", json=body)).json()["context"]
    assert receipt["used"] + 8 <= WINDOW and len(receipt["dropped"]) % 4 == 0
    assert len(receipt["dropped"]) >= 4 and receipt["kept"][-3:] == ["m_48", "m_49", "m_50"]
    assert receipt["cut"]["at"] == receipt["kept"][0]
