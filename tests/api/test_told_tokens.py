"""Logprobs tell each token as it is: its bytes, also of a part of a character, and its place in the text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from models.repository.repository import Repository
from service.engine.protocol.messages import Request
from service.text.tokenizer import Tokenizer
from tests import tokenizers
from tests.api.reading import events
from tests.fake_service import World, publish, serving

SAID: Final = "a hi 😀도시b"
PROMPT: Final = "hello 🦊 a<|im_end|>\n뷁뷁 도시락 é"
CHAT: Final = [{"role": "user", "content": "hi"}]


def script(request: Request, tokenizer: Tokenizer) -> list[int]:
    return [*tokenizer.encode(SAID, add_special_tokens=False), tokenizer.stop_token_ids[0]]


@pytest.fixture(params=["byte_level", "llama"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Byte-level BPE, and SentencePiece with byte fallback, a space in front and BOS."""
    publish(Repository(tmp_path), rust=getattr(tokenizers, request.param)())
    async with serving(tmp_path, engine={"script": script}) as served:
        yield served


def behind_a_text(world: World) -> str:
    """What the script's tokens say there. SentencePiece puts a blank before the first word, which a decode of these
    tokens alone leaves out."""
    first = world.tokenizer.token(world.tokenizer.encode(SAID, add_special_tokens=False)[0])
    return f" {SAID}" if first == "▁a" else SAID


async def answered(world: World, path: str, **body: Any) -> dict[str, Any]:
    answer = await world.client.post(path, json={**body, "max_tokens": 60, "temperature": 0})
    assert answer.is_success, answer.text
    return dict(answer.json()["choices"][0])


async def test_bytes_join_to_the_text(world: World) -> None:
    """Of the answer's tokens, and of those that stand beside them."""
    choice = await answered(world, "/v1/chat/completions", messages=CHAT, logprobs=True, top_logprobs=1)
    told = choice["logprobs"]["content"]
    assert all(each["bytes"] is not None and each["top_logprobs"][0]["bytes"] == each["bytes"] for each in told)
    *content, end = (bytes(each["bytes"]) for each in told)
    assert b"".join(content).decode().strip() == choice["message"]["content"] == SAID and end == b"<|im_end|>"
    assert sum(each["token"] == "\ufffd" for each in told) > 2, "there are parts of characters"
    assert "".join(each["token"] for each in told if "\ufffd" not in each["token"]).strip().startswith("a hi")


@pytest.mark.parametrize("prompt", [PROMPT, "뷁", "\n\n x", "a<|im_end|>뷁"])
async def test_each_token_begins_at_its_offset(world: World, prompt: str) -> None:
    """And together they are the text, but for control tokens, which take no room."""
    choice = await answered(world, "/v1/completions", prompt=prompt, echo=True, logprobs=1)
    logprobs, text = choice["logprobs"], choice["text"]
    assert text == prompt.replace("<|im_end|>", "") + behind_a_text(world)
    named = {"<s>", "<|im_end|>"}
    shown = [(token, at) for token, at in zip(logprobs["tokens"], logprobs["text_offset"], strict=True)]
    wrong = [each for each in shown if each[0] not in named and not text.startswith(*each)]
    assert not wrong and "".join(token for token, _ in shown if token not in named) == text
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True) if top)


async def test_a_stream_tells_the_same(world: World) -> None:
    asked: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 1}
    whole = (await answered(world, "/v1/completions", **asked))["logprobs"]
    body = {**asked, "max_tokens": 60, "temperature": 0, "stream": True}
    streamed = events(await world.client.post("/v1/completions", json=body))
    parts = [event["choices"][0]["logprobs"] for event in streamed if event["choices"]]
    assert {name: [each for part in parts if part for each in part[name]] for name in whole} == whole


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/completions", {"prompt": "hello"}, "choices.0.text"),
        ("/v1/completions", {"prompt": "hello", "logprobs": 0, "stop": [" hi"]}, "choices.0.text"),
        ("/generate", {"inputs": "hello"}, "generated_text"),
        ("/api/generate", {"prompt": "hello", "raw": True, "stream": False}, "response"),
    ],
)
async def test_the_first_word_behind_a_raw_prompt_keeps_its_blank(
    world: World, path: str, body: dict[str, Any], said: str
) -> None:
    """It stands between two words, whole or streamed, and alone in the first token."""
    found: Any = (await world.client.post(path, json={"model": "demo", **body})).json()
    for step in said.split("."):
        found = found[int(step) if step.isdigit() else step]
    cut = " hi" if "stop" in body else "<"
    assert found == behind_a_text(world).partition(cut)[0]
    if path == "/v1/completions":
        streamed = events(await world.client.post(path, json={"model": "demo", **body, "stream": True}))
        assert "".join(event["choices"][0]["text"] for event in streamed) == found
    if "logprobs" in body:
        told = (await answered(world, path, **body))["logprobs"]
        assert "".join(told["tokens"]).startswith(found) and told["text_offset"][:2] == [0, len(told["tokens"][0])]


async def test_an_answer_that_begins_a_text_has_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chat, behind a prompt of control tokens alone, and where an encoder reads the prompt."""
    assert (await answered(world, "/v1/chat/completions", messages=CHAT))["message"]["content"] == SAID
    control = [world.tokenizer.encode("<|im_end|>", add_special_tokens=False)[0]]
    assert (await answered(world, "/v1/completions", prompt=control))["text"] == SAID
    monkeypatch.setattr("service.deployments.deployment.Deployment.answer_window", 400)
    assert (await answered(world, "/v1/completions", prompt="hello"))["text"] == SAID
