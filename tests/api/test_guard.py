"""The guard over HTTP: masked, stopped or flagged in every dialect, streamed or not, stored or not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from service.engine.protocol.messages import Request
from service.errors import InvalidRequest
from service.text.tokenizer import Tokenizer
from tests.api.conftest import Serve
from tests.api.reading import events
from tests.fake_service import World

SECRET = "010-1234-5678"
ADDRESS = "kim@wvjq.co.kr"
REPLY = f"제 번호는 {SECRET}이고 메일은 {ADDRESS}입니다. 안녕"
MASKED = "제 번호는 [phone]이고 메일은 [e-mail]입니다. 안녕"
FOUND = [{"rule": "email", "action": "mask", "count": 1}, {"rule": "phone", "action": "mask", "count": 1}]
CHAT = [{"role": "user", "content": "hi"}]
LONG = {"max_new_tokens": 200}


def says(request: Request, tokenizer: Tokenizer) -> list[int]:
    return [*tokenizer.encode(REPLY, add_special_tokens=False), tokenizer.stop_token_ids[0]]


@asynccontextmanager
async def guarding(serve: Serve, folder: Path, rules: str, **more: Any) -> AsyncIterator[World]:
    (folder / "guard.toml").write_text(rules)
    engine = {"script": says, **more.pop("engine", {})}
    async with serve(engine=engine, guard_file=folder / "guard.toml", **more) as world:
        yield world


def masks(phone: str = "mask", email: str = "mask") -> str:
    return f'[patterns]\nemail = "{email}"\nphone = "{phone}"\n'


@pytest.fixture
async def masking(serve: Serve, tmp_path: Path) -> AsyncIterator[World]:
    async with guarding(serve, tmp_path, masks(), database_url=f"sqlite+aiosqlite:///{tmp_path}/s.db") as world:
        yield world


async def post(world: World, path: str = "/generate", **body: Any) -> httpx.Response:
    response = await world.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


def told(world: World, shown: list[dict[str, Any]]) -> str:
    """What the ids in events or details say."""
    return world.tokenizer.decode([each["id"] for each in shown if each["id"] is not None], skip_special_tokens=False)


def reveals(text: str) -> list[str]:
    """Parts of the secrets in the text, but for random ids, seeds and times, which may have the same digits."""
    parts = [secret[at : at + 4] for secret in (SECRET, ADDRESS) for at in range(len(secret) - 3)]
    words = re.sub(r"[0-9a-f]{32}|\d+\.\d+|\b\d{5,}\b", "", text)
    return [part for part in parts if part in words]


async def test_masked_whole_with_details(masking: World) -> None:
    body = (await post(masking, inputs="x", parameters={**LONG, "details": True, "top_n_tokens": 2})).json()
    assert body["generated_text"] == MASKED
    assert body["guard"] == FOUND
    assert body["finish_reason"] == "stop" and body["details"]["finish_reason"] == "eos_token"
    tokens = body["details"]["tokens"]
    assert len(tokens) == body["usage"]["completion_tokens"] == len(says(None, masking.tokenizer))  # type: ignore[arg-type]
    assert "".join(token["text"] for token in tokens) == MASKED
    hidden = [n for n, token in enumerate(tokens[:-1]) if token["special"]]
    assert len(hidden) >= 10 and {tokens[n]["id"] for n in hidden} == {masking.tokenizer.stand_in_id}
    assert all(body["details"]["top_tokens"][n] == [] for n in hidden)
    assert all(tokens[n]["logprob"] is not None for n in hidden)
    assert reveals(json.dumps(body)) == reveals(told(masking, tokens)) == []


@pytest.mark.parametrize("per_step", [1, 3, 100])
async def test_masked_in_a_native_stream(serve: Serve, tmp_path: Path, per_step: int) -> None:
    async with guarding(serve, tmp_path, masks(), engine={"per_step": per_step}) as world:
        shown = events(await post(world, "/generate_stream", inputs="x", parameters={**LONG, "top_n_tokens": 3}))
        assert "".join(event["token"]["text"] for event in shown) == shown[-1]["generated_text"] == MASKED
        assert [event["index"] for event in shown] == list(range(1, shown[-1]["usage"]["completion_tokens"] + 1))
        assert shown[-1]["guard"] == FOUND and not any("guard" in event for event in shown[:-1])
        assert reveals(told(world, [event["token"] for event in shown])) == []
        assert reveals(json.dumps(shown, ensure_ascii=False)) == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_masked_in_openais_dialect(masking: World, path: str) -> None:
    chat = "chat" in path
    question: dict[str, Any] = {"messages": CHAT, "top_logprobs": 2} if chat else {"prompt": "x"}
    body = {**question, "max_tokens": 200, "logprobs": True if chat else 2, "temperature": 0}
    response = await post(masking, path, **body)
    choice = response.json()["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == MASKED
    assert response.json()["guard"] == FOUND
    streamed = await post(masking, path, **body, stream=True)
    shown = events(streamed)
    parts = [event["choices"][0] for event in shown]
    assert "".join(part["delta"].get("content", "") if chat else part["text"] for part in parts) == MASKED
    assert shown[-1]["guard"] == FOUND and not any("guard" in event for event in shown[:-1])
    for text in (response.text, streamed.text):
        assert reveals(text) == []
    logprobs = choice["logprobs"]
    said = "".join(each["token"] for each in logprobs["content"]) if chat else "".join(logprobs["tokens"])
    assert reveals(said) == []


@pytest.mark.parametrize(
    ("path", "stream"), [("/generate", False), ("/generate", True), ("/v1/chat/completions", True)]
)
async def test_stopped(serve: Serve, tmp_path: Path, path: str, stream: bool) -> None:
    """The answer ends before the match, and the engine works on it no more."""
    async with guarding(serve, tmp_path, masks(phone="stop")) as world:
        native = path == "/generate"
        question: dict[str, Any] = (
            {"inputs": "x", "parameters": {**LONG, "details": not stream}}
            if native
            else {"messages": CHAT, "max_tokens": 200, "logprobs": True}
        )
        response = await post(world, path, **question, stream=stream)
        shown = events(response) if stream else [response.json()]
        last, ended = shown[-1], [{"rule": "phone", "action": "stop", "count": 1}]
        assert last["guard"] == ended
        if native:
            assert (last["generated_text"], last["finish_reason"]) == ("제 번호는 ", "content_filter")
            assert last["details"]["finish_reason"] == "stop_sequence"
            assert last["usage"]["completion_tokens"] == last["details"]["generated_tokens"] < 40
        else:
            assert last["choices"][0]["finish_reason"] == "content_filter"
            assert "".join(each["choices"][0]["delta"].get("content", "") for each in shown) == "제 번호는 "
        assert reveals(response.text) == []
        assert len(world.engine.aborted) == 1 and not world.engine.alive
        assert 'request_success_total{finish_reason="content_filter"' in world.metrics.exposition().decode()


async def test_flagged_text_is_as_it_was_and_comes_as_soon(serve: Serve, tmp_path: Path) -> None:
    async with serve(engine={"script": says}) as world:
        plain = events(await post(world, "/generate_stream", inputs="x", parameters={**LONG, "seed": 1}))
        assert "guard" not in plain[-1] and "guard_matches_total{" not in world.metrics.exposition().decode()
    async with guarding(serve, tmp_path, masks("flag", "flag")) as world:
        shown = events(await post(world, "/generate_stream", inputs="x", parameters={**LONG, "seed": 1}))
    assert [event["token"] for event in shown] == [event["token"] for event in plain]
    assert shown[-1]["generated_text"] == REPLY
    assert shown[-1]["guard"] == [{**each, "action": "flag"} for each in FOUND]


async def test_nothing_found_is_nothing_told(masking: World) -> None:
    masking.engine.script = lambda _, tokenizer: [*tokenizer.encode("안녕하세요"), 3]
    body = (await post(masking, inputs="x", parameters=LONG)).json()
    assert body["generated_text"] == "안녕하세요" and "guard" not in body


async def test_a_session_keeps_what_was_released(masking: World, tmp_path: Path) -> None:
    session = (await masking.client.post("/v1/sessions", json={})).json()["id"]
    for stream in (False, True):
        await post(masking, session_id=session, messages=CHAT, parameters=LONG, stream=stream)
    again = await post(masking, f"/v1/sessions/{session}/regenerate", parameters=LONG)
    stored = (await masking.client.get(f"/v1/sessions/{session}/messages")).json()["data"]
    assert [each["content"] for each in stored if each["role"] == "assistant"] == [MASKED] * 2
    assert again.json()["guard"] == FOUND
    files = b"".join((tmp_path / f"s.db{part}").read_bytes() for part in ("", "-wal"))
    assert SECRET.encode() not in files and ADDRESS.encode() not in files
    prompt = masking.tokenizer.decode(masking.engine.requests[-1].token_ids)
    assert "[phone]" in prompt and SECRET not in prompt


async def test_the_prompt_is_not_output(masking: World) -> None:
    """Text of the caller's own is given back as it was, and only the answer behind it is guarded."""
    asked = f"call {SECRET}"
    body = (await post(masking, inputs=asked, parameters={**LONG, "return_full_text": True})).json()
    assert body["generated_text"] == asked + MASKED
    echoed = (await post(masking, "/v1/completions", prompt=asked, max_tokens=200, echo=True, temperature=0)).json()
    assert echoed["choices"][0]["text"] == asked + MASKED


