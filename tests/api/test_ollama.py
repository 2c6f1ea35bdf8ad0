"""Ollama's routes that generate: shapes to the letter, lines, defaults, fields that act or are refused."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.repository.repository import Repository
from service.engine.client.engine import EngineFailed
from service.engine.protocol.messages import FinishReason
from tests.api.conftest import KEY, Serve
from tests.api.ollama import CHAT, ROUTES, ask, lines, refused, text_of
from tests.fake_service import REPLY, World, over_http, publish, serving

COSTS = {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"}
END = {"done_reason", "digest", "context_receipt", *COSTS}
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_an_answer(world: World, path: str, body: dict[str, Any]) -> None:
    shown = await ask(world, path, options={"temperature": 0})
    assert (text_of(shown), shown["model"], shown["done"], shown["done_reason"]) == (REPLY, "demo:1", True, "stop")
    assert shown.keys() - {"message", "response"} == {"model", "created_at", "done"} | END
    assert TIME.fullmatch(shown["created_at"])
    [request] = world.engine.requests
    assert shown["prompt_eval_count"] == len(request.token_ids) == shown["context_receipt"]["used"]
    assert shown["eval_count"] == len(world.tokenizer.encode(REPLY)) + 1
    assert all(type(shown[name]) is int and shown[name] >= 0 for name in COSTS)
    assert shown["prompt_eval_duration"] == 2_000_000, "the engine's own 2 ms, in nanoseconds"
    if path == "/api/chat":
        assert shown["message"]["role"] == "assistant"


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_stream_is_the_default(world: World, path: str, body: dict[str, Any]) -> None:
    *parts, last = lines(await world.client.post(path, json={**body, "options": {"temperature": 0}}))
    assert "".join(map(text_of, parts)) == REPLY and all(map(text_of, parts))
    assert [part["done"] for part in parts] == [False] * len(parts) and len(parts) > 5
    assert all(TIME.fullmatch(part["created_at"]) and "done_reason" not in part for part in parts)
    assert (text_of(last), last["done"], last["done_reason"]) == ("", True, "stop")
    assert last.keys() >= END
    whole = await ask(world, path, options={"temperature": 0})
    for name in ("model", "done_reason", "prompt_eval_count", "eval_count", "digest", "context_receipt"):
        assert last[name] == whole[name]


async def test_a_prompt_is_a_question_unless_it_is_raw(world: World) -> None:
    await ask(world, "/api/generate", prompt="도시락", system="Be brief.")
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "도시락"}]
    await ask(world, "/api/chat", messages=asked)
    await ask(world, "/api/generate", prompt="도시락", raw=True)
    generated, chatted, raw = (request.token_ids for request in world.engine.requests)
    assert generated == chatted
    assert list(raw) == world.tokenizer.encode("도시락")


@pytest.mark.parametrize("name", ["demo", "demo:latest", "demo:1"])
async def test_names(world: World, name: str) -> None:
    assert (await ask(world, model=name))["model"] == "demo:1"


async def test_logprobs(world: World) -> None:
    options = {"num_predict": 2, "temperature": 0}
    shown = await ask(world, logprobs=True, top_logprobs=1, options=options)
    first, second = shown["logprobs"]
    assert first["token"] == "안녕하세요" and first["bytes"] == list("안녕하세요".encode())
    assert first["logprob"] == pytest.approx(-0.25 - world.tokenizer.encode(REPLY)[0] / 1000)
    assert [top["token"] for top in first["top_logprobs"]] == ["안녕하세요"]
    body = {**dict(ROUTES)["/api/generate"], "logprobs": True, "options": options}
    *parts, last = lines(await world.client.post("/api/generate", json=body))
    assert [[each["token"] for each in part["logprobs"]] for part in parts] == [[first["token"]], [second["token"]]]
    assert "logprobs" not in last
    assert "logprobs" not in await ask(world)


async def test_a_token_inside_a_character_is_told_with_its_logprob(world: World) -> None:
    """Without logprobs there is nothing to tell of it."""
    world.engine.script = lambda _, tokenizer: [*tokenizer.encode("😀", add_special_tokens=False), 3]
    tokens = len(world.tokenizer.encode("😀", add_special_tokens=False))
    assert tokens > 1
    body = dict(ROUTES)["/api/chat"]
    assert [text_of(part) for part in lines(await world.client.post("/api/chat", json=body))] == ["😀", ""]
    parts = lines(await world.client.post("/api/chat", json={**body, "logprobs": True}))
    assert len(parts) == tokens + 2
    assert bytes(byte for part in parts[:tokens] for byte in part["logprobs"][0]["bytes"]).decode() == "😀"


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
async def test_the_content_type_says_anything(world: World, kind: str | None) -> None:
    """`curl -d` of Ollama's documentation says that it sends a form."""
    headers = {"Content-Type": kind} if kind else {}
    content = json.dumps(dict(ROUTES)["/api/chat"])
    assert lines(await world.client.post("/api/chat", content=content, headers=headers))
    assert "gzip" not in refused(await world.client.post("/api/chat", content="{", headers=headers))
    zipped = {**headers, "Content-Encoding": "gzip"}
    assert "Content-Encoding" in refused(await world.client.post("/api/chat", content=content, headers=zipped), 415)


