"""The live screen in a real browser: figures of real requests, one connection while it is seen, a bounded page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, Request, Route, expect

from tests.e2e.server import Server
from tests.ui.browser import Window, needs_browser

pytestmark = needs_browser
REGIONS = ("Queue", "Batch", "KV blocks", "Step cost", "First token", "Between tokens")
HIDE = """({name, value, told}) => {
  Object.defineProperty(document, name, {get: () => value, configurable: true});
  document.dispatchEvent(new Event(told));
}"""


def version(reference: str, running: int = 0) -> dict[str, Any]:
    latency = {"p50": 0.01, "p95": 0.02, "count": 5}
    cost = {"constant_seconds": 0.01, "seconds_per_token": 0.001, "seconds_per_kv_token": 0.0}
    return {
        "model": reference,
        "state": "ready",
        "running": running,
        "waiting": 0,
        "kv_blocks": {"total": 64, "free": 60, "cached": 3},
        "tokens_per_second": 7.0,
        "prompt_tokens_per_second": 3.0,
        "ttft_seconds": latency,
        "itl_seconds": latency,
        "prefix_hits": {"cached_tokens": 1, "prompt_tokens": 4},
        "cost": {**cost, "seconds_per_attention_pair": 0.0, "error_ratio": 0.1},
        "steps": [{"tokens": 4, "sequences": 2, "predicted_seconds": 0.014, "seconds": 0.015}] * 2,
    }


def feed(page: Page, *events: list[dict[str, Any]]) -> None:
    """Answers with these events, one a second of their clock, and then ends the stream."""
    data = [{"at": 1000.0 + at, "interval_seconds": 1.0, "versions": each} for at, each in enumerate(events)]
    body = "".join(f"data: {json.dumps(each)}\n\n" for each in data)
    page.route("**/v1/live", lambda route: route.fulfill(body=body, content_type="text/event-stream"))


def open_live(shown: Window, asked: str = "") -> Page:
    shown.page.goto(f"{shown.base}/ui/live{asked}")
    return shown.page


def streams(page: Page) -> tuple[list[Request], list[Request]]:
    """The streams that the page opens from now on, and those of them that it ends."""
    opened: list[Request] = []
    ended: list[Request] = []

    def note(kept: list[Request]) -> Callable[[Request], None]:
        return lambda request: kept.append(request) if request.url.endswith("/v1/live") else None

    page.on("request", note(opened))
    page.on("requestfailed", note(ended))
    return opened, ended


def test_the_figures_are_those_of_real_requests(shown: Window, served: Server) -> None:
    page = open_live(shown)
    row = page.get_by_role("table", name="Versions").get_by_role("row").filter(has_text="demo:2")
    expect(row).to_contain_text("ready")
    expect(page.get_by_role("status")).to_contain_text("Versions loaded")
    with served.client() as api:
        for _ in range(3):
            asked = {"model": "demo:2", "inputs": "Hello", "parameters": {"max_new_tokens": 20, "ignore_eos": True}}
            api.post("/generate", json=asked).raise_for_status()
    for name in REGIONS:
        region = page.get_by_role("region", name=name)
        expect(region.get_by_role("img", name=name)).to_be_visible()
        expect(region.get_by_role("table", name=name)).to_be_visible()
    count = page.get_by_role("table", name="First token").get_by_role("row", name=re.compile("Observed"))
    expect(count).to_contain_text("3")
    last = page.get_by_role("table", name="Step cost").get_by_role("row", name="Last step, true")
    expect(last).to_contain_text("ms")
    expect(page.get_by_role("region", name="Step cost").locator("circle").first).to_be_attached()


def test_there_is_one_connection_and_only_while_the_page_is_seen(shown: Window) -> None:
    opened, ended = streams(shown.page)
    page = open_live(shown)
    expect(page.get_by_role("table", name="Versions")).to_be_visible()
    assert len(opened) == 1
    hidden = {"name": "hidden", "value": True, "told": "visibilitychange"}
    page.evaluate(HIDE, hidden)
    page.wait_for_timeout(1500)
    assert (len(opened), len(ended)) == (1, 1)
    page.evaluate(HIDE, {**hidden, "value": False})
    page.wait_for_timeout(500)
    assert (len(opened), len(ended)) == (2, 1)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_timeout(500)
    assert (len(opened), len(ended)) == (2, 2)
    expect(page.get_by_role("status")).to_contain_text("Paused")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("status")).to_contain_text("Versions loaded")
    assert len(opened) == 3


TOLD = """window.told = []
new MutationObserver(() => {
    const text = document.querySelector('[role=status]')?.textContent
    if (text && text !== told.at(-1)) told.push(text)
}).observe(document, { childList: true, subtree: true, characterData: true })"""
"""Notes each text of the status, also one that is there for a moment."""


def test_a_lost_connection_is_told_and_opened_again(shown: Window) -> None:
    page = shown.page
    refused = {"error": "Too many listeners: end one", "code": "overloaded"}

    def refuse(route: Route) -> None:
        route.fulfill(status=503, json=refused, headers={"X-Request-Id": "r-1"})

    page.route("**/v1/live", refuse)
    page.add_init_script(TOLD)
    open_live(shown)
    expect(page.get_by_role("alert")).to_contain_text(re.compile("Too many listeners.*r-1", re.DOTALL))
    while not any("Next try in 2 s" in each for each in page.evaluate("told")):
        page.wait_for_timeout(50)
    assert any("Next try in 1 s" in each for each in page.evaluate("told"))
    page.unroute("**/v1/live")
    expect(page.get_by_role("table", name="Versions")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.get_by_role("status")).to_contain_text("Versions loaded")
    shown.complaints.clear()


def test_regions_show_a_busy_version_first_then_the_chosen_one(shown: Window) -> None:
    feed(shown.page, [version("demo:10"), version("demo:2"), version("demo:9", running=3)])
    page = open_live(shown)
    choice = page.get_by_role("combobox", name="Version")
    expect(choice.get_by_role("option")).to_have_text(["demo:9", "demo:10", "demo:2"])
    running = page.get_by_role("table", name="Queue").get_by_role("row", name=re.compile("Running"))
    expect(running.get_by_role("cell").nth(1)).to_have_text("3")
    choice.select_option("demo:2")
    expect(running.get_by_role("cell").nth(1)).to_have_text("0")
    assert "version=demo%3A2" in page.evaluate("location.search")


def test_a_page_that_stays_open_does_not_grow(shown: Window) -> None:
    feed(shown.page, *[[version("demo:2", running=at % 7)] for at in range(600)])
    page = open_live(shown)
    expect(page.get_by_role("status")).to_contain_text("Next try", timeout=60_000)  # all events are shown
    expect(page.get_by_role("img", name="Queue")).to_contain_text("300 s ago")
    line = page.get_by_role("img", name="Queue").locator("path").first.get_attribute("d")
    assert line is not None and line.count("L") + line.count("M") == 300
    assert page.get_by_role("img", name="Step cost").locator("circle").count() == 240
    assert page.evaluate("document.querySelectorAll('*').length") < 900
