"""Control tokens of raw prompts and of answers: BOS once, none of the tokenizer's own, and shown where wanted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from models.repository.repository import Repository
from service.context.prompt import HAS_BOS_NOTE
from service.engine.protocol.messages import Request
from service.text.tokenizer import Tokenizer
from tests import tokenizers
from tests.api.reading import events
from tests.fake_service import World, publish, serving

SAID: Final = "a<|im_start|>b"
ROUTES: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/completions", {"prompt": "<s>hi"}),
    ("/api/generate", {"prompt": "<s>hi", "raw": True, "stream": False}),
    ("/generate", {"inputs": "<s>hi"}),
    ("/v1/embeddings", {"input": "<s>hi"}),
]


def script(request: Request, tokenizer: Tokenizer) -> list[int]:
    return [*tokenizer.encode(SAID, add_special_tokens=False), tokenizer.stop_token_ids[0]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Its tokenizer puts BOS before a text."""
    publish(Repository(tmp_path), rust=tokenizers.llama())
    async with serving(tmp_path, engine={"script": script}) as served:
        yield served


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_prompt_that_the_client_rendered_has_bos_once(world: World, path: str, body: dict[str, Any]) -> None:
    answer = await world.client.post(path, json={"model": "demo", **body})
    assert answer.is_success, answer.text
    sent = list(world.engine.requests[-1].token_ids)
    assert sent == world.tokenizer.encode("<s>hi", add_special_tokens=False)
    told = answer.json()
    receipt = told.get("context_receipt") or told.get("context")
    assert receipt is None or (receipt["notes"] == [HAS_BOS_NOTE] and receipt["used"] == len(sent))
    counted = (await world.client.post("/tokenize", json={"prompt": "<s>hi"})).json()
    assert counted["tokens"] == sent, "and /tokenize says so"


@pytest.mark.parametrize(("given", "adds"), [(None, True), (True, True), (False, False)])
async def test_a_completion_takes_no_special_tokens_on_demand(world: World, given: bool | None, adds: bool) -> None:
    body = {"prompt": "hi", "add_special_tokens": given}
    assert (await world.client.post("/v1/completions", json=body)).is_success
    ids = world.tokenizer.encode("hi", add_special_tokens=adds)
    assert list(world.engine.requests[-1].token_ids) == ids
    assert (await world.client.post("/v1/completions", json={**body, "prompt": ids})).is_success
    assert list(world.engine.requests[-1].token_ids) == ids, "ids are taken as they are"


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("stream", [False, True])
async def test_control_tokens_are_shown_on_demand(world: World, skips: bool, stream: bool) -> None:
    """The token that ends the answer is part of neither; the prompt's echo follows the same rule."""
    asked: dict[str, Any] = {"skip_special_tokens": skips, "stream": stream, "logprobs": 0}
    said = SAID.replace("<|im_start|>", "") if skips else SAID
    text = world.tokenizer.decode(world.tokenizer.encode("hi"), skip_special_tokens=skips) + f" {said}"
    [choice] = await _choices(world, "/v1/completions", prompt="hi", echo=True, **asked)
    assert choice["text"] == text
    told = zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True)
    assert skips or all(text.startswith(*each) for each in list(told)[:-1])
    chat = {**asked, "logprobs": True, "messages": [{"role": "user", "content": "hi"}]}
    [choice] = await _choices(world, "/v1/chat/completions", **chat)
    assert choice["text"] == said


async def _choices(world: World, path: str, **body: Any) -> list[dict[str, Any]]:
    """Returns the choices with their whole `text`."""
    answer = await world.client.post(path, json=body)
    assert answer.is_success, answer.text
    if not body["stream"]:
        return [{"text": each.get("message", {}).get("content"), **each} for each in answer.json()["choices"]]
    parts = [each["choices"][0] for each in events(answer) if each["choices"]]
    told = [each["logprobs"] for each in parts if each["logprobs"]]
    lists = {name: [each for part in told for each in part[name] or ()] for name in told[0]}
    texts = (each.get("delta", each) for each in parts)
    return [{"text": "".join(each.get("content") or each.get("text") or "" for each in texts), "logprobs": lists}]
