"""A server without a key answers its own machine only: whatever started it, whatever the headers say."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from loadtest.bench.running import free_port
from models.repository.repository import Repository
from service.api.edge.loopback import is_local_authority, is_local_origin, is_local_peer, is_loopback_address
from tests.api.reading import error, openai_error
from tests.e2e.server import end, python, starting
from tests.fake_service import URL, World, publish, serving
from tests.waiting import until

LOOPBACK_HOSTS = (
    "localhost",
    "LocalHost",
    "localhost.",
    "localhost:3000",
    "localhost:",
    "app.localhost",
    "a-b.1.localhost:80",
    "127.0.0.1",
    "127.0.0.1:3000",
    "127.255.3.4",
    "[::1]",
    "[::1]:3000",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]:3000",
    "[::FFFF:7f00:1]",
)

FOREIGN_HOSTS = (
    "",
    "evil.com",
    "evil.com:3000",
    "localhost.evil.com",
    "localhosts",
    "evillocalhost",
    ".localhost",
    "a..localhost",
    "localhost..",
    "127.0.0.1.evil.com",
    "127.0.0.1.",
    "127.1",
    "127.0.0.01",
    "2130706433",
    "0x7f000001",
    "0.0.0.0",
    "0",
    "[::]",
    "[::ffff:10.0.0.1]",
    "[::1%25lo]",
    "[127.0.0.1]",
    "::1",
    "[::1",
    "localhost:http",
    "localhost:3000:3000",
    "localhost:300000",
    "localhost@evil.com",
    "evil.com@localhost",
    "localhost,evil.com",
    "localhost evil.com",
    "localhost/",
    "localhost\\.evil.com",
    "127.0.0.1\t",
    " localhost",
    "１２７.0.0.1",
    "lôcalhost",
)
FOREIGN_ORIGINS = (
    "null",
    "",
    "https://evil.com",
    "http://localhost.evil.com",
    "http://localhost@evil.com",
    "http://evil.com#localhost",
    "http://localhost/",
    "http://localhost http://evil.com",
    "file://localhost",
    "chrome-extension://localhost",
    "localhost",
    "//localhost",
    "http://",
    "http://localhost\n",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with serving(tmp_path_factory.mktemp("open")) as served:
        yield served


async def asked(world: World, path: str, peer: Any = ("127.0.0.1", 5), **headers: str) -> httpx.Response:
    """As a request from that peer; the headers' names with `_` for `-`."""
    transport = httpx.ASGITransport(world.app, raise_app_exceptions=False, client=peer)
    raw = [(name.replace("_", "-").encode(), value.encode("utf-8")) for name, value in headers.items()]
    async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
        return await client.get(path, headers=raw)


@pytest.mark.asyncio(loop_scope="module")
async def test_names_of_this_machine_are_answered(world: World) -> None:
    for host in LOOPBACK_HOSTS:
        for shown in ({"host": host}, {"origin": f"http://{host}"}, {"origin": f"HTTPS://{host}"}):
            assert (await asked(world, "/info", **shown)).status_code == 200, shown


@pytest.mark.asyncio(loop_scope="module")
async def test_other_hosts_and_origins_are_refused(world: World) -> None:
    for host in FOREIGN_HOSTS:
        sentence = error(await asked(world, "/info", host=host), 403, "forbidden")["error"]
        assert "Host" in sentence and "set DOSIRAK_ADMIN_KEY" in sentence, host
    for origin in (*FOREIGN_ORIGINS, *(f"http://{host}" for host in FOREIGN_HOSTS)):
        error(await asked(world, "/info", origin=origin), 403, "forbidden")