async def test_errors_of_routes_and_bodies(world: World) -> None:
    post = world.client.post
    assert "no such route" in refused(await post("/api/pull", json={"model": "demo"}), 404)
    refused(await world.client.get("/api/chat"), 405)
    refused(await post("/api/chat", json={"model": "x" * (1 << 21)}), 413)
    refused(await post("/api/chat", json={"messages": CHAT}))
    refused(await post("/api/chat", json={"model": "demo@nope", "messages": CHAT}), 404)
    refused(await post("/api/chat", json={"model": "../x", "messages": CHAT}))
    refused(await post("/api/chat", content=""))
    assert "error_type" in (await world.client.get("/apis")).json(), "a prefix ends at a slash"


async def test_keys(serve: Serve) -> None:
    async with serve(admin_key=KEY) as world:
        assert "key" in refused(await world.client.get("/api/tags"), 401)
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await world.client.get("/api/tags", headers=headers)).status_code == 200


FAILURES = [EngineFailed("the engine is dead"), RuntimeError("secret /etc/passwd")]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_failure_is_the_last_line(serve: Serve, path: str, body: dict[str, Any], failure: Exception) -> None:
    async with serve(engine={"failure": failure, "fail_after": 2}) as world:
        greedy = {**body, "options": {"temperature": 0}}
        *parts, last = lines(await world.client.post(path, json=greedy))
        assert last.keys() == {"error"} and "secret" not in last["error"]
        assert len(parts) == 2 and not parts[-1]["done"]
        world.engine.fail_after = 0
        refused(await world.client.post(path, json=body), 500)
        refused(await world.client.post(path, json={**body, "stream": False}), 500)


@pytest.mark.parametrize("reason", [FinishReason.DEADLINE, FinishReason.ERROR])
async def test_an_answer_that_was_cut_has_our_word(serve: Serve, reason: FinishReason) -> None:
    async with serve(engine={"end": reason, "fail_after": 3}) as world:
        shown = await ask(world)
        assert (shown["done_reason"], shown["finish_detail"]) == ("length", reason.value)


async def test_overloaded(serve: Serve) -> None:
    async with serve(max_in_progress=1) as world:
        with world.app.state.service.answers.admission.entered(1):
            response = await world.client.post("/api/chat", json=dict(ROUTES)["/api/chat"])
        assert "places" in refused(response, 503) and int(response.headers["retry-after"]) >= 1


async def test_line_ends_of_unicode_do_not_break_lines(world: World) -> None:
    odd = "a\u2028b\u2029c\x85d\r\n\ng"
    world.engine.script = lambda _, tokenizer: [*tokenizer.encode(odd, add_special_tokens=False), 3]
    parts = lines(await world.client.post("/api/chat", json=dict(ROUTES)["/api/chat"]))
    assert "".join(map(text_of, parts)) == odd


async def test_a_version_without_a_template_continues_raw_texts(tmp_path: Path) -> None:
    publish(Repository(tmp_path), chat_template=None)
    async with serving(tmp_path) as world:
        for path, body in ROUTES:
            sentence = refused(await world.client.post(path, json=body))
            assert sentence.endswith("send /api/generate a `prompt` with `raw` true.")
        assert (await ask(world, "/api/generate", raw=True))["done"]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_blanks_come_until_the_first_token(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """A blank before an object is JSON: no client sees it. A line of its own would break Ollama's."""
    monkeypatch.setattr("service.api.answering.streaming.HEADERS_SECONDS", 0.01)
    monkeypatch.setattr("service.api.answering.streaming.COMMENT_SECONDS", 0.01)
    hold = asyncio.Event()
    async with serve(engine={"hold": hold}) as world, over_http(world) as url, asyncio.timeout(30):
        async with httpx.AsyncClient() as client, client.stream("POST", url + path, json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            chunks = response.aiter_raw()
            waited = [await anext(chunks) for _ in range(3)]
            assert set(b"".join(waited)) == set(b" ")
            hold.set()
            rest = b"".join(waited) + b"".join([chunk async for chunk in chunks])
        parts = [json.loads(line) for line in rest.decode().split("\n")[:-1]]
        assert parts[-1]["done"] and len(parts) > 5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_one_answer_for_a_key(
    serve: Serve, tmp_path: Path, path: str, body: dict[str, Any], stream: bool
) -> None:
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as world:
        sent, key = {**body, "stream": stream}, {"Idempotency-Key": "k"}
        first, again = [await world.client.post(path, json=sent, headers=key) for _ in range(2)]
        assert first.content == again.content and again.headers["idempotent-replayed"] == "true"
        assert first.headers["content-type"] == again.headers["content-type"]
        assert len(world.engine.requests) == 1
