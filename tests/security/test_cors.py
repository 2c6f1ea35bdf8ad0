"""Pages of named origins may ask the server; no other page may, and none with the UI's cookie or by another name."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import ValidationError

import service
from service.addresses import origins_of
from service.api.edge.cookie import Cookie
from service.api.edge.cors import EXPOSED, METHODS
from service.settings import Settings
from tests.conformance import documented
from tests.fake_service import World, serving

APP = "https://app.example"
KEY = "secret"
OTHERS = ("https://evil.com", "http://app.example", "https://app.example.evil.com", "https://APP.example", "null", "")
ROUTES = sorted({(method, route.path) for route in documented() for method in route.methods or ()})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keyed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    settings: dict[str, Any] = {"admin_key": KEY, "cors_origins": f"{APP}, http://localhost:5173"}
    async with serving(tmp_path_factory.mktemp("keyed"), **settings) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with serving(tmp_path_factory.mktemp("open"), cors_origins=APP) as served:
        yield served


async def ask(world: World, method: str, path: str, origin: str | None, **more: Any) -> httpx.Response:
    headers = {**more.pop("headers", {}), **({} if origin is None else {"Origin": origin})}
    return await world.client.request(method, path, headers=headers, **more)


async def preflight(world: World, method: str, path: str, origin: str, **more: str) -> httpx.Response:
    headers = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": "authorization, x-api-key"}
    return await ask(world, "OPTIONS", path, origin, headers={**headers, **more})


def allowed(response: httpx.Response) -> str | None:
    """The origin whose pages may read the response; never with cookies."""
    assert "access-control-allow-credentials" not in response.headers
    origin: str | None = response.headers.get("access-control-allow-origin")
    return origin


@pytest.mark.asyncio(loop_scope="module")
async def test_a_preflight_needs_no_key_on_any_route(keyed: World) -> None:
    assert len(ROUTES) > 100
    for method, path in ROUTES:
        response = await preflight(keyed, method, path, APP)
        assert (response.status_code, allowed(response)) == (200, APP), path
        assert method in METHODS and set(response.headers["access-control-allow-methods"].split(", ")) == set(METHODS)
        assert response.headers["access-control-allow-headers"] == "authorization, x-api-key"
        assert "Origin" in response.headers["vary"]


@pytest.mark.parametrize("origin", OTHERS)
@pytest.mark.asyncio(loop_scope="module")
async def test_other_origins_get_no_leave(keyed: World, open_server: World, origin: str) -> None:
    for world in (keyed, open_server):
        response = await preflight(world, "POST", "/generate", origin)
        assert (response.status_code, allowed(response)) == (400, None)
        answer = await ask(world, "GET", "/info", origin, headers={"Authorization": f"Bearer {KEY}"})
        assert allowed(answer) is None


@pytest.mark.asyncio(loop_scope="module")
async def test_answers_streams_and_refusals_can_be_read(keyed: World) -> None:
    key = {"Authorization": f"Bearer {KEY}"}
    long = {**key, "Content-Type": "application/json"}
    body = {"inputs": "x", "parameters": {"max_new_tokens": 2}}
    for headers, status, method, path, more in (
        (key, 200, "POST", "/generate", {"json": body}),
        (key, 200, "POST", "/generate_stream", {"json": body}),
        (key, 422, "POST", "/generate", {"json": {}}),
        (key, 415, "POST", "/generate", {"content": b"x"}),
        (long, 413, "POST", "/generate", {"content": b"x" * (1 << 21)}),
        (key, 404, "GET", "/nowhere", {}),
        (key, 405, "GET", "/generate", {}),
        ({}, 401, "GET", "/info", {}),
    ):
        response = await ask(keyed, method, path, APP, headers=headers, **more)
        assert (response.status_code, allowed(response)) == (status, APP), path
        told = {each.lower() for each in response.headers["access-control-expose-headers"].split(", ")}
        assert "x-request-id" in told and response.headers["x-request-id"]
        assert "Origin" in response.headers["vary"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_failure_of_the_server_can_be_read(keyed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.api.tgi.tokenizing_routes._tokenized", lambda *_: 1 / 0)
    response = await ask(
        keyed, "POST", "/tokenize", APP, headers={"Authorization": f"Bearer {KEY}"}, json={"inputs": "x"}
    )
    assert (response.status_code, allowed(response)) == (500, APP)


def test_every_header_of_ours_can_be_read() -> None:
    """Names of headers in the sources: a new one must be exposed, or be named here."""
    sources = "\n".join(path.read_text() for path in Path(service.__file__).parent.rglob("api/**/*.py"))
    named = {name.lower() for name in re.findall(r'"((?:X-[A-Z]|Idempotent-|Retry-|ETag)[\w-]*)"', sources)}
    requests = {"x-accel-buffering", "x-api-key", "x-content-type-options", "x-frame-options"}
    assert len(named) >= 8 and named - requests <= {each.lower() for each in EXPOSED}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_server_of_a_private_network_gives_leave_to_named_origins(keyed: World) -> None:
    asking = {"Access-Control-Request-Private-Network": "true"}
    response = await preflight(keyed, "POST", "/generate", APP, **asking)
    assert response.headers["access-control-allow-private-network"] == "true"
    assert allowed(await preflight(keyed, "POST", "/generate", "https://evil.com", **asking)) is None


@pytest.mark.parametrize("site", [None, "cross-site", "same-site", "none"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.asyncio(loop_scope="module")
async def test_the_uis_cookie_helps_no_other_page(keyed: World, method: str, site: str | None) -> None:
    """A page of another port is of the same site: its browser sends the cookie along if it asks for that."""
    cookie = Cookie.of(keyed.settings.admin_key)
    assert cookie is not None
    sent = {"Cookie": cookie.made(False).partition(";")[0], **({"Sec-Fetch-Site": site} if site else {})}
    for origin in (APP, "http://localhost:5173", "https://evil.com"):
        response = await ask(keyed, method, "/v1/sessions", origin, headers=sent)
        assert response.status_code in (401, 403), (origin, response.status_code)
    own = await ask(keyed, "GET", "/v1/sessions", None, headers={**sent, "Sec-Fetch-Site": "same-origin"})
    assert own.status_code == 200, "the UI's own pages"


async def test_every_origin_needs_a_key_and_gets_no_cookies(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"CORS_ORIGINS=\* lets every web page ask .* set DOSIRAK_ADMIN_KEY"):
        Settings(cors_origins="*")
    async with serving(tmp_path, cors_origins="*", admin_key=KEY) as world:
        for origin in ("https://evil.com", "null"):
            assert allowed(await preflight(world, "POST", "/generate", origin)) == "*"
            refused = await ask(world, "GET", "/info", origin)
            assert (refused.status_code, allowed(refused)) == (401, "*")
            answer = await ask(world, "GET", "/info", origin, headers={"Authorization": f"Bearer {KEY}"})
            assert (answer.status_code, allowed(answer)) == (200, "*")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json"])
@pytest.mark.asyncio(loop_scope="module")
async def test_an_open_server_answers_pages_of_named_origins_only(open_server: World, kind: str) -> None:
    """Also without a preflight, as forms ask: the answer could not be read, but the model would be unloaded."""
    content, headers = b'{"model": "demo", "keep_alive": 0}', {"Content-Type": kind}
    for origin in (*OTHERS, "http://10.0.0.1"):
        response = await ask(open_server, "POST", "/api/generate", origin, content=content, headers=headers)
        assert (response.status_code, allowed(response)) == (403, None), origin
    response = await ask(open_server, "POST", "/api/generate", APP, content=content, headers=headers)
    assert (response.status_code, allowed(response)) == (200, APP)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_named_origin_does_not_open_other_names_and_machines(open_server: World) -> None:
    """A page that lets its own name point here has the named origin as little as another machine has."""
    for host in ("evil.com", "app.example"):
        assert (await ask(open_server, "GET", "/info", APP, headers={"Host": host})).status_code == 403
    proxied = await ask(open_server, "GET", "/info", APP, headers={"X-Forwarded-For": "127.0.0.1"})
    assert proxied.status_code == 403
    transport = httpx.ASGITransport(open_server.app, client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/info", headers={"Origin": APP})).status_code == 403


async def test_without_the_setting_there_is_none_of_it(tmp_path: Path) -> None:
    async with serving(tmp_path, admin_key=KEY) as world:
        response = await preflight(world, "POST", "/generate", APP)
        assert response.status_code == 401 and allowed(response) is None
        answer = await ask(world, "GET", "/info", APP, headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 200 and allowed(answer) is None and "vary" not in answer.headers


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://a.example,https://b.example:8443", ("https://a.example", "https://b.example:8443")),
        (" http://[::1]:3000  app://obsidian.md ", ("http://[::1]:3000", "app://obsidian.md")),
        ("https://a.example https://a.example", ("https://a.example",)),
    ],
)
def test_origins_of_the_setting(text: str, found: tuple[str, ...]) -> None:
    assert origins_of(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "app.example",
        "https://app.example/",
        "https://app.example/path",
        "https://App.example",
        "https://*.example",
        "https://app.example:443",
        "http://app.example:80",
        "https://app.example:",
        "https://app.example:x",
        "https://user@app.example",
        "null",
        "* https://app.example",
        "https://",
    ],
)
def test_what_no_browser_sends_stops_the_start(text: str) -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        Settings(cors_origins=text, admin_key=KEY)  # type: ignore[arg-type]
