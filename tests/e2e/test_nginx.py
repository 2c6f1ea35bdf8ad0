"""`docker/nginx` before two instances on one PostgreSQL: streams, places of chats, what is sent twice, swaps."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests import nginx, postgres
from tests.fake_instance import STEP_SECONDS, Instance, two_instances
from tests.nginx import CONFIGURATION, LINE, Nginx

pytestmark = [
    pytest.mark.skipif(nginx.missing() is not None, reason=str(nginx.missing())),
    pytest.mark.skipif(postgres.missing() is not None, reason=str(postgres.missing())),
]
KEY = {"Authorization": "Bearer key"}
WORDS = 12
LONG = 40
START_SECONDS = 60.0


class World:
    """Two instances and the nginx before them."""

    def __init__(self, instances: list[Instance], balancer: Nginx) -> None:
        self.instances, self.nginx = instances, balancer

    def until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not all(each.is_ready for each in self.instances):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def again(self, instance: Instance) -> None:
        """Starts a killed instance, and waits until nginx uses it again."""
        instance.start()
        self.until_ready()
        self.nginx.without()

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.nginx.url, headers=KEY, timeout=30)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("nginx")
    with two_instances(folder, postgres.server().new_database()) as instances:
        balancer = Nginx(folder / "balancer", instances)
        try:
            made = World(instances, balancer)
            made.until_ready()
            yield made
        finally:
            balancer.end()


def body(tokens: int = 1) -> dict[str, Any]:
    return {"inputs": "hi", "parameters": {"max_new_tokens": tokens}}


def named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def say(client: httpx.AsyncClient, tokens: int = 1, **headers: str) -> httpx.Response:
    return await client.post("/generate", json=body(tokens), headers=named(headers))


def who(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["generated_text"]).split()[0]


async def place_of(world: World, client: httpx.AsyncClient, chat: str) -> Instance:
    """Returns the instance that nginx sends a chat to."""
    name = who(await say(client, 20, X_Session_Id=chat))
    return next(each for each in world.instances if each.name == name)


@pytest.mark.parametrize("path", ["/generate_stream", pytest.param("/api/chat", marks=pytest.mark.nightly)])
async def test_a_stream_arrives_as_it_is_made(world: World, path: str) -> None:
    asked = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "options": {"num_predict": WORDS}}
    gaps = list[float]()
    for _ in range(3):  # a client that stands still for a moment reads a heap
        async with (
            world.client() as client,
            client.stream("POST", path, json=body(WORDS) if path == "/generate_stream" else asked) as response,
        ):
            arrived = [time.monotonic() async for line in response.aiter_lines() if line]
        assert response.status_code == 200 and len(arrived) >= WORDS
        gaps = [after - before for before, after in pairwise(arrived)]
        if sum(gap > STEP_SECONDS / 5 for gap in gaps) > WORDS / 2:
            return
    raise AssertionError(f"{path}: events came in heaps: {gaps}")


async def test_a_chat_stays_with_one_instance_and_other_requests_go_to_both(world: World) -> None:
    async with world.client() as client:
        places = {await place_of(world, client, "chat-1") for _ in range(6)}
        assert len(places) == 1
        chats = await asyncio.gather(*(place_of(world, client, f"chat-{number}") for number in range(16)))
        assert {each.name for each in chats} == {"one", "two"}, "chats spread"
        others = await asyncio.gather(*(say(client, 20) for _ in range(8)))
        assert {who(each) for each in others} == {"one", "two"}


async def test_a_body_past_the_setting_gets_the_servers_sentence(world: World) -> None:
    async with world.client() as client:
        refused = await client.post("/generate", json={"inputs": "x" * (3 << 19)})
        assert refused.status_code == 413 and refused.json()["max_body_bytes"] == 1 << 20
        for _ in range(20):  # while nginx still sends it
            assert (await client.post("/generate", json={"inputs": "x" * (15 << 18)})).status_code == 413
        lines = b'{"type": "session", "format": 1}\n' + b"\n" * (5 << 20)
        headers = {"Content-Type": "application/x-ndjson"}
        assert (await client.post("/v1/sessions/import", content=lines, headers=headers)).status_code == 201


async def streamed(client: httpx.AsyncClient, lines: list[str], **headers: str) -> None:
    """Appends the lines that come before the stream breaks."""
    with pytest.raises(httpx.RemoteProtocolError):
        async with client.stream("POST", "/generate_stream", json=body(LONG), headers=named(headers)) as response:
            async for line in response.aiter_lines():
                lines.append(line)


@pytest.mark.nightly
async def test_of_what_a_dead_instance_had_only_a_post_with_a_key_is_sent_again(world: World) -> None:
    chat, key = uuid.uuid4().hex, uuid.uuid4().hex
    plain, keyed, *streams = (uuid.uuid4().hex for _ in range(4))
    told: list[list[str]] = [[], []]
    async with world.client() as client:
        dead = await place_of(world, client, chat)
        asked = asyncio.gather(
            say(client, LONG, X_Session_Id=chat, X_Request_Id=plain),
            say(client, LONG, X_Session_Id=chat, X_Request_Id=keyed, Idempotency_Key=key),
            streamed(client, told[0], X_Session_Id=chat, X_Request_Id=streams[0]),
            streamed(client, told[1], X_Session_Id=chat, X_Request_Id=streams[1], Idempotency_Key=streams[1]),
        )
        while not all(any('"index":1,' in line for line in lines) for lines in told):
            await asyncio.sleep(STEP_SECONDS)
        dead.kill()
        lost, taken_over, *_ = await asked
        assert (lost.status_code, world.nginx.attempts(plain)) == (502, 1)
        assert who(taken_over) != dead.name and world.nginx.attempts(keyed) == 2
        for name, lines in zip(streams, told, strict=True):
            assert sum('"index":1,' in line for line in lines) == world.nginx.attempts(name) == 1, "begun once"
        answers = await asyncio.gather(*(say(client, 20, X_Session_Id=f"any-{number}") for number in range(12)))
        assert dead.name not in {who(each) for each in answers}, "it got nothing of these, so the other one may"
        world.again(dead)
        replayed = await say(client, LONG, Idempotency_Key=key)
    assert replayed.headers["idempotent-replayed"] == "true" and replayed.content == taken_over.content


class Busy(BaseHTTPRequestHandler):
    """An instance that cannot take a request with a key now, and others can."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503 if "Idempotency-Key" in self.headers else 200)
        self.send_header("Content-Length", "0")
        self.send_header("X-Instance", "busy")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_instances_that_answer_503_stay_in_use(tmp_path: Path) -> None:
    """As where the database is away: turns are 503, and what needs no database goes on."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Busy) for _ in range(2)]
    threads = [Thread(target=each.serve_forever, args=(0.05,), daemon=True) for each in servers]
    for thread in threads:
        thread.start()
    balancer = Nginx(tmp_path / "balancer", [Listening(each.server_port) for each in servers])
    try:
        for _ in range(5):
            refused = httpx.post(f"{balancer.url}/generate", json={}, headers={"Idempotency-Key": uuid.uuid4().hex})
            taken = httpx.post(f"{balancer.url}/generate", json={})
            assert (refused.status_code, taken.status_code) == (503, 200)
            assert "x-instance" in refused.headers, "the instance's own sentence"
    finally:
        balancer.end()
        for each in servers:
            each.shutdown()
            each.server_close()


@dataclass(frozen=True)
class Listening:
    port: int


@pytest.mark.nightly
async def test_both_instances_are_swapped_without_a_failed_request(world: World) -> None:
    """Clients send POSTs without keys, streamed or not, all the time."""
    stop, answered, wrong = asyncio.Event(), count(), list[str]()

    async def client_of(number: int) -> None:
        async with world.client() as client:
            while not stop.is_set():
                path = "/generate_stream" if number % 2 else "/generate"
                headers = {"X-Session-Id": f"swap-{number}"} if number % 4 < 2 else {}
                try:
                    response = await client.post(path, json=body(WORDS), headers=headers)
                except httpx.HTTPError as error:
                    wrong.append(repr(error))
                    continue
                if response.status_code != 200 or '"finish_reason":"length"' not in response.text:
                    wrong.append(f"{response.status_code} {response.text[-200:]}")
                next(answered)

    clients = [asyncio.create_task(client_of(number)) for number in range(8)]
    for instance in world.instances:
        old = instance.process.pid
        await asyncio.to_thread(world.nginx.without, instance)
        await asyncio.to_thread(instance.drain)
        await asyncio.to_thread(world.again, instance)
        assert instance.process.pid != old
    stop.set()
    await asyncio.gather(*clients)
    assert wrong == [] and next(answered) > 20


def test_the_instances_file_and_the_test_agree() -> None:
    assert LINE in CONFIGURATION.with_name("instances.conf").read_text().splitlines()
