"""Raw sockets against a real server: who is slow, too large, or says two things at once is sent away, and nobody else.

Two servers answer all that leaves no trace: `hasty` has short limits, `server` leaves a stalled machine its time."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import MagicMock

import httpx
import pytest
import pytest_asyncio
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.edge import unread
from service.api.edge.connection import MOST_WAITING, Connection
from service.api.edge.connections import Connections, Limits, Standing
from service.api.edge.door import Door
from service.api.edge.wrong_keys import WrongKeys
from service.api.http.connection import ClientGone, EventStream
from service.observability.metrics import Metrics
from service.observability.metrics.metrics import CLOSED
from tests.fake_service import World, serving
from tests.waiting import until

LIMITS = Limits(
    header_seconds=0.5, body_seconds=0.5, keep_alive_seconds=0.5, header_bytes=4096, most=100, most_of_peer=100
)
PATIENT = replace(LIMITS, header_seconds=60, body_seconds=60)
HOST = b"Host: localhost\r\n"
HEAD = b"POST /generate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
SECOND = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
ASKED = json.dumps({"inputs": "x"}).encode()


@dataclass
class Listening:
    """A server, and what its metrics were told."""

    port: int
    connections: Connections
    closed: list[str] = field(default_factory=list)

    async def open(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)
        return reader, writer

    async def answer(self, *parts: bytes, seconds: float = 10) -> bytes:
        """Returns all that comes, to parts that are sent one by one, until the server ends the connection."""
        async with asyncio.timeout(seconds):
            reader, writer = await self.open(*parts)
            try:
                return await reader.read()
            finally:
                writer.close()


@asynccontextmanager
async def listening(app: ASGIApp, limits: Limits = LIMITS) -> AsyncIterator[Listening]:
    connections = Connections(limits)
    http = partial(Connection, connections)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", http=http))  # type: ignore[arg-type]
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    made = Listening(server.servers[0].sockets[0].getsockname()[1], connections)
    connections.on_closed = made.closed.append
    yield made
    server.should_exit = True
    await task


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(repository_directory: Path) -> AsyncIterator[World]:
    async with serving(repository_directory) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(world: World) -> AsyncIterator[Listening]:
    async with listening(world.app, PATIENT) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hasty(world: World) -> AsyncIterator[Listening]:
    async with listening(world.app) as made:
        yield made


module = pytest.mark.asyncio(loop_scope="module")
SLOW: dict[str, tuple[list[bytes], bytes]] = {
    "silent": ([], b""),
    "half a head": ([b"GET /livez HTTP/1.1\r\nHo"], b""),
    "a head without its end": ([b"GET /livez HTTP/1.1\r\n" + HOST], b""),
    "a head, byte by byte": ([b"GET /livez HTTP/1.1\r\nX: "], b"a"),
    "line ends before a head": ([b"\r\n"], b"\r\n"),
    "half a body": ([HEAD + b"Content-Length: 99\r\n\r\n", b"{"], b""),
    "a body, byte by byte": ([HEAD + b"Content-Length: 99\r\n\r\n"], b" "),
    "a chunk, byte by byte": ([CHUNKED, b"ff\r\n"], b" "),
    "half a second head": ([LIVEZ, b"GET /livez"], b""),
    "line ends behind an answer": ([LIVEZ], b"\r\n"),
    "a body that was refused": ([b"POST /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 99\r\n\r\n"], b" "),
    "half an address": ([b"GET /li"], b"v"),
}


@module
async def test_sixty_slow_sockets_are_closed_and_livez_answers(hasty: Listening) -> None:
    async def suffer(parts: list[bytes], again: bytes) -> None:
        reader, writer = await hasty.open(*parts)
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(again)
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1000), 0.05)
        writer.close()

    sockets = {f"{name} {number}": suffer(*each) for name, each in SLOW.items() for number in range(5)}
    tasks = {name: asyncio.create_task(each) for name, each in sockets.items()}
    for _ in range(20):
        async with httpx.AsyncClient(base_url=f"http://localhost:{hasty.port}") as client:
            assert (await client.get("/livez", timeout=60)).status_code == 200
    await asyncio.wait(tasks.values(), timeout=20)
    assert len(tasks) == 60
    assert [name for name, task in tasks.items() if not task.done()] == []
    await until(lambda: not hasty.connections)


@module
@pytest.mark.parametrize("name", ["half a head", "half a body", "a body, byte by byte"])
async def test_a_slow_request_is_told_why(hasty: Listening, name: str) -> None:
    """Also one who still sends: a socket that is closed at once would be reset by that, and the answer lost."""
    reader, writer = await hasty.open(*SLOW[name][0])
    said = await reader.read(4096)
    for _ in range(2):
        writer.write(b" ")
        await asyncio.sleep(0.05)
        await writer.drain()
    assert await reader.read() == b""
    writer.close()
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b'"code":"request_timeout"' in said
    assert hasty.closed[-1] == ("header_timeout" if "head" in name else "body_timeout")


CHUNK = b"5\r\nhello\r\n0\r\n\r\n"
SMUGGLED: dict[str, bytes] = {
    "length, then coding": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "coding, then length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHUNK,
    "coding twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "identity, then chunked": HEAD + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "gzip, chunked": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK,
    "chunked, identity": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNK,
    "misspelt coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNK,
    "coding behind a space": HEAD + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNK,
    "coding of HTTP/1.0": HEAD.replace(b"/1.1", b"/1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "length twice": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "length with a sign": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "folded header": HEAD + b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n",
    "line end without a return": HEAD + b"X: a\nContent-Length: 5\r\n\r\nhello",
    "return without a line end": HEAD + b"X: a\rContent-Length: 5\r\n\r\nhello",
    "chunk size with a sign": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "line end alone in a chunk": CHUNKED + b"5;a\nhello\r\n0\r\n\r\n",
    "length in a trailer": CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\n" + HOST + b"Host: other\r\n\r\n",
    "another version": b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n",
    "a proxy's method": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2 without TLS": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@module
@pytest.mark.parametrize("name", SMUGGLED)
async def test_what_can_be_read_in_two_ways_is_refused(server: Listening, name: str) -> None:
    """So a proxy in front and this server never take a request for two, or two for one."""
    said = await server.answer(SMUGGLED[name] + SECOND)
    assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n") and said.count(b"\r\n\r\n") == 1, said
    assert b'"code":"malformed_request"' in said and b"connection: close" in said.lower()


LARGE: dict[str, list[bytes]] = {
    "one header": [b"GET /livez HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n"],
    "one header in parts": [b"GET /livez HTTP/1.1\r\nX: ", *[b"a" * 1000] * 6],
    "an address": [b"GET /livez?" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n"],
    "many headers": [b"GET /livez HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 101 + b"\r\n"],
    "trailers": [CHUNKED, b"5\r\nhello\r\n0\r\n", *[b"a: " + b"b" * 1000 + b"\r\n"] * 6],
    "one trailer": [CHUNKED, b"5\r\nhello\r\n0\r\na:", *[b"b" * 1000] * 6],
    "an extension of a chunk": [CHUNKED, b"5;a=", *[b"b" * 1000] * 6],
}


@module
@pytest.mark.parametrize("name", LARGE)
async def test_heads_and_framing_have_a_measure(server: Listening, name: str) -> None:
    said = await server.answer(*LARGE[name])
    assert said.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n"), said[:200]
    assert b"4096" in said and server.closed[-1] == "header_size"


@module
async def test_a_wish_for_another_protocol_is_passed_over(server: Listening) -> None:
    """Java's client has it in every request. The parser alone takes the body for the next request."""
    wish = HEAD + b"Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    for body in (ASKED, SECOND):
        head = wish + b"Content-Length: %d\r\n\r\n" % len(body)
        for parts in ([head + body], [head, body]):
            said = await server.answer(*parts)
            assert said.startswith(b"HTTP/1.1 200" if body is ASKED else b"HTTP/1.1 4"), said
            assert said.count(b"HTTP/1.1 ") == 1