@pytest.mark.parametrize("path", ["/", "/docs", "/metrics", "/nowhere", "/v1/sessions", "//livez", "/LIVEZ"])
@pytest.mark.asyncio(loop_scope="module")
async def test_other_machines_are_refused_on_every_route(world: World, path: str) -> None:
    for peer in ("192.0.2.7", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "2001:db8::1", "?"):
        error(await asked(world, path, peer=(peer, 5)), 403, "forbidden")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_refusal_in_openais_dialect(world: World) -> None:
    openai_error(await asked(world, "/v1/models", host="evil.com"), 403, "forbidden")


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.asyncio(loop_scope="module")
async def test_loopback_peers_are_answered(world: World, peer: str) -> None:
    assert (await asked(world, "/info", peer=(peer, 5))).status_code == 200


@pytest.mark.parametrize("header", ["x_forwarded_for", "forwarded", "x_real_ip"])
@pytest.mark.parametrize("peer", ["127.0.0.1", "192.0.2.7"])
@pytest.mark.asyncio(loop_scope="module")
async def test_no_header_makes_a_peer_local(world: World, header: str, peer: str) -> None:
    """uvicorn puts X-Forwarded-For in the place of the peer where FORWARDED_ALLOW_IPS lets it."""
    error(await asked(world, "/info", peer=(peer, 0), **{header: "127.0.0.1"}), 403, "forbidden")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.asyncio(loop_scope="module")
async def test_probes_answer_everybody(world: World, path: str) -> None:
    assert (await asked(world, path, peer=("10.0.0.1", 5), host="10.0.0.2:3000")).status_code == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_a_key_opens_the_server_to_other_machines(tmp_path: Path) -> None:
    async with serving(tmp_path, admin_key="secret") as world:
        kept = await asked(world, "/info", peer=("10.0.0.1", 5), host="evil.com", authorization="Bearer secret")
        assert kept.status_code == 200
        error(await asked(world, "/info", peer=("10.0.0.1", 5)), 401, "unauthorized")


@pytest.mark.parametrize(
    ("client", "server", "is_local"),
    [
        (None, ("/run/dosirak.sock", None), True),
        (None, ("0.0.0.0", 3000), False),
        (None, None, False),
        (("127.0.0.1", 5), ("0.0.0.0", 3000), True),
        (("", 0), ("/run/dosirak.sock", None), False),
    ],
)
def test_a_peer_without_an_address_is_local_on_a_unix_socket_only(client: Any, server: Any, is_local: bool) -> None:
    """A TCP peer that resets its connection at once has no address any more, and its request is there."""
    assert is_local_peer({"type": "http", "client": client, "server": server}) is is_local


async def test_a_unix_socket_is_this_machine(world: World, tmp_path: Path) -> None:
    place = str(tmp_path / "s")
    server = uvicorn.Server(uvicorn.Config(world.app, uds=place, log_level="error", lifespan="off"))
    running = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=place), base_url=URL) as client:
        assert (await client.get("/info")).status_code == 200
        error(await client.get("/info", headers={"X-Forwarded-For": "127.0.0.1"}), 403, "forbidden")
    server.should_exit = True
    await running


_LABEL = st.from_regex(r"[a-z0-9_-]{1,8}", fullmatch=True)
_PORT = st.integers(0, 65535).map(str) | st.just("")


@given(st.lists(_LABEL, max_size=3), _PORT)
def test_every_name_of_localhost_is_local(labels: list[str], port: str) -> None:
    name = ".".join([*labels, "localhost"])
    assert (
        is_local_authority(name) and is_local_authority(f"{name}:{port}") and is_local_origin(f"http://{name}:{port}")
    )


@given(st.ip_addresses(), _PORT)
@example(IPv6Address("::ffff:127.0.0.1"), "1")
def test_addresses_are_as_their_network_says(address: Any, port: str) -> None:
    host = f"[{address}]" if address.version == 6 else str(address)
    expected = (getattr(address, "ipv4_mapped", None) or address).is_loopback
    assert is_loopback_address(str(address)) is expected
    assert is_local_authority(f"{host}:{port}") is expected and is_local_origin(f"https://{host}") is expected


