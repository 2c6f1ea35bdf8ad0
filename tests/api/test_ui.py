"""The UI's frames, files, strings and sign-in, asked as a browser asks."""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import Final
from urllib.parse import urljoin, urlsplit

import pytest
from pydantic import SecretStr

from service.api.edge.cookie import SECONDS, Cookie
from service.ui.assets import STATIC, STRINGS
from service.ui.frame import POLICY, imports, modules
from service.ui.language import LANGUAGES
from service.ui.screens import SCREENS, Screen
from tests.api.conftest import KEY, Serve
from tests.fake_service import World

PLACES = {"model": "demo", "version": "1", "alias": "production", "session": "SESSION"}
ADDRESSES = ["/ui" + screen.path.format(**PLACES) for screen in SCREENS]
SAME = {"Sec-Fetch-Site": "same-origin"}
LINK = re.compile(r'(?:href|src|action)="([^"]+)"')


@pytest.mark.parametrize("address", ADDRESSES)
async def test_every_screen_has_a_frame_whose_files_are_there(shared: World, address: str) -> None:
    session = (await shared.client.post("/v1/sessions", json={})).json()["id"]
    address = address.replace("SESSION", session)
    response = await shared.client.get(address)
    assert response.status_code == 200 and response.headers["content-security-policy"] == POLICY
    assert response.text.count("<h1>") == 1 and "<style" not in response.text
    assert all(" src=" in script for script in re.findall(r"<script[^>]*>", response.text))
    for link in LINK.findall(response.text):
        assert not link.startswith(("/", "http")), link
        if "/static/" in link:
            file = await shared.client.get(urljoin(address, link))
            assert file.status_code == 200 and "immutable" in file.headers["cache-control"], link


async def test_a_proxy_may_strip_a_prefix(shared: World) -> None:
    for address in [*ADDRESSES, "/ui/nothing/at/all"]:
        response = await shared.client.get(address)
        for link in LINK.findall(response.text):
            if not link.startswith("#"):
                assert urlsplit(urljoin(f"http://host/behind/proxy{address}", link)).path.startswith(
                    "/behind/proxy/ui/"
                )
    for address in ("/ui", "/ui/"):
        found = urljoin(f"http://host/behind{address}", (await shared.client.get(address)).headers["location"])
        assert found == "http://host/behind/ui/models"


async def test_an_address_without_a_screen_says_so_and_a_missing_file_is_none(shared: World) -> None:
    response = await shared.client.get("/ui/nothing")
    assert response.status_code == 404 and "<h1>No such page</h1>" in response.text
    for path in ("nothing.js", "../frame.py", "%2e%2e/frame.py", "strings/../frame.py", "templates/frame.html"):
        assert (await shared.client.get(f"/ui/static/x/{path}")).status_code == 404, path


@pytest.mark.parametrize("rest", ["", "/compare", "/aliases/production", "/aliases/production/rollout", "/versions/1"])
async def test_a_model_or_version_that_is_not_there_has_no_page(shared: World, rest: str) -> None:
    for address in (f"/ui/models/no-such{rest}", f"/ui/models/%20{rest}", "/ui/models/demo/versions/99"):
        response = await shared.client.get(address)
        assert response.status_code == 404 and "<h1>No such page</h1>" in response.text, address


async def test_only_a_session_that_is_there_has_a_page(shared: World) -> None:
    made = (await shared.client.post("/v1/sessions", json={})).json()["id"]
    assert (await shared.client.get(f"/ui/sessions/{made}")).status_code == 200
    for id in ("no-such", "%20", "ses_" + "0" * 32):
        response = await shared.client.get(f"/ui/sessions/{id}")
        assert response.status_code == 404 and "<h1>No such page</h1>" in response.text, id


MOST_SCRIPT: Final = 60_000


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
async def test_the_scripts_of_a_screen_are_small_and_whole(shared: World, screen: Screen) -> None:
    size = 0
    for module in modules(screen.name):
        sent = (await shared.client.get(f"/ui/static/x/{module}")).text
        size += len(sent.encode())
        for line in (STATIC / module).read_text(encoding="utf-8").splitlines():
            is_comment = not line.strip() or line.strip().startswith("//")
            assert module.startswith("vendor/") or is_comment or line in sent, (module, line)
        assert module.startswith("vendor/") or sent.count("`") % 2 == 0, "no comment stands inside of a template"
    assert size <= MOST_SCRIPT


async def test_a_file_of_another_build_is_not_kept(shared: World) -> None:
    response = await shared.client.get("/ui/static/older/style.css")
    assert response.status_code == 200 and response.headers["cache-control"] == "no-cache"


async def test_texts_of_the_address_are_text(shared: World) -> None:
    response = await shared.client.get("/ui/models/demo/compare", params={"a": "<img src=x>", "b": '"><script>'})
    assert "<img" not in response.text and "&lt;img src=x&gt;" in response.text
    assert '"><script>' not in response.text