@module
async def test_trailers_are_no_headers(server: Listening) -> None:
    size = b"%x\r\n" % len(ASKED)
    said = await server.answer(CHUNKED + size + ASKED + b"\r\n0\r\nContent-Type: text/plain\r\n\r\n" + LIVEZ)
    assert said.startswith(b"HTTP/1.1 200") and said.count(b"HTTP/1.1 200") == 2


async def test_whoever_goes_on_or_waits_for_the_server_stays() -> None:
    """A body that progresses, one that the app does not take yet, one that waits for `100 Continue`, a long silence."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/late":
            await asyncio.sleep(2)
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message.get("more_body", False)
        if scope["path"] == "/silent":
            await asyncio.sleep(2)
        content = b"%d" % size
        headers = [(b"content-length", b"%d" % len(content)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def upload(at: Listening, path: bytes, size: int, piece: int, pause: float, *fields: bytes) -> bytes:
        head = b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n%s\r\n" % (path, HOST, size, b"".join(fields))
        reader, writer = await at.open(head)
        said = await reader.read(len(b"HTTP/1.1 100 Continue\r\n\r\n")) if fields else b""
        for _ in range(0, size, piece):
            writer.write(bytes(piece))
            await writer.drain()
            await asyncio.sleep(pause)
        return said + await reader.read()

    async with listening(app, replace(LIMITS, body_seconds=1.2)) as server, asyncio.timeout(60):
        least = unread.LEAST_BYTES
        said = await asyncio.gather(
            upload(server, b"/", 32 * least, least, 0.08),
            upload(server, b"/late", 64 * least, 64 * least, 0),
            upload(server, b"/late", 8, 8, 0, b"Expect: 100-continue\r\n"),
            upload(server, b"/silent", 8, 8, 0),
        )
        assert [each.rpartition(b"\r\n")[2] for each in said] == [b"%d" % (n * least) for n in (32, 64)] + [b"8", b"8"]
        assert server.closed == []


async def test_an_answer_that_ends_within_the_next_head_does_not_end_the_next_answer() -> None:
    """Its keep-alive time, which is shorter than that head's and than the next answer, does not begin."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(int(scope["path"][1:])):
            await send({"type": "http.response.body", "body": b"tick", "more_body": True})
            await asyncio.sleep(0.1)
        await send({"type": "http.response.body", "body": b""})

    async with listening(app, replace(LIMITS, header_seconds=60, keep_alive_seconds=0.3)) as server:
        first, second = (b"GET /%d HTTP/1.1\r\n" % ticks + HOST for ticks in (1, 9))
        reader, writer = await server.open(first + b"\r\n" + second)
        said = await reader.readuntil(b"0\r\n\r\n")
        await asyncio.sleep(0.4)
        writer.write(b"Connection: close\r\n\r\n")
        said += await asyncio.wait_for(reader.read(), 60)
        assert (said.count(b"tick"), said[-5:]) == (10, b"0\r\n\r\n")
        writer.close()