@given(st.text(max_size=30), st.sampled_from(LOOPBACK_HOSTS))
def test_text_around_a_local_host_does_not_pass(text: str, host: str) -> None:
    """What passes ends, its port aside, where a browser also reads the end of the host."""
    for spelled in (text + host, host + text):
        if is_local_authority(spelled):
            bare = spelled.rsplit(":", 1)[0] if not spelled.endswith("]") and ":" in spelled else spelled
            bare = bare.lower().rstrip(".")
            assert bare.endswith("localhost") or is_loopback_address(bare.strip("[]")), spelled
        assert not is_local_origin(spelled), "an origin has a scheme"


def outer_address() -> str:
    """An address of this machine that is not loopback's."""
    listed = [each for found in psutil.net_if_addrs().values() for each in found if each.family is socket.AF_INET]
    outer = [each.address for each in listed if not each.address.startswith("127.")]
    if not outer:
        pytest.skip("this machine has only a loopback address")
    return outer[0]


COMMANDS = {
    "uvicorn": ("-m", "uvicorn", "--factory", "service.app:create", "--host", "0.0.0.0", "--port"),
    "bentoml": ("-m", "bentoml", "serve", "service.bento:Dosirak", "--host", "0.0.0.0", "--port"),
}


APP = {"Origin": "https://app.example"}
ENVIRONMENT: dict[str, Any] = {
    "DOSIRAK_PRELOAD": "false",
    "FORWARDED_ALLOW_IPS": "*",
    "DOSIRAK_CORS_ORIGINS": APP["Origin"],
}


@pytest.fixture(params=[pytest.param("uvicorn", marks=pytest.mark.nightly), "bentoml"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """Of a server without a key that listens on every address: started so that its settings do not know."""
    publish(Repository(tmp_path))
    chosen = free_port()
    command = python(*COMMANDS[request.param], str(chosen))
    server = starting(command, tmp_path, tmp_path / "log", chosen, **ENVIRONMENT)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert httpx.get(f"http://127.0.0.1:{chosen}/livez", timeout=2).status_code == 200
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline and server.process.poll() is None, server.log.read_text()
                time.sleep(0.1)
        yield chosen
    finally:
        end(server)


def test_however_it_was_started_only_this_machine_is_answered(port: int) -> None:
    outer = outer_address()
    for path in ("/v1/models", "/healthz", "/schema.json", "/metrics", "/docs", "/nowhere"):
        refused = httpx.get(f"http://{outer}:{port}{path}", headers={"Host": "localhost"})
        assert refused.status_code == 403 and "DOSIRAK_ADMIN_KEY" in refused.text, path
        told = {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"}
        assert httpx.get(f"http://{outer}:{port}{path}", headers=told).status_code == 403, path
        assert httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Host": "evil.com"}).status_code == 403, path
        assert httpx.get(f"http://127.0.0.1:{port}{path}", headers={"Origin": "null"}).status_code == 403, path
        assert httpx.get(f"http://127.0.0.1:{port}{path}").status_code != 403, path
        answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers=APP)
        assert answer.status_code != 403 and answer.headers["access-control-allow-origin"] == APP["Origin"], path
        assert answer.headers["vary"].count("Origin") == 1, f"{path}: two layers act"
        assert httpx.get(f"http://{outer}:{port}{path}", headers=APP).status_code == 403, path
        asked = {**APP, "Access-Control-Request-Method": "GET"}
        leave = httpx.options(f"http://127.0.0.1:{port}{path}", headers=asked)
        assert leave.status_code == 200 and leave.headers["access-control-allow-origin"] == APP["Origin"], path
    assert httpx.get(f"http://{outer}:{port}/livez").status_code == 200


async def test_a_websocket_from_elsewhere_is_closed(world: World) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": "/x", "headers": [], "client": ("10.0.0.1", 5), "server": ("x", 1)}
    await world.app(scope, asyncio.Queue().get, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]
