"""The store's screens in a real browser: models, versions, what a version is."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.ui.browser import Window, needs_browser

pytestmark = needs_browser


def test_models_are_found_by_their_name(shown: Window) -> None:
    page = shown.open("")
    expect(page).to_have_url(re.compile("/ui/models$"))
    table = page.get_by_role("table", name="Models")
    expect(table.get_by_role("columnheader")).to_have_text(["Model", "Newest", "Aliases", "Versions", "Size"])
    row = table.get_by_role("row").filter(has=page.get_by_role("link", name="demo", exact=True))
    expect(row.get_by_role("cell").first).to_have_text("demo")
    page.get_by_role("searchbox", name="Search models").fill("nothing-like-this")
    expect(page.get_by_role("status")).to_contain_text("No model has nothing-like-this in its name")
    expect(table).to_have_count(0)
    assert "query=nothing-like-this" in page.evaluate("location.search")


def test_a_version_is_one_click_away_and_says_what_it_is(shown: Window) -> None:
    page = shown.open("models/demo")
    page.get_by_role("table", name="Versions").get_by_role("link", name="demo:2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("demo:2")
    expect(page).to_have_title("demo:2 · Dosirak")
    expect(page.get_by_role("region", name="Lineage").get_by_role("link", name="demo:1")).to_be_visible()
    expect(page.locator("p.mono")).to_have_text(re.compile(r"^[0-9a-f]{64}$"))
    quality = page.get_by_role("table", name="Quality")
    expect(quality.get_by_role("row", name=re.compile("KL divergence"))).to_contain_text("passes")
    page.get_by_role("button", name="Verify files").click()
    expect(page.get_by_role("status")).to_contain_text("files are as published")


def test_a_version_shows_no_votes_before_they_are_known(shown: Window) -> None:
    held = list[Route]()
    shown.page.route("**/v1/feedback/summary*", lambda route: held.append(route))
    with shown.page.expect_request("**/v1/feedback/summary*"):
        shown.page.goto(f"{shown.base}/ui/models/demo/versions/2")
    expect(shown.page.get_by_role("table", name="Quality")).to_be_visible()
    votes = shown.page.get_by_role("region", name="Feedback")
    expect(votes).to_have_count(0)
    held[0].continue_()
    expect(votes.get_by_role("cell", name="0").first).to_be_visible()


def test_theme_and_language_stay(shown: Window) -> None:
    page = shown.open("models")
    page.get_by_role("combobox", name="Theme").select_option("dark")
    page.get_by_role("combobox", name="Language").select_option("ko")
    expect(page.get_by_role("heading", level=1)).to_have_text("모델")
    shown.open("jobs")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    expect(page.get_by_role("heading", level=1)).to_have_text("작업")


def test_go_to_opens_by_keys_and_leads_to_a_model(shown: Window) -> None:
    page = shown.open("live")
    page.keyboard.press("Control+k")
    dialog = page.get_by_role("dialog", name="Go to")
    dialog.get_by_role("searchbox").fill("dem")
    expect(dialog.get_by_role("link")).to_have_text(["demo"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("demo")