async def test_language_and_theme_are_the_visitors(shared: World) -> None:
    korean = await shared.client.get("/ui/models", headers={"Accept-Language": "ko-KR,ko;q=0.9,en;q=0.8"})
    assert '<html lang="ko"' in korean.text and "<h1>모델</h1>" in korean.text
    kept = {"Cookie": "dosirak_language=en; dosirak_theme=dark", "Accept-Language": "ko"}
    chosen = await shared.client.get("/ui/models", headers=kept)
    assert '<html lang="en" data-theme="dark"' in chosen.text
    odd = {"Cookie": "dosirak_language=<x>; dosirak_theme=<y>", "Accept-Language": "xx;q=oops, *"}
    assert '<html lang="en" data-theme="system"' in (await shared.client.get("/ui/models", headers=odd)).text


def test_languages_have_the_same_strings_with_the_same_places() -> None:
    read = {each: json.loads((STRINGS / f"{each}.json").read_text(encoding="utf-8")) for each in LANGUAGES}
    assert {path.stem for path in STRINGS.glob("*.json")} == set(LANGUAGES)
    places = {
        name: {key: set(re.findall(r"\{\w+\}", text)) for key, text in strings.items()}
        for name, strings in read.items()
    }
    assert places["en"] == places["ko"]


def test_scripts_use_strings_that_are_there_and_every_string_is_used() -> None:
    strings = json.loads((STRINGS / "en.json").read_text(encoding="utf-8"))
    sources = [*STATIC.rglob("lib/*.js"), *STATIC.rglob("screens/*.js"), *(STATIC.parent / "templates").glob("*.html")]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    asked = set(re.findall(r"""\bt\('([a-z_-]+\.[\w.-]+)'""", text)) | set(re.findall(r'strings\["([\w.]+)"\]', text))
    assert asked <= strings.keys(), asked - strings.keys()
    begun = tuple(re.findall(r"""\bt\(`([\w.]+)\$\{""", text)) + tuple(re.findall(r'strings\["([\w.]+)" \+', text))
    unused = {key for key in strings if key not in asked and not key.startswith((*begun, "title."))}
    assert not unused


def test_vendored_files_are_as_published() -> None:
    vendor = STATIC / "vendor"
    sources = json.loads((vendor / "SOURCES.json").read_text(encoding="utf-8"))
    assert sources.keys() == {path.name for path in vendor.glob("*.js")}
    for name, source in sources.items():
        assert hashlib.sha256((vendor / name).read_bytes()).hexdigest() == source["sha256"]
        assert (vendor / f"{source['package']}-LICENSE.txt").stat().st_size > 500


def test_scripts_import_what_is_there_and_screens_load_little() -> None:
    for path in (*STATIC.rglob("lib/*.js"), *STATIC.rglob("screens/*.js")):
        for imported in imports(path.read_text(encoding="utf-8")):
            assert (path.parent / imported).is_file(), (path.name, imported)
    for screen in SCREENS:
        size = sum((STATIC / each).stat().st_size for each in modules(screen.name))
        assert size <= 61_500, (screen.name, size)
        rest = (STATIC / "style.css").stat().st_size + max((STRINGS / f"{e}.json").stat().st_size for e in LANGUAGES)
        assert size + rest <= 116_000, screen.name


# Behind a key.


@pytest.fixture
def keyed(guarded: World) -> World:
    """The server with a key, and a client that has forgotten every cookie."""
    guarded.client.cookies.clear()
    return guarded


async def test_every_address_asks_for_the_key(keyed: World) -> None:
    for address in (*ADDRESSES, "/ui", "/ui/", "/ui/static/x/style.css", "/ui/nothing"):
        response = await keyed.client.get(address)
        assert response.status_code == 401 and "<h1>Sign in</h1>" in response.text, address
        assert "script-src" not in response.headers["content-security-policy"] and "<link" not in response.text
    assert (await keyed.client.get("/v1/models")).json()["error"]  # the API still answers JSON


@pytest.mark.parametrize("address", ["/ui/models/demo?x=1&y=%20", "/ui/models", "/ui"])
async def test_the_key_leads_on_to_the_page_and_the_cookie_holds_no_key(keyed: World, address: str) -> None:
    page = (await keyed.client.get(address)).text
    action = urljoin(address, LINK.findall(page)[0])
    path = re.search(r'name="path" value="([^"]*)"', page)
    assert action == "/ui/sign-in" and path
    sent = {"key": KEY, "path": path[1].replace("&amp;", "&")}
    response = await keyed.client.post(action, data=sent)
    assert response.status_code == 303
    onward = urljoin(action, response.headers["location"])
    assert onward == (address if address != "/ui" else "/ui/models")
    cookie = response.headers["set-cookie"]
    keyed.client.cookies.clear()
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and KEY not in cookie
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    assert digest not in cookie
    there = await keyed.client.get(onward, headers={"Cookie": cookie.partition(";")[0]})
    assert there.status_code == 200 and "sign-out" in there.text


