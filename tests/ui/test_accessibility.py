"""axe finds nothing on any screen: full, empty, refused and while its data is on the way; light, dark, 360 px wide."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route

from service.ui.screens import SCREENS, Screen
from tests.e2e.server import Server
from tests.ui.audit import violations
from tests.ui.browser import Window, needs_browser, window

pytestmark = needs_browser
QUERIES = {"compare": "?a=1&b=2", "side-by-side": "?a=demo:1&b=demo:2"}
USUAL = {"models", "playground", "version"}
EACH = [pytest.param(each, id=each.name, marks=() if each.name in USUAL else pytest.mark.nightly) for each in SCREENS]
LOOKS = {"light": ("light", 1280), "dark": ("dark", 1280), "narrow": ("light", 360)}
API = "**/v1/**"


@pytest.fixture(scope="module")
def session(served: Server) -> str:
    """A chat of two turns, so that every screen has something to show."""
    with served.client() as client:
        made: str = client.post("/v1/sessions", json={"metadata": {"title": "도시락"}}).json()["id"]
        for text in ("안녕하세요", "제 이름은 김하린이에요."):
            body = {"messages": [{"role": "user", "content": text}], "session_id": made}
            client.post("/v1/chat/completions", json=body).raise_for_status()
        client.put(
            "/v1/repository/models/demo/aliases/tried", json={"version": "1", "reason": "to see"}
        ).raise_for_status()
        client.put(
            "/v1/repository/models/demo/aliases/tried/rollout", json={"candidate": "2", "weight": 5}
        ).raise_for_status()
    return made


@pytest.fixture(scope="module")
def opened(served: Server, chromium: Browser) -> Iterator[Window]:
    with window(chromium, served.url) as shown:
        yield shown


@pytest.mark.parametrize("screen", EACH)
def test_a_screen_has_no_violation(opened: Window, session: str, screen: Screen) -> None:
    _show(opened, session, screen)
    _audit(opened.page)


@pytest.mark.nightly
@pytest.mark.parametrize("state", ["empty", "refused", "loading"])
@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
def test_a_screen_without_its_data_has_no_violation(opened: Window, session: str, screen: Screen, state: str) -> None:
    opened.page.route(API, ANSWERS[state])
    try:
        _show(opened, session, screen, settle=state != "loading")
        _audit(opened.page)
    finally:
        opened.page.unroute_all(behavior="ignoreErrors")


def test_the_checker_finds_a_planted_violation(opened: Window) -> None:
    opened.open("models")
    opened.page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    assert any(found.startswith("label:") for found in violations(opened.page))


def test_sign_in_has_no_violation(chromium: Browser, keyed: Server) -> None:
    with window(chromium, keyed.url) as shown:
        shown.page.goto(f"{keyed.url}/ui/models")
        _audit(shown.page)


def _show(opened: Window, session: str, screen: Screen, settle: bool = True) -> None:
    path = screen.path.format(model="demo", version="2", alias="tried", session=session)[1:]
    opened.page.goto(f"{opened.base}/ui/{path}{QUERIES.get(screen.name, '')}")
    opened.page.wait_for_timeout(400 if settle else 150)


def _audit(page: Page) -> None:
    found = []
    for look, (scheme, width) in LOOKS.items():
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size({"width": width, "height": 800})
        found += [f"{look}: {each}" for each in violations(page)]
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"{look}: the page scrolls sideways")
    assert not found, "\n".join(found)


def _empty(route: Route) -> None:
    if route.request.method != "GET":
        return route.fallback()
    if route.request.url.endswith("/v1/live"):  # a stream that has no end
        return route.fulfill(body='data: {"at": 1, "versions": []}\n\n', content_type="text/event-stream")
    answer = httpx.get(route.request.url, headers={"Accept": "application/json"})
    if "json" not in answer.headers["content-type"]:
        return route.fallback()
    emptied = {key: [] if isinstance(value, list) else value for key, value in answer.json().items()}
    return route.fulfill(status=answer.status_code, body=json.dumps(emptied), content_type="application/json")


def _refused(route: Route) -> None:
    body = {"error": "The server is draining; try again in a minute", "code": "unavailable"}
    route.fulfill(status=503, body=json.dumps(body), content_type="application/json")


def _loading(route: Route) -> None:
    """Is never answered."""


ANSWERS: dict[str, Callable[[Route], None]] = {"empty": _empty, "refused": _refused, "loading": _loading}
