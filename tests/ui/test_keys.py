"""The main flow by keys alone, with the focus always seen, and no motion for people who want less of it."""

from __future__ import annotations

from playwright.sync_api import Browser, Locator, Page, expect

from tests.e2e.server import Server
from tests.ui.browser import Window, needs_browser, window

pytestmark = needs_browser
FOCUS = """() => {
  const held = document.activeElement, style = getComputedStyle(held), box = held.getBoundingClientRect();
  return {name: held.tagName, seen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
          inside: box.bottom > 0 && box.top < innerHeight && box.width > 0};
}"""
MOVING = """() => [...document.querySelectorAll('*')].map(each => getComputedStyle(each)).filter(style =>
  style.animationName !== 'none' || style.transitionDuration.split(',').some(time => parseFloat(time) > 0)).length"""
MOST_TABS = 80


def test_a_version_is_found_verified_and_asked_by_keys(shown: Window) -> None:
    page = shown.open("models")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    _reach(page, page.get_by_role("searchbox", name="Search models"))
    page.keyboard.type("dem")
    _reach(page, page.get_by_role("table", name="Models").get_by_role("link", name="demo", exact=True))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
    expect(page.get_by_role("table", name="Versions", exact=True)).to_be_visible()
    _reach(page, page.get_by_role("link", name="demo:2").first)
    page.keyboard.press("Enter")
    verify = page.get_by_role("button", name="Verify files")
    expect(verify).to_be_visible()
    _reach(page, verify)
    page.keyboard.press("Space")
    expect(page.get_by_role("status")).to_contain_text("files are as published")
    _reach(page, page.get_by_role("button", name="Delete version"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name="Delete version")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete version")).to_be_focused()
    page.keyboard.press("Control+k")
    page.keyboard.type("Playground")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Playground")
    _reach(page, page.get_by_role("textbox", name="Message"))
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    expect(page.get_by_role("log").get_by_role("article", name="demo:2")).to_have_count(1)


def test_less_motion_is_obeyed(chromium: Browser, served: Server) -> None:
    with window(chromium, served.url, reduced_motion="reduce") as opened:
        assert opened.open("models/demo").evaluate(MOVING) == 0


def _reach(page: Page, wanted: Locator) -> None:
    """Presses Tab until the wanted element has the focus. The focus is seen at each step."""
    for _ in range(MOST_TABS):
        if wanted.evaluate("each => each === document.activeElement"):
            return
        page.keyboard.press("Tab")
        held = page.evaluate(FOCUS)
        assert held["name"] == "BODY" or (held["seen"] and held["inside"]), held
    raise AssertionError(f"not reached by {MOST_TABS} times Tab")
