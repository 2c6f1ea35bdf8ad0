"""The weight of a screen's first load, and the time of its first paint. Bytes are asserted; times are printed."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from service.ui.screens import SCREENS, Screen
from tests.e2e.server import Server
from tests.ui.browser import needs_browser, window

pytestmark = needs_browser
MOST_SCRIPT, MOST = 60_000, 120_000
LOADED = """() => performance.getEntriesByType('resource').filter(each => each.name.includes('/ui/static/'))
    .map(each => [each.name, each.decodedBodySize])"""
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@pytest.mark.parametrize("screen", SCREENS, ids=lambda screen: screen.name)
def test_a_screen_loads_little(chromium: Browser, served: Server, screen: Screen) -> None:
    path = screen.path.format(model="demo", version="2", alias="production", session="none")
    with window(chromium, served.url) as shown:
        page = shown.page
        page.goto(f"{served.url}/ui{path}")
        while page.evaluate(PAINTED) is None:
            page.wait_for_timeout(50)
        page.wait_for_timeout(500)
        loaded, paint = dict(page.evaluate(LOADED)), page.evaluate(PAINTED)
        frame = len(page.content().encode())
    script = sum(size for name, size in loaded.items() if name.endswith(".js"))
    print(f"{path}: script {script}, all {frame + sum(loaded.values())} bytes; first paint {paint:.0f} ms")
    assert 0 < script <= MOST_SCRIPT and frame + sum(loaded.values()) <= MOST, loaded