@module
@pytest.mark.parametrize("address", [b"http://localhost", b"http://a:b/x", b"http://[::1/", b"http://"])
async def test_an_address_without_a_path_is_refused(server: Listening, address: bytes) -> None:
    said = await server.answer(b"GET %s HTTP/1.1\r\n%s\r\n" % (address, HOST))
    assert said.startswith(b"HTTP/1.1 400") and b"Traceback" not in said
    before = await server.answer(
        CHUNKED + b"%x\r\n%s\r\n0\r\n\r\nGET %s HTTP/1.1\r\n%s\r\n" % (len(ASKED), ASKED, address, HOST)
    )
    assert before.startswith(b"HTTP/1.1 200") and before.count(b"HTTP/1.1") == 1


@module
@pytest.mark.parametrize("behind", [b"}", SECOND + b"}", b"\r\n\r\n{}"])
async def test_a_fault_behind_a_request_takes_no_answer_from_it(server: Listening, behind: bytes) -> None:
    """As a Content-Length in characters where the body has more bytes."""
    said = await server.answer(HEAD + b"Content-Length: %d\r\n\r\n" % len(ASKED) + ASKED + behind)
    assert said.count(b"HTTP/1.1 200") == 1 + behind.startswith(SECOND), said[:300]


async def test_requests_that_wait_on_one_connection_have_a_bound() -> None:
    """Each takes memory, and who sends them needs no key."""
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(app, PATIENT) as server:
        said = asyncio.create_task(server.answer((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 5000, seconds=60))
        await until(lambda: server.closed)
        go_on.set()
        assert (await said).count(b"HTTP/1.1 200") == 1 + MOST_WAITING
        assert server.closed == ["malformed"]


async def test_a_body_that_goes_on_behind_its_answer_is_not_read_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.edge.connection.LINGER_SECONDS", 0.1)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with listening(app, PATIENT) as server, asyncio.timeout(60):
        _, writer = await server.open(HEAD + b"Content-Length: 1000000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        assert server.closed == ["body_timeout"]


async def test_who_still_reads_an_answer_is_not_idle() -> None:
    """The app has written all of it, and a newcomer takes the place of who waits for nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000000")]})
        await send({"type": "http.response.body", "body": bytes(20_000_000)})

    async with listening(app, replace(PATIENT, most=2, most_of_peer=2)) as server, asyncio.timeout(60):
        reader, writer = await server.open(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        size = len(await reader.read(1 << 16))
        others = [await server.open() for _ in range(4)]
        while size < 20_000_000:
            chunk = await reader.read(1 << 16)
            assert chunk, size
            size += len(chunk)
        for _, each in [*others, (reader, writer)]:
            each.close()


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"8")] if scope["path"] == "/whole" else []
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": b"tick", "more_body": True})
        await send({"type": "http.response.body", "body": b"tock"})

    async with listening(app) as server:
        ask = b"GET %s HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n"
        for path in (b"/stream", b"/whole"):
            said = await server.answer(ask % path)
            assert b"transfer-encoding" not in said and said.endswith(b"connection: close\r\n\r\nticktock"), said
        assert b"ticktock" not in await server.answer((ask % b"/stream").replace(b"GET", b"HEAD"))


async def test_a_newcomer_takes_the_place_of_who_waits_for_nothing() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] != "/livez":
            await send({"type": "http.response.body", "body": b"...", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
        await send({"type": "http.response.body", "body": b"ok"})

    lasting = LIVEZ.replace(b"/livez", b"/stream")
    async with listening(app, Limits(60, 60, 60, 4096, 3, 3)) as server, asyncio.timeout(20):
        silent, writers = [await server.open() for _ in range(3)], []
        for reader, _ in silent:
            reading, writing = await server.open(lasting)
            writers.append(writing)
            assert (await reading.readuntil(b"...")).startswith(b"HTTP/1.1 200")
            with pytest.raises(ConnectionResetError):
                assert await reader.read() == b""
                raise ConnectionResetError
        full = await server.answer(LIVEZ)
        assert full.startswith(b"HTTP/1.1 503 Service Unavailable\r\n") and b"retry-after: 1\r\n" in full
        assert server.closed == ["crowded"] * 3 + ["full"]
        writers.pop().close()
        await until(lambda: len(server.connections) == 2)
        reading, writing = await server.open(LIVEZ)
        assert (await reading.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        for each in (*writers, writing):
            each.close()


@dataclass(eq=False)
class Held:
    peer: str
    standing: Standing = Standing.IDLE
    is_open: bool = True

    def drop(self) -> None:
        self.is_open = False


def test_one_peer_pushes_out_its_own() -> None:
    connections = Connections(replace(LIMITS, most=4, most_of_peer=2))
    other, served, sending = Held("b"), Held("a", Standing.SERVED), Held("a", Standing.SENDING)
    assert all(connections.admit(each) for each in (other, served, sending, Held("a")))
    assert (other.is_open, served.is_open, sending.is_open, len(connections)) == (True, True, False, 3)
    assert connections.admit(Held("a")) and connections.admit(Held("b"))
    connections.moved(other)
    assert connections.admit(Held("b")) and other.is_open
    assert connections.admit(Held("c")) and len(connections) == 4


async def _answers(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers whole, with so many bytes as the path says, or without an end, in pieces of so many."""
    _, kind, size = scope["path"].split("/")

    async def pieces() -> AsyncGenerator[bytes, None]:
        while kind == "stream":
            yield bytes(int(size))
            await asyncio.sleep(0.01)
        yield bytes(int(size))

    async def close() -> None: ...

    with suppress(ClientGone):
        await EventStream(pieces(), {}, close)(scope, receive, send)


UNREAD: dict[str, tuple[bytes, int, bool]] = {
    "whole, nothing read, in the kernel alone": (b"/whole/200000", 0, True),
    "whole, nothing read": (b"/whole/33554432", 0, True),
    "whole, nothing read, to be closed": (b"/whole/33554432", 0, False),
    "whole, read too slowly": (b"/whole/33554432", 500, True),
    "streamed, nothing read": (b"/stream/1000", 0, True),
    "streamed, read too slowly": (b"/stream/1000", 500, True),
}


@pytest.mark.parametrize("name", UNREAD)
async def test_whoever_reads_nothing_or_too_little_is_let_go(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "READING_SECONDS", 0.4)
    path, piece, lasts = UNREAD[name]
    async with listening(_answers, replace(LIMITS, keep_alive_seconds=60)) as server, asyncio.timeout(20):
        with _reading(server.port, path, lasts) as client:
            for _ in range(100):
                await asyncio.sleep(0.05)
                with suppress(BlockingIOError, ConnectionError):
                    _ = server.closed or (piece and client.recv(piece))
                if server.closed:
                    break
            assert server.closed == ["unread"]
            await until(lambda: not server.connections)


@pytest.mark.parametrize("path", [b"/whole/2000000", b"/stream/1000000"])
async def test_whoever_reads_slowly_stays(path: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of what the app gives at once."""
    monkeypatch.setattr(unread, "READING_SECONDS", 0.4)
    async with listening(_answers, replace(LIMITS, keep_alive_seconds=60)) as server:
        with _reading(server.port, path) as client:
            for _ in range(70):
                await asyncio.sleep(0.02)
                with suppress(BlockingIOError):
                    assert client.recv(4096)
        assert server.closed == []


@contextmanager
def _reading(port: int, path: bytes, lasts: bool = True) -> Iterator[socket.socket]:
    """Gives the socket of a client that has asked, and whose kernel keeps little."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)  # it says of each that there is room
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET %s HTTP/1.1\r\n%s%s\r\n" % (path, HOST, b"" if lasts else b"Connection: close\r\n"))
        client.setblocking(False)
        yield client


KIB: Final = 1 << 10
LOOKS: dict[str, tuple[list[tuple[int, int]], int | None]] = {
    "nothing is taken": ([(99 * KIB, 99 * KIB)] * 9, 6),
    "nothing more is taken": ([(99 * KIB, 60 * KIB), *[(99 * KIB, 10 * KIB)] * 9], 7),
    "a little is taken": ([(99 * KIB, (99 - number) * KIB) for number in range(9)], 6),
    "enough is taken": ([(99 * KIB, (99 - 4 * number) * KIB) for number in range(20)], None),
    "a little is written, and all of it taken": ([((number + 1) * 100, 100) for number in range(20)], None),
    "all is taken": ([(99 * KIB, 1), (99 * KIB, 0)], None),
}
"""Bytes written, and of them waiting, whenever it looks; at which look the client counts as stuck."""


@pytest.mark.parametrize("name", LOOKS)
def test_what_counts_as_reading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread.READING_SECONDS * (1 + 1 / unread.GLANCES) == 30
    looks, expected = LOOKS[name]
    loop, transport, stuck = MagicMock(), MagicMock(), list[bool]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(unread, "_in_kernel", lambda connection: 0)
    transport.is_closing.return_value = False
    count, before = 0, 0
    watched = unread.Unread(transport, lambda: stuck.append(True))
    for written, waiting in looks:
        watched.write(bytes(written - before))
        transport.get_write_buffer_size.return_value, before = waiting, written
        if not stuck:
            count += 1
            loop.call_later.call_args.args[1]()
    assert (count if stuck else None) == expected


def test_what_was_closed_is_counted() -> None:
    metrics, connections = Metrics(), Connections(LIMITS)
    Door(connections).tell(metrics, WrongKeys())
    assert connections.admit(Held("a"))
    connections.closed("malformed", "a")
    shown = metrics.exposition().decode()
    assert "dosirak_http_connections 1.0" in shown
    for reason in CLOSED:
        assert f'dosirak_http_connections_closed_total{{reason="{reason}"}} {reason == "malformed":.1f}' in shown
