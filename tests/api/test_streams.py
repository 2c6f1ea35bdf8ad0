"""Server-sent events: one a token, exact text, a last event that tells all, failures that are never silent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import FinishReason
from service.generation.answer import Answer
from tests.api.conftest import Serve
from tests.api.reading import error, events, openai_error
from tests.fake_service import REPLY, World

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def stream(world: World, path: str = "/generate_stream", **body: Any) -> httpx.Response:
    return await world.client.post(path, json=body)


@pytest.mark.parametrize("path", ["/generate_stream", "/generate", "/"])
async def test_events_are_tgis_and_join_to_the_text(world: World, path: str) -> None:
    response = await stream(world, path, inputs="x", stream=True)
    *others, last = events(response)
    tokens = [*world.tokenizer.encode(REPLY, add_special_tokens=False), 3]
    assert [event["token"]["id"] for event in [*others, last]] == tokens, "one event a token"
    assert [event["index"] for event in [*others, last]] == list(range(1, len(tokens) + 1))
    assert all(event.keys() == {"index", "token", "generated_text", "details"} for event in others)
    assert all(event["generated_text"] is None and event["details"] is None for event in others)
    assert all(event["token"].keys() == {"id", "text", "logprob", "special"} for event in [*others, last])
    assert "".join(event["token"]["text"] for event in [*others, last]) == last["generated_text"] == REPLY
    assert last["details"]["finish_reason"] == "eos_token"
    assert last["details"]["generated_tokens"] == last["usage"]["completion_tokens"] == len(tokens)
    assert last["finish_reason"] == "stop"
    assert {"timings", "context", "model", "digest", "id"} <= last.keys()
    assert response.headers["x-model-version"] == "demo:1"
    assert response.headers["x-context-truncated"] == "false"


async def test_no_event_splits_a_character(world: World) -> None:
    world.engine.script = lambda _, tokenizer: [*_bytes(tokenizer, "가😀é"), 3]
    shown = events(await stream(world, inputs="x"))
    texts = [event["token"]["text"] for event in shown]
    assert "".join(texts) == "가😀é"
    assert [text for text in texts if text] == ["가", "😀", "é"]
    assert len(texts) == 3 + 4 + 2 + 1


def _bytes(tokenizer: Any, text: str) -> list[int]:
    """One token for each byte, whatever merges there are."""
    by_bytes = {tokenizer._vocabulary._token_bytes(id): id for id in range(4, tokenizer.vocab_size)}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


async def test_held_back_text_comes_at_the_end(world: World) -> None:
    shown = events(await stream(world, inputs="x", parameters={"stop": ["하나!"], "max_new_tokens": 6}))
    assert "".join(event["token"]["text"] for event in shown) == shown[-1]["generated_text"]
    whole = (await world.client.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 6}})).json()
    assert shown[-1]["generated_text"] == whole["generated_text"]


@pytest.mark.parametrize("per_step", [1, 2, 7, 100])
async def test_stop_string_is_in_no_event(serve: Serve, per_step: int) -> None:
    async with serve(engine={"per_step": per_step}) as world:
        shown = events(await stream(world, inputs="x", parameters={"stop": ["시락 하"]}))
        assert "".join(event["token"]["text"] for event in shown) == "안녕하세요, 도"
        assert shown[-1]["generated_text"] == "안녕하세요, 도"
        assert shown[-1]["details"]["finish_reason"] == "stop_sequence"
        assert len(shown) == shown[-1]["usage"]["completion_tokens"]
        assert not world.engine.alive


async def test_line_ends_of_unicode_do_not_break_events(world: World) -> None:
    odd = "a\u2028b\u2029c\x85d\x0be\x1cf\r\n\ng"
    world.engine.script = lambda _, tokenizer: [*_bytes(tokenizer, odd), 3]
    response = await stream(world, inputs="x")
    assert events(response)[-1]["generated_text"] == odd
    chat = await stream(world, "/v1/chat/completions", **CHAT, stream=True)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events(chat)) == odd


async def test_top_tokens_ride_on_events(world: World) -> None:
    shown = events(await stream(world, inputs="x", parameters={"top_n_tokens": 2, "max_new_tokens": 2}))
    assert [len(event["top_tokens"]) for event in shown] == [2, 2]


async def test_triton_stream(world: World) -> None:
    shown = events(await stream(world, text_input="x"))
    assert "".join(event["text_output"] for event in shown) == REPLY
    assert all(event.keys() == {"model_name", "model_version", "text_output"} for event in shown)


async def test_deadline_in_mid_stream_keeps_the_text(serve: Serve) -> None:
    async with serve(engine={"end": FinishReason.DEADLINE, "fail_after": 3}) as world:
        shown = events(await stream(world, inputs="x", deadline_ms=60_000))
        assert shown[-1]["finish_reason"] == "deadline"
        assert shown[-1]["token"] == {"id": None, "text": "", "logprob": None, "special": True}
        assert "".join(event["token"]["text"] for event in shown) == shown[-1]["generated_text"]
        assert shown[-1]["usage"]["completion_tokens"] == 3


FAILURES = [(EngineFailed("the engine is dead"), "generation_failed"), (RuntimeError("secret /etc/passwd"), "internal")]


@pytest.mark.parametrize(("failure", "code"), FAILURES)
async def test_failure_in_mid_stream_is_a_last_error_event(serve: Serve, failure: Exception, code: str) -> None:
    async with serve(engine={"failure": failure, "fail_after": 2}) as world:
        response = await stream(world, inputs="x")
        assert response.status_code == 200
        name, data = response.text.rstrip().split("\n\n")[-1].split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == "event: error"
        assert (body["code"], body["error_type"]) == (code, "generation")
        assert body["request_id"] == response.headers["x-request-id"]
        assert "secret" not in response.text


@pytest.mark.parametrize(("failure", "code"), FAILURES)
async def test_failure_in_mid_stream_in_openais_words(serve: Serve, failure: Exception, code: str) -> None:
    async with serve(engine={"failure": failure, "fail_after": 2}) as world:
        response = await stream(world, "/v1/chat/completions", **CHAT, stream=True)
        last, done = response.text.rstrip().split("\n\n")[-2:]
        body = json.loads(last.removeprefix("data: "))
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error"]["code"]) == ("server_error", code)
        assert done == "data: [DONE]", "its clients stop reading there"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "code"), FAILURES)
async def test_failure_before_the_first_token_is_a_status(
    serve: Serve, failure: Exception, code: str, stream: bool
) -> None:
    async with serve(engine={"failure": failure, "fail_after": 0}) as world:
        error(await world.client.post("/generate", json={"inputs": "x", "stream": stream}), 500, code)
        chat = await world.client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        assert openai_error(chat, 500, code)["type"] == "server_error"


async def test_streamed_and_whole_are_the_same(world: World) -> None:
    parameters = {"seed": 5, "temperature": 1.0, "stop": ["world"]}
    whole = (await world.client.post("/generate", json={"inputs": "x", "parameters": parameters})).json()
    last = events(await stream(world, inputs="x", parameters=parameters))[-1]
    for name in ("generated_text", "finish_reason", "usage", "context"):
        assert whole[name] == last[name]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "x"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": ["one", "two"]}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {**CHAT, "model": "demo", "max_tokens": 9}),
        ("/api/chat", {**CHAT, "model": "demo"}),
    ],
)
async def test_the_engine_knows_who_reads_along(shared: World, path: str, body: dict[str, Any]) -> None:
    for streamed in (True, False):
        before = len(shared.engine.requests) if shared.engines else 0
        assert (await shared.client.post(path, json={**body, "stream": streamed})).status_code == 200
        assert {each.is_streamed for each in shared.engine.requests[before:]} == {streamed}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "x", "logprobs": 2}),
        ("/api/chat", {**CHAT, "model": "demo", "logprobs": True, "top_logprobs": 2}),
        ("/generate", {"inputs": "x", "parameters": {"top_n_tokens": 2, "details": True}}),
    ],
)
async def test_a_stream_keeps_no_likeliest_tokens(
    shared: World, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader who stands still would hold 2.5 kB of memory for each token that went out."""
    begun = list[Answer]()
    made = Answer.__init__

    def watched(self: Answer, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        begun.append(self)

    monkeypatch.setattr(Answer, "__init__", watched)
    for streamed in (True, False):
        assert (await shared.client.post(path, json={**body, "stream": streamed})).status_code == 200
    stream, whole = ([token.top for token in answer.sequences[0].tokens] for answer in begun)
    assert all(whole) and not any(stream)


async def test_many_streams_at_once(world: World) -> None:
    world.engine.step_seconds = 0.001
    responses = await asyncio.gather(*(stream(world, inputs=f"x{n}") for n in range(40)))
    assert {events(response)[-1]["generated_text"] for response in responses} == {REPLY}
    assert world.app.state.service.answers.admission.in_progress == 0
