"""An answer that its limit cuts inside a character ends before that character, in every dialect, streamed or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from service.engine.protocol.messages import Request
from service.text.tokenizer import Tokenizer
from tests.api.conftest import Serve
from tests.api.reading import events
from tests.fake_service import World

SAID = "hello 🦊"
CHAT = [{"role": "user", "content": "hi"}]


def script(request: Request, tokenizer: Tokenizer) -> list[int]:
    """Whole words, and one character of four tokens."""
    return tokenizer.encode(SAID, add_special_tokens=False)


@pytest.fixture
async def world(serve: Serve) -> AsyncIterator[World]:
    async with serve(engine={"script": script}) as served:
        yield served


def asked(world: World, stop: bool, **body: Any) -> dict[str, Any]:
    """For all but the last of the character's tokens."""
    count = len(world.tokenizer.encode(SAID, add_special_tokens=False)) - 1
    stops = {"stop": ["🦊!"]} if stop else {}
    if "model" in body:
        return {**body, "max_tokens": count, **stops}
    return {**body, "parameters": {"max_new_tokens": count, **stops}}


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("body", [{"inputs": "hi"}, {"messages": CHAT}])
async def test_native(world: World, body: dict[str, Any], stop: bool) -> None:
    ask = asked(world, stop, **body)
    answer = (await world.client.post("/generate", json=ask)).json()
    assert (answer["generated_text"], answer["finish_reason"]) == ("hello ", "length")
    streamed = events(await world.client.post("/generate_stream", json=ask))
    assert "".join(event["token"]["text"] for event in streamed) == streamed[-1]["generated_text"] == "hello "
    assert answer["usage"]["completion_tokens"] == len(streamed), "every sampled token is counted"


@pytest.mark.parametrize("stop", [False, True])
async def test_openai(world: World, stop: bool) -> None:
    chat, text = "/v1/chat/completions", "/v1/completions"
    for path, body in ((chat, {"messages": CHAT}), (text, {"prompt": "hi"})):
        ask = asked(world, stop, model="demo", **body)
        choice = (await world.client.post(path, json=ask)).json()["choices"][0]
        assert (choice["message"]["content"] if path == chat else choice["text"]) == "hello "
        streamed = events(await world.client.post(path, json={**ask, "stream": True}))
        choices = [event["choices"][0] for event in streamed if event["choices"]]
        told = [each["delta"].get("content") or "" if path == chat else each["text"] for each in choices]
        assert "".join(told) == "hello "


async def test_triton(world: World) -> None:
    answer = (await world.client.post("/generate", json=asked(world, False, text_input="hi"))).json()
    assert answer["text_output"] == "hello "
