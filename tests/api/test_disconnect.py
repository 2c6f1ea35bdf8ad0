"""A client that goes away, streaming or not, waiting or reading, frees its request in the engine at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import httpx
import pytest

from tests.api.conftest import Serve
from tests.fake_service import World, over_http
from tests.waiting import until

CHAT = [{"role": "user", "content": "hi"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/generate", {"inputs": "x"}),
    ("/generate", {"inputs": "x", "stream": True}),
    ("/generate", {"inputs": "x", "parameters": {"n": 3}}),
    ("/v1/chat/completions", {"messages": CHAT}),
    ("/v1/chat/completions", {"messages": CHAT, "stream": True, "n": 2}),
    ("/v1/completions", {"prompt": ["a", "b", "c"]}),
    ("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True}),
]


class Client:
    """Speaks ASGI itself, so that it can leave whenever it likes."""

    def __init__(self, world: World, path: str, body: dict[str, Any], *, reads: bool = True) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.chunk = asyncio.Event()
        self._gone = asyncio.Event()
        self._body = [json.dumps(body).encode()]
        headers = [(b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 123),
            "server": None,
        }
        self._reads = reads
        self.task = asyncio.create_task(world.app(scope, self._receive, self._send))

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)
        self.chunk.set()
        if not self._reads and message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def leave(self) -> None:
        self._gone.set()
        async with asyncio.timeout(60):
            await self.task


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_leaving_before_the_first_token(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve(engine={"hold": asyncio.Event()}) as world:
        client = Client(world, path, body)
        await until(lambda: world.engine.alive)
        await client.leave()
        assert not world.engine.alive
        assert world.app.state.service.answers.admission.in_progress == 0
        assert client.sent[0]["status"] == 499, "layers around us wait for some response"


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_leaving_in_the_middle(serve: Serve, path: str, body: dict[str, Any]) -> None:
    async with serve(engine={"step_seconds": 0.01}) as world:
        client = Client(world, path, body)
        await until(lambda: world.engine.stats.steps_total > 5)
        await client.leave()
        steps = world.engine.stats.steps_total
        assert not world.engine.alive
        assert world.engine.aborted == {request.id for request in world.engine.requests}
        await asyncio.sleep(0.05)
        assert world.engine.stats.steps_total == steps, "the engine works for nobody"
        assert 'finish_reason="abort",model="demo",version="1"} ' in world.metrics.exposition().decode()


async def test_leaving_while_the_model_loads(serve: Serve) -> None:
    async with serve(start=False) as world:
        await world.deployments.start()
        client = Client(world, "/generate", {"inputs": "x"})
        await asyncio.sleep(0)
        await client.leave()
        assert world.app.state.service.answers.admission.in_progress == 0


async def test_events_arrive_one_by_one_over_http(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.02}) as world, over_http(world) as url, httpx.AsyncClient() as client:
        async with client.stream("POST", f"{url}/generate_stream", json={"inputs": "x"}) as response:
            lines = response.aiter_lines()
            first = await anext(lines)
            assert json.loads(first.removeprefix("data: "))["index"] == 1
            assert world.engine.stats.steps_total < 10, "not held back until the end"
        await until(lambda: not world.engine.alive)
        assert len(world.engine.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_closed_socket_frees_the_request(serve: Serve, stream: bool) -> None:
    async with serve(engine={"hold": asyncio.Event()}) as world, over_http(world) as url:
        async with httpx.AsyncClient() as client:
            post = asyncio.create_task(client.post(f"{url}/generate", json={"inputs": "x", "stream": stream}))
            await until(lambda: world.engine.alive)
            post.cancel()
            await asyncio.gather(post, return_exceptions=True)
        await until(lambda: not world.engine.alive)


async def test_an_answer_that_nobody_reads_ends_with_its_engine(serve: Serve) -> None:
    async with serve(engine={"step_seconds": 0.001}) as world:
        client = Client(world, "/generate_stream", {"inputs": "x"}, reads=False)
        await client.chunk.wait()
        await until(lambda: world.app.state.service.answers.admission.in_progress == 0)
        assert not world.engine.aborted and not client.task.done()
        await client.leave()


async def test_who_leaves_more_unread_than_can_wait_is_gone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.answering.streaming.MOST_WAITING_BYTES", 100)
    async with serve(engine={"step_seconds": 0.001}) as world, asyncio.timeout(30):
        client = Client(world, "/generate_stream", {"inputs": "x"}, reads=False)
        await client.chunk.wait()
        await client.leave()
        assert world.engine.aborted, "the engine waits for nobody"
        assert world.app.state.service.answers.admission.in_progress == 0