async def test_every_sequence_is_guarded(masking: World) -> None:
    parameters = {**LONG, "n": 2, "best_of": 3, "details": True, "do_sample": True, "seed": 1}
    body = (await post(masking, inputs="x", parameters=parameters)).json()
    assert body["generated_texts"] == [MASKED] * 2
    assert [each["count"] for each in body["guard"]] == [3, 3]
    assert reveals(json.dumps(body, ensure_ascii=False)) == []


async def test_stop_strings_and_the_guard(masking: World) -> None:
    """A stop string of the caller's that begins like a secret does not get any of it out."""
    shown = events(await post(masking, "/generate_stream", inputs="x", parameters={**LONG, "stop": [SECRET + "9"]}))
    assert shown[-1]["generated_text"] == MASKED
    assert reveals(told(masking, [event["token"] for event in shown])) == []
    cut = (await post(masking, inputs="x", parameters={**LONG, "stop": ["이고"], "include_stop": True})).json()
    assert (cut["generated_text"], cut["finish_reason"]) == ("제 번호는 [phone]이고", "stop")


async def test_held_text_comes_at_an_early_end(serve: Serve, tmp_path: Path) -> None:
    from service.engine.protocol.messages import FinishReason

    async with guarding(serve, tmp_path, masks()) as world:
        tokens = says(None, world.tokenizer)  # type: ignore[arg-type]
        inside = next(n for n in range(len(tokens)) if "010-12" in world.tokenizer.decode(tokens[:n]))
        world.engine.fail_after, world.engine.end = inside, FinishReason.DEADLINE
        shown = events(await post(world, "/generate_stream", inputs="x", parameters=LONG, deadline_ms=60_000))
        assert shown[-1]["finish_reason"] == "deadline" and shown[-1]["token"]["id"] is None
        assert "".join(event["token"]["text"] for event in shown) == shown[-1]["generated_text"] == "제 번호는 010-12"
        assert len(shown) == shown[-1]["usage"]["completion_tokens"] + 1


