"""Typed choice: label probabilities from prompts alone, without a decode step; what cannot act beside it is refused."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
from msgspec import structs

from service.engine.protocol.messages import FinishReason, Request, StepOutput, TokenLogprobs
from service.text.messages import Message
from tests.api.reading import error
from tests.fake_service import WINDOW, World

CHOICES = ["네", "아니요", "maybe"]
CHAT = [{"role": "user", "content": "김밥 있어요?"}]


async def choose(world: World, path: str = "/generate", **body: Any) -> httpx.Response:
    return await world.client.post(path, json={"choices": CHOICES, "messages": CHAT, **body})


async def test_probabilities_are_the_softmax_of_the_sums(world: World) -> None:
    response = await choose(world)
    assert response.status_code == 200, response.text
    answer = response.json()
    ids = [world.tokenizer.encode(text, add_special_tokens=False) for text in CHOICES]
    sums = [sum(-0.25 - token / 1000 for token in each) for each in ids]
    weights = [math.exp(each) for each in sums]
    assert [each["text"] for each in answer["choices"]] == CHOICES
    assert [each["logprob"] for each in answer["choices"]] == pytest.approx(sums)
    assert [each["probability"] for each in answer["choices"]] == pytest.approx([w / sum(weights) for w in weights])
    assert [[token["id"] for token in each["tokens"]] for each in answer["choices"]] == ids
    assert answer["choice"] == CHOICES[sums.index(max(sums))]
    prompt = world.tokenizer.render_chat([Message(each["role"], each["content"]) for each in CHAT])
    assert answer["usage"]["prompt_tokens"] == answer["context"]["used"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["context"]["reserved_output"] == max(map(len, ids))
    for request, each in zip(sorted(world.engine.requests, key=lambda r: r.id), ids, strict=True):
        assert list(request.token_ids) == [*prompt, *each]
        assert (request.params.max_tokens, request.params.prompt_logprobs_start) == (0, len(prompt))


@pytest.mark.parametrize("source", [{"inputs": "Q"}, {"input_ids": [65, 66]}])
async def test_other_sources(world: World, source: dict[str, Any]) -> None:
    body = {"choices": CHOICES, **source, "deadline_ms": 10_000, "priority": 3}
    response = await world.client.post("/generate", json=body)
    assert response.status_code == 200, response.text
    assert {request.priority for request in world.engine.requests} == {3}


async def test_a_control_token_may_end_a_choice(world: World) -> None:
    """So a client counts the end of the turn, and tells apart a choice from one that begins with it."""
    assert "choices[0]" in error(await choose(world, choices=["1", "12"]), 422, "invalid_request")["error"]
    token = world.tokenizer.token_text(world.tokenizer.stop_token_ids[0])
    answer = (await choose(world, choices=[f"1{token}", "12"])).json()
    assert answer["choices"][0]["tokens"][-1]["id"] == world.tokenizer.stop_token_ids[0]


async def test_what_cannot_act_is_refused_by_name(world: World) -> None:
    for body, named in (
        ({"parameters": {"grammar": {"type": "regex", "value": "a"}}}, "parameters.grammar"),
        ({"parameters": {"max_new_tokens": 4}}, "parameters.max_new_tokens"),
        ({"session_id": "s_1"}, "session_id"),
        ({"choices": ["a", "a"]}, "choices[0]"),
        ({"choices": ["a"] * 65}, "choices"),
    ):
        response = await choose(world, **body)
        assert response.status_code == 422
        assert named in response.json()["error"]
    assert not world.engine.requests


async def test_a_stream_has_no_choices(world: World) -> None:
    assert "`choices`" in error(await choose(world, "/generate_stream"), 422, "unsupported_field")["error"]


async def test_the_longest_choice_must_fit(world: World) -> None:
    body: dict[str, Any] = {"messages": None, "inputs": "a" * (WINDOW - 2), "choices": ["x", "yyyy"]}
    told = error(await choose(world, **body), 422, "context_overflow")
    assert told["needed_tokens"] > told["window"] == WINDOW
    preview = await choose(world, "/v1/context/preview", **body)
    assert preview.json()["would_refuse"] is True


async def test_no_number_is_an_error(world: World) -> None:
    async def broken(request: Request) -> Any:
        told = tuple(TokenLogprobs(math.nan) for _ in request.token_ids[request.params.prompt_logprobs_start :])
        yield structs.replace(StepOutput(request.id, finish_reason=FinishReason.LENGTH), prompt_logprobs=told)

    world.engine._outputs = broken  # type: ignore[method-assign]
    error(await choose(world), 500, "generation_failed")


async def test_the_same_key_gets_the_same_bytes(world: World) -> None:
    given: dict[str, Any] = {"json": {"choices": CHOICES, "messages": CHAT}, "headers": {"Idempotency-Key": "k"}}
    first, second = [await world.client.post("/generate", **given) for _ in range(2)]
    assert first.content == second.content
    assert len(world.engine.requests) == len(CHOICES)
