"""Nothing that a client wrote is in the log, at any level, or in the metrics: whatever happened to the request."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from service.observability.logs import configure_logging
from service.settings import Settings
from tests.api.conftest import Serve
from tests.api.test_disconnect import Client
from tests.fake_service import World
from tests.waiting import until

SESSIONS = "/v1/sessions"
CLIENT_LOGGERS = ("httpx", "httpcore")  # of the tests' own client, which is in this process


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the process writes at level debug, as `create` sets it up."""
    written, root, before = io.StringIO(), logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers, root.level
    root.handlers = []
    with redirect_stderr(written):
        configure_logging(Settings(log_level="debug", log_format="json"))
    for name in CLIENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    yield written
    structlog.configure(**before)
    root.handlers = handlers
    root.setLevel(level)
    for name in CLIENT_LOGGERS:
        logging.getLogger(name).setLevel(logging.NOTSET)


class Words:
    """A new word each time, that nothing else holds."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(f"zq{len(self.given)}wvx")
        return self.given[-1]


async def check(world: World, words: Words, log: io.StringIO, *needed: str) -> None:
    """None of the words was written; what was written is about these requests."""
    metrics = (await world.client.get("/metrics")).text
    for written in (log.getvalue(), metrics):
        assert [word for word in words.given if word in written] == []
    assert len(words.given) > 5
    assert all(each in log.getvalue() for each in needed), log.getvalue()


def chat(word: Words) -> list[dict[str, str]]:
    return [{"role": "system", "content": word()}, {"role": "user", "content": word()}]


async def test_answers(serve: Serve, log: io.StringIO) -> None:
    word = Words()
    async with serve() as world:
        document = {"title": word(), "text": word()}
        for path, body in [
            ("/generate", {"inputs": word()}),
            ("/generate_stream", {"inputs": word(), "parameters": {"stop": [word()]}}),
            ("/generate", {"messages": chat(word), "documents": [document]}),
            ("/v1/chat/completions", {"messages": chat(word), "stream": True}),
            ("/v1/completions", {"prompt": [word(), word()], "echo": True, "logprobs": 1}),
            ("/v1/context/preview", {"messages": chat(word)}),
            ("/tokenize", {"inputs": word()}),
            ("/chat_tokenize", {"messages": chat(word)}),
        ]:
            response = await world.client.post(path, json=body)
            assert response.status_code == 200, response.text
        await check(world, word, log, '"route":"/generate"', '"status":200')


async def test_refusals(serve: Serve, log: io.StringIO) -> None:
    word = Words()
    wrong: list[dict[str, Any]] = [
        {"inputs": {"text": word()}},
        {"inputs": "x", "parameters": {"temperature": word()}},
        {"inputs": "x", "parameters": {"stop": [word() * 300]}},
        {"inputs": "x", word(): word()},
        {"messages": [{"role": word(), "content": word()}]},
        {"messages": [{"role": "user", "content": [word()]}]},
        {"inputs": word() * 1000},
        {"inputs": "x", "model": word()},
        {"session_id": word(), "messages": chat(word)},
        {"inputs": word(), "messages": chat(word)},
    ]
    async with serve() as world:
        for body in wrong:
            for path in ("/generate", "/v1/chat/completions"):
                assert (await world.client.post(path, json=body)).status_code in (400, 404, 422)
        for raw in (f'{{"inputs": "{word()}"', f'{{"{word()}": 1, "{word()}": [}}', f'"{word()}"'):
            given = {"content": raw, "headers": {"Content-Type": "application/json"}}
            assert (await world.client.post("/generate", **given)).status_code == 422  # type: ignore[arg-type]
        for address in (f"/{word()}", f"/v1/models/{word()}", f"{SESSIONS}/{word()}", f"{SESSIONS}?limit={word()}"):
            assert (await world.client.get(address)).status_code in (404, 422)
        await check(world, word, log, '"code":"invalid_request"', '"code":"context_overflow"', '"status":404')


@pytest.mark.parametrize("fail_after", [0, 3])
async def test_failures(serve: Serve, log: io.StringIO, fail_after: int) -> None:
    """Also where what failed quotes what it failed on."""
    word = Words()
    failure = RuntimeError(f"cannot make sense of {word()}")
    failure.__cause__ = KeyError(word())
    async with serve(engine={"failure": failure, "fail_after": fail_after}) as world:
        for body in ({"inputs": word()}, {"inputs": word(), "stream": True}, {"messages": chat(word)}):
            await world.client.post("/generate", json=body)
        await check(world, word, log, "RuntimeError", "KeyError", "fake_service.py", '"code":"internal"')


async def test_clients_that_leave(serve: Serve, log: io.StringIO) -> None:
    word = Words()
    async with serve(engine={"step_seconds": 0.01}) as world:
        for body in (
            {"inputs": word()},
            {"inputs": word(), "stream": True},
            {"messages": [*chat(word), *chat(word)][1:2]},
        ):
            steps = world.engine.stats.steps_total
            client = Client(world, "/generate", body)
            await until(partial(_stepped, world, steps + 2))
            await client.leave()
        await asyncio.sleep(0)
        await check(world, word, log, '"status":499')


def _stepped(world: World, steps: int) -> bool:
    return world.engine.stats.steps_total > steps


async def test_sessions(serve: Serve, log: io.StringIO, tmp_path: Path) -> None:
    word = Words()
    async with serve(database_url=f"sqlite+aiosqlite:///{tmp_path}/s.db") as world:
        client = world.client
        made = await client.post(SESSIONS, json={"title": word(), "system": word(), "metadata": {word(): word()}})
        session = f"{SESSIONS}/{made.json()['id']}"
        for stream in (False, True):
            body = {
                "session_id": made.json()["id"],
                "messages": [{"role": "user", "content": word()}],
                "stream": stream,
            }
            assert (await client.post("/generate", json=body)).status_code == 200
        messages = (await client.get(f"{session}/messages")).json()["data"]
        one = f"{session}/messages/{messages[0]['id']}"
        assert (await client.get(SESSIONS, params={"query": word()})).status_code == 200
        assert (await client.get(SESSIONS, params={"query": word.given[0], "limit": 5})).json()["data"]
        for path, body in ((session, {"title": word()}), (one, {"content": word()}), (session, {"policy": word()})):
            await client.patch(path, json=body)
        assert (await client.post(f"{session}/fork", json={"at": messages[-1]["id"]})).status_code == 201
        assert (await client.post(f"{session}/regenerate", json={})).status_code == 200
        lines = (await client.get(f"{session}/export")).content
        imported = await client.post(
            f"{SESSIONS}/import", content=lines, headers={"Content-Type": "application/x-ndjson"}
        )
        assert imported.status_code == 201
        await client.post(f"{SESSIONS}/import", content=word(), headers={"Content-Type": "application/x-ndjson"})
        assert (await client.delete(session, params={"erase": True})).status_code == 204
        await check(world, word, log, '"route":"/v1/sessions/{session_id}/fork"')