async def test_counted_and_logged_without_the_text(masking: World) -> None:
    with capture_logs() as lines:
        await post(masking, inputs="x", parameters=LONG)
    exposition = masking.metrics.exposition().decode()
    assert 'dosirak_guard_matches_total{action="mask",model="demo",rule="email",version="1"} 1.0' in exposition
    assert [line["guard"] for line in lines if line["event"] == "request"] == [FOUND]
    assert reveals(repr(lines)) == reveals(exposition) == []


async def test_a_wrong_guard_file_stops_the_start(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"patterns\.fax"):
        async with guarding(serve, tmp_path, '[patterns]\nfax = "mask"'):
            raise AssertionError("it started")


async def test_what_the_guard_stops_is_not_the_clients_stop_string(serve: Serve, tmp_path: Path) -> None:
    """A number is whole only once the line has ended, where a stop string lies too."""

    def card(request: Request, tokenizer: Tokenizer) -> list[int]:
        text = "The card is 4111 1111 1111 1111\nand more"
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.stop_token_ids[0]]

    rules = '[patterns]\ncard = "stop"\n'
    async with guarding(serve, tmp_path, rules, engine={"script": card}) as world:
        asked = {"model": "demo", "max_tokens": 200, "messages": CHAT, "stop_sequences": ["\n"]}
        found = (await post(world, "/v1/messages", **asked)).json()
        assert (found["stop_reason"], found["stop_sequence"]) == ("refusal", None)
        assert found["content"][0]["text"] == "The card is "
        native = (await post(world, inputs="x", parameters={**LONG, "stop": ["\n"], "details": True})).json()
        assert native["finish_reason"] == "content_filter"
