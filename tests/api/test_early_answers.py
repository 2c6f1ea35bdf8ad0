"""Probes are answered at the door. While the batch is full, the door says what the app would say; whoever could enter
gets to the app."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.types import Receive, Scope, Send

from models.repository.repository import Repository
from service.api.edge.auth import ANONYMOUS
from service.api.edge.connections import Connections
from service.api.edge.door import Door
from service.api.edge.early_answers import EarlyAnswers
from service.api.edge.judged_connection import JudgedConnection
from service.engine.client.engine import EngineState
from service.tasks import cancelled
from tests.api.conftest import KEY
from tests.api.test_connections import LIMITS
from tests.fake_service import World, publish, serving
from tests.waiting import until

CHAT = [{"role": "user", "content": "hi"}]
ASKING: dict[str, dict[str, Any]] = {
    "/": {"inputs": "hi"},
    "/generate": {"inputs": "hi"},
    "/generate_stream": {"inputs": "hi"},
    "/v1/chat/completions": {"model": "demo", "messages": CHAT},
    "/v1/completions": {"model": "demo", "prompt": "hi"},
    "/v1/embeddings": {"model": "demo", "input": "hi"},
    "/v1/messages": {"model": "demo", "messages": CHAT, "max_tokens": 2},
    "/v1/responses": {"model": "demo", "input": "hi"},
    "/api/chat": {"model": "demo", "messages": CHAT},
    "/api/generate": {"model": "demo", "prompt": "hi"},
}
CHANGING = re.compile(r"date: .*|x-request-id: .*|request-id: .*|retry-after: .*|[0-9a-f]{32}", re.IGNORECASE)


@dataclass
class Crowd:
    """A server whose batch is full, and what its app was asked."""

    world: World
    url: str
    seen: list[str] = field(default_factory=list)
    operator: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {KEY}"})
    light: dict[str, str] = field(default_factory=dict)
    reader: dict[str, str] = field(default_factory=dict)
    bounded: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"Content-Type": "application/json", **(headers or self.operator)}
        async with httpx.AsyncClient(base_url=self.url, timeout=20) as client:
            return await client.post(path, content=content, headers=named)

    async def said(self, *parts: bytes) -> bytes:
        """Returns all that a raw connection says to the parts, until its end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        async with asyncio.timeout(20):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0.01)
            said = await reader.read()
        writer.close()
        return said


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowd(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crowd]:
    directory: Path = tmp_path_factory.mktemp("crowd")
    publish(Repository(directory), "other")
    publish(Repository(directory), "demo")
    door = Door(connections := Connections(replace(LIMITS, header_seconds=20, body_seconds=20, keep_alive_seconds=20)))
    hold, seen = asyncio.Event(), list[str]()
    async with serving(directory, door=door, admin_key=KEY, engine={"hold": hold}) as world:

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope["path"])
            await world.app(scope, receive, send)

        http: Any = partial(JudgedConnection, connections, door)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", http=http))
        task = asyncio.create_task(server.serve())
        await until(lambda: server.started)
        crowd = Crowd(world, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", seen)
        limits = {"limits": {"requests_per_minute": 1}}
        for name, scopes, more in (
            ("light", "generate", {}),
            ("reader", "models:read", {}),
            ("bounded", "generate", limits),
        ):
            made = await crowd.post("/v1/keys", {"name": name, "scopes": [scopes], **more})
            setattr(crowd, name, {"Authorization": f"Bearer {made.json()['key']}"})
        world.engine.stats = replace(world.engine.stats, seats=1, seat_seconds=1.5, backlog_seconds=9.0)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("service.generation.admission.CROWDED_SECONDS", 1e6)
            waiting = [asyncio.create_task(crowd.post("/generate", ASKING["/generate"])) for _ in range(4)]
            await until(lambda: len(world.engine.alive) == 4)
            assert (await crowd.post("/generate", ASKING["/generate"])).status_code == 503
            seen.clear()
            yield crowd
            hold.set()
            assert {(await each).status_code for each in waiting} == {200}
        server.should_exit = True
        await task


module = pytest.mark.asyncio(loop_scope="module")


@module
@pytest.mark.parametrize("path", ASKING)
async def test_the_door_says_what_the_app_says(crowd: Crowd, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(response: httpx.Response) -> tuple[str, str]:
        headers = "\n".join(sorted(f"{name}: {value}" for name, value in response.headers.items()))
        return CHANGING.sub("", headers), CHANGING.sub("", response.text)

    crowd.seen.clear()
    early = await crowd.post(path, ASKING[path])
    assert not crowd.seen and early.status_code == 503 and int(early.headers["retry-after"]) >= 1
    monkeypatch.setattr("service.api.edge.early_answers.PATHS", frozenset())
    late = await crowd.post(path, ASKING[path])
    assert crowd.seen == [path]
    assert shown(early) == shown(late)


GOES_ON: dict[str, tuple[str, dict[str, Any] | bytes, dict[str, str], int]] = {
    "no JSON": ("/generate", b"{", {}, 422),
    "no JSON object": ("/generate", b"[]", {}, 422),
    "a body past what is held": ("/generate", {"inputs": "x" * 70_000}, {}, 503),
    "a key to repeat with": ("/generate", ASKING["/generate"], {"Idempotency-Key": "k"}, 503),
    "a page of another origin": ("/generate", ASKING["/generate"], {"Origin": "http://a"}, 503),
    "an unknown model": ("/v1/completions", {"model": "none", "prompt": "x"}, {}, 404),
    "an adapter's name": ("/generate", {"inputs": "x", "parameters": {"adapter_id": "none"}}, {}, 404),
    "a deadline": ("/generate", {"inputs": "x", "deadline_ms": 1}, {}, 504),
    "a session": ("/generate", {"messages": CHAT, "session_id": "s_1"}, {}, 404),
    "a load": ("/api/generate", {"model": "demo"}, {}, 200),
    "a load by an empty chat": ("/api/chat", {"model": "demo", "messages": []}, {}, 200),
    "another path": ("/tokenize", {"inputs": "x"}, {}, 200),
    "a wrong key": ("/generate", ASKING["/generate"], {"Authorization": "Bearer wrong"}, 401),
    "no key": ("/generate", ASKING["/generate"], {"X": "y"}, 401),
    "a key without the scope": ("/generate", ASKING["/generate"], {"of": "reader"}, 403),
}


@module
@pytest.mark.parametrize("name", GOES_ON)
async def test_whoever_may_hear_something_else_gets_to_the_app(crowd: Crowd, name: str) -> None:
    path, body, headers, status = GOES_ON[name]
    bearer = getattr(crowd, headers["of"]) if "of" in headers else {} if status == 401 else crowd.operator
    crowd.seen.clear()
    response = await crowd.post(
        path, body, **{**bearer, **{key: value for key, value in headers.items() if key != "of"}}
    )
    assert (crowd.seen, response.status_code) == ([path], status), response.text


@module
async def test_an_owner_with_few_requests_enters_and_a_version_is_loaded(crowd: Crowd) -> None:
    def alive() -> int:
        return sum(len(each.alive) for each in crowd.world.engines)

    before = alive()
    for bearer, body in ((crowd.light, {"inputs": "hi"}), (crowd.operator, {"inputs": "hi", "model": "other"})):
        asked = asyncio.create_task(crowd.post("/generate", body, **bearer))
        await until(lambda: alive() == before + 1)
        asked.cancel()
        await until(lambda: alive() == before)


@module
async def test_a_spent_quota_is_told_before_the_full_batch(crowd: Crowd) -> None:
    first = asyncio.create_task(crowd.post("/generate", {"inputs": "hi"}, **crowd.bounded))
    await until(lambda: len(crowd.world.engines[0].alive) == 5)
    crowd.seen.clear()
    refused = await crowd.post("/generate", {"inputs": "hi"}, **crowd.bounded)
    assert (refused.status_code, refused.json()["code"], crowd.seen) == (429, "rate_limited", [])
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    first.cancel()
    await until(lambda: len(crowd.world.engines[0].alive) == 4)


def head(body: bytes, *lines: bytes, version: bytes = b"1.1") -> bytes:
    named = [
        b"Host: localhost",
        b"Content-Type: application/json",
        b"Authorization: Bearer " + KEY.encode(),
        b"Content-Length: %d" % len(body),
        *lines,
    ]
    return b"POST /generate HTTP/" + version + b"\r\n" + b"\r\n".join(named) + b"\r\n\r\n"


BODY = json.dumps(ASKING["/generate"]).encode()
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
FULL, FINE = b"HTTP/1.1 503 Service Unavailable", b"HTTP/1.1 200 OK"
SENT: dict[str, tuple[list[bytes], list[bytes]]] = {
    "at once": ([head(BODY) + BODY, LIVEZ], [FULL, FINE]),
    "in parts": ([head(BODY)[:30], head(BODY)[30:], BODY[:5], BODY[5:], LIVEZ], [FULL, FINE]),
    "without waiting": ([(head(BODY) + BODY) * 3 + LIVEZ], [FULL] * 3 + [FINE]),
    "behind another": ([LIVEZ.replace(b"close", b"keep-alive") + head(BODY) + BODY + LIVEZ], [FINE, FULL, FINE]),
    "for the last time": ([head(BODY, b"Connection: close") + BODY], [FULL]),
    "in HTTP/1.0": ([head(BODY, version=b"1.0") + BODY], [FULL]),
    "told to go on": (
        [head(BODY, b"Expect: 100-continue", b"Connection: close"), BODY],
        [b"HTTP/1.1 100 Continue", FULL],
    ),
}


@module
@pytest.mark.parametrize("name", SENT)
async def test_a_connection_goes_on_behind_a_refusal(crowd: Crowd, name: str) -> None:
    parts, lines = SENT[name]
    said = await crowd.said(*parts)
    assert re.findall(rb"HTTP/1.1 \d+ [A-Za-z ]+", said) == lines, said
    assert b"connection: close" in said.lower()


@module
async def test_probes_are_answered_at_the_door(crowd: Crowd) -> None:
    crowd.seen.clear()
    for path, state in (("/livez", "ready"), ("/readyz", "ready"), ("/livez", "loading")):
        crowd.world.engines[0].state = EngineState.READY if state == "ready" else EngineState.RESTARTING
        async with httpx.AsyncClient(base_url=crowd.url) as client:
            answer = await client.get(path)
        assert (answer.status_code, answer.text, crowd.seen) == (200, "\n", [])
    async with httpx.AsyncClient(base_url=crowd.url) as client:
        assert (await client.get("/readyz")).status_code == 503 and crowd.seen == ["/readyz"]
    crowd.world.engines[0].state = EngineState.READY


@module
async def test_a_thousand_probes_behind_a_request_are_answered(crowd: Crowd) -> None:
    body = json.dumps({"inputs": "x"}).encode()
    first = head(body).replace(b"/generate", b"/tokenize")
    said = await crowd.said(first + body + LIVEZ.replace(b"close", b"keep-alive") * 1000 + LIVEZ)
    assert said.count(FINE) == 1002


@module
async def test_who_reads_no_answer_is_asked_for_no_more(crowd: Crowd) -> None:
    """Answers at the door wait for their reader, as those of the app do."""
    made, door = list[JudgedConnection](), Door(connections := Connections(LIMITS))
    door.judge = EarlyAnswers(lambda scope: ANONYMOUS, crowd.world.app.state.service.answers, lambda: True, "one")

    def connection(**options: Any) -> JudgedConnection:
        made.append(JudgedConnection(connections, door, **options))
        return made[-1]

    config = uvicorn.Config(crowd.world.app, port=0, log_level="error", lifespan="off", http=connection)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, server.servers[0].sockets[0].getsockname())
        sending = asyncio.create_task(loop.sock_sendall(client, LIVEZ.replace(b"close", b"keep-alive") * 80_000))
        await until(lambda: bool(made and made[0].flow and made[0].flow.read_paused))
        await asyncio.sleep(0.2)
        assert made[0].transport.get_write_buffer_size() < 128 << 10
        await cancelled([sending])
    server.should_exit = True
    await task


@module
async def test_a_body_that_the_door_cannot_read_gets_to_the_app(crowd: Crowd) -> None:
    deep = b'{"inputs": "a", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    assert (await crowd.said(head(deep, b"Connection: close") + deep)).startswith(b"HTTP/1.1 4")


@module
async def test_refusals_at_the_door_are_counted_and_logged_seldom(
    crowd: Crowd, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = (
        'dosirak_http_requests_total{method="POST",route="/v1/completions",status="503"}',
        'dosirak_admission_rejected_total{reason="overloaded"}',
        'dosirak_errors_total{code="overloaded"}',
    )

    def counts() -> list[float]:
        lines = dict(line.rsplit(" ", 1) for line in crowd.world.metrics.exposition().decode().splitlines())
        return [float(lines.get(each, 0)) for each in counted]

    before, _ = counts(), capsys.readouterr()
    for _ in range(5):
        await crowd.post("/v1/completions", ASKING["/v1/completions"])
    assert [after - each for after, each in zip(counts(), before, strict=True)] == [5, 5, 5]
    assert capsys.readouterr().err.count("\n") <= 1