async def test_a_wrong_key_stays_at_the_form_and_keeps_the_way(keyed: World) -> None:
    response = await keyed.client.post("/ui/sign-in", data={"key": "guess", "path": "live?x=<b>"})
    assert response.status_code == 401 and 'role="alert"' in response.text and "set-cookie" not in response.headers
    assert 'value="live?x=&lt;b&gt;"' in response.text
    assert (await keyed.client.post("/ui/sign-in", data={"key": "k" * 20_000})).status_code == 422


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "\\\\evil.example", "/\\evil", "a\r\nX: y"])
async def test_no_path_leads_to_another_server(keyed: World, path: str) -> None:
    response = await keyed.client.post("/ui/sign-in", data={"key": KEY, "path": path})
    onward = urlsplit(urljoin("http://here/ui/sign-in", response.headers["location"]))
    assert onward.netloc == "here" and "x" not in response.headers


async def test_the_cookie_reads_and_changes_only_from_the_uis_own_pages(keyed: World) -> None:
    jar = {"Cookie": (await _signed_in(keyed))}
    assert (await keyed.client.get("/v1/models", headers=jar)).status_code == 200
    body = {"inputs": "hi"}
    for site in ({}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "none"}):
        response = await keyed.client.post("/generate", json=body, headers={**jar, **site})
        assert response.status_code == 403 and "Authorization: Bearer" in response.json()["error"], site
    assert (await keyed.client.post("/generate", json=body, headers={**jar, **SAME})).status_code == 200
    assert (await keyed.client.post("/generate", json=body, headers=SAME)).status_code == 401


async def test_sessions_of_the_ui_are_those_of_the_key(keyed: World) -> None:
    jar = {"Cookie": await _signed_in(keyed), **SAME}
    made = (await keyed.client.post("/v1/sessions", json={"metadata": {"by": "ui"}}, headers=jar)).json()
    bearer = {"Authorization": f"Bearer {KEY}"}
    assert (await keyed.client.get(f"/v1/sessions/{made['id']}", headers=bearer)).status_code == 200
    assert (await keyed.client.delete(f"/v1/sessions/{made['id']}", headers=jar)).status_code < 300


async def test_signing_out_takes_the_cookie_away(keyed: World) -> None:
    jar = {"Cookie": await _signed_in(keyed)}
    assert (await keyed.client.post("/ui/sign-out", headers=jar)).status_code == 403
    response = await keyed.client.post("/ui/sign-out", headers={**jar, **SAME})
    assert response.status_code == 303 and "Max-Age=0" in response.headers["set-cookie"]


MALFORMED: Final = ("a b=c", '"', 'x="no end', '{"a": 1}', "a=b=c", "é=ü", "=", "[1]=2", "x", "x=\\", "a,b", ":")
"""What other apps of the same host send along."""


@pytest.mark.parametrize("other", MALFORMED)
async def test_another_apps_malformed_cookie_locks_nobody_out(keyed: World, other: str) -> None:
    mine = Cookie.of(SecretStr(KEY))
    assert mine
    good = mine.made(secure=True).partition(";")[0]
    for sent in (f"{other}; {good}", f"{good}; {other}", f"{other};{good};{other}"):
        response = await keyed.client.get("/ui/models", headers=[(b"cookie", sent.encode())])
        assert response.status_code == 200, sent


async def test_a_forged_an_old_and_another_keys_cookie_are_none(keyed: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = Cookie.of(SecretStr(KEY)), Cookie.of(SecretStr("another key"))
    assert mine and other and other.name != mine.name
    good = mine.made(secure=True).partition(";")[0]
    name, _, value = good.partition("=")
    later, nonce, signature = value.split(".")
    forged = [
        f"{name}={int(later) + 1}.{nonce}.{signature}",
        f"{name}={later}.{nonce}.{signature[:-1]}",
        f"{name}=",
        f"{name}=x.y.z",
        f"{name}=é.é.é",
        f"{name}={other.made(secure=False).partition('=')[2].partition(';')[0]}",
    ]
    for each in forged:
        response = await keyed.client.get("/ui/models", headers=[(b"cookie", each.encode())])
        assert response.status_code == 401, each
    assert mine.is_in(good) and mine.is_in(f"a=b; {good}; c=d")
    later_by_a_day = time.time() + SECONDS + 1
    monkeypatch.setattr("service.api.edge.cookie.time.time", lambda: later_by_a_day)
    assert not mine.is_in(good)


async def test_without_a_key_a_stranger_gets_a_page_that_says_so(serve: Serve) -> None:
    async with serve() as world:
        headers = {"Accept": "text/html", "X-Forwarded-For": "10.0.0.1"}
        response = await world.client.get("/ui/models", headers=headers)
        assert response.status_code == 403 and "DOSIRAK_ADMIN_KEY" in response.text


async def _signed_in(keyed: World) -> str:
    response = await keyed.client.post("/ui/sign-in", data={"key": KEY, "path": ""})
    cookie: str = response.headers["set-cookie"]
    keyed.client.cookies.clear()
    return cookie.partition(";")[0]
