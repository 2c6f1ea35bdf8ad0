"""The keys' screen in a real browser: a key is made, shown once, used, rotated and deleted."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Browser, Page, Route, expect

from tests.e2e.server import Server
from tests.ui.browser import cells, needs_browser, window
from tests.ui.conftest import KEY
from tests.waiting import block_until

pytestmark = needs_browser


def test_a_key_from_its_making_to_its_end(chromium: Browser, keyed: Server) -> None:
    with window(chromium, keyed.url) as shown:
        page = shown.page
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.goto(f"{keyed.url}/ui/keys")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        shown.forget("401")
        expect(page.get_by_role("status")).to_contain_text("There is no key yet")
        page.get_by_role("button", name="Create key").click()
        dialog = page.get_by_role("dialog", name="Create key")
        dialog.get_by_role("textbox", name="Name", exact=True).fill("shop")
        dialog.get_by_role("checkbox", name="sessions").check()
        dialog.get_by_role("textbox", name=re.compile("^Models")).fill("demo, demo:2")
        dialog.get_by_label("Ends").fill("2999-01-31T12:00")
        dialog.get_by_role("spinbutton", name="Tokens a day").fill("5")
        dialog.get_by_role("button", name="Create key").click()
        region = page.get_by_role("region", name="Secret of shop")
        copy = region.get_by_role("button", name="Copy key")
        expect(copy).to_be_focused()
        secret = region.locator("code").inner_text()
        copy.click()
        assert page.evaluate("navigator.clipboard.readText()") == secret
        table = page.get_by_role("table", name="Keys")
        (row,) = cells(table)
        assert row[0].startswith("shop\nkey_") and row[1].split() == ["generate", "sessions"]
        assert row[2] == "demo, demo:2" and row[3] == "Tokens a day: 5" and "2999" in row[4]
        statuses = [ask(keyed, secret) for _ in range(2)]
        assert statuses == [200, 429]

        table.get_by_role("button", name="Rotate").click()
        page.get_by_role("dialog", name="Rotate").get_by_role("button", name="Rotate").click()
        expect(region.locator("code")).not_to_have_text(secret)
        assert (ask(keyed, secret), ask(keyed, region.locator("code").inner_text())) == (401, 429)
        region.get_by_role("button", name="Hide").click()
        expect(region).to_have_count(0)

        block_until(lambda: counted(keyed) == 3)  # counts are written once a second
        page.reload()
        assert secret not in page.content()
        usage = page.get_by_role("table", name="Usage")
        expect(usage.get_by_role("row", name="shop demo:2")).to_be_visible()
        page.get_by_role("combobox", name="Period").select_option("hour")
        page.get_by_role("combobox", name="Key").select_option("shop")
        expect(usage.get_by_role("columnheader").first).to_have_text("Hour")
        expect(usage.get_by_role("row")).to_have_count(3)
        assert {(each[1], each[2], each[3], each[4]) for each in cells(usage)} == {
            ("shop", "demo:2", "1", "0"),
            ("shop", "–", "0", "2"),
        }
        table.get_by_role("button", name="Delete key").click()
        confirm = page.get_by_role("dialog", name="Delete key")
        expect(confirm).to_contain_text("every server refuses shop")
        confirm.get_by_role("button", name="Delete key").click()
        expect(table).to_have_count(0)
        expect(page.get_by_role("button", name="Create key")).to_be_focused()
        assert not shown.complaints, shown.complaints


def test_a_second_press_changes_nothing_and_a_refusal_leaves_the_dialog(chromium: Browser, keyed: Server) -> None:
    with window(chromium, keyed.url) as shown:
        page = shown.page
        page.goto(f"{keyed.url}/ui/keys")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        shown.forget("401")
        held = list[Route]()
        page.route(re.compile("/v1/keys"), lambda route: held.append(route) if is_change(route) else route.continue_())
        page.get_by_role("button", name="Create key").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("textbox", name="Name", exact=True).fill("twice")
        table = page.get_by_role("table", name="Keys")
        for opened, button in ((None, "Create key"), ("Rotate", "Rotate"), ("Delete key", "Delete key")):
            if opened:
                table.get_by_role("button", name=opened).click()
            press = dialog.get_by_role("button", name=button)
            press.click()
            press.click()
            body = {"error": {"code": "unavailable", "message": "The database is away"}}
            the_one(page, held).fulfill(status=503, json=body)
            expect(dialog.get_by_role("alert")).to_contain_text("The database is away")
            shown.forget("503")
            press.click()
            press.click()
            the_one(page, held).continue_()
            expect(dialog).to_have_count(0)
            expect(page.get_by_role("alert")).to_be_empty()
            expect(table.get_by_role("button", name="Rotate")).to_have_count(int(button != "Delete key"))
        assert not shown.complaints, shown.complaints


def is_change(route: Route) -> bool:
    return route.request.method != "GET"


def the_one(page: Page, held: list[Route]) -> Route:
    """Takes the one change that the page has asked for."""
    while not held:
        page.wait_for_timeout(10)
    page.wait_for_timeout(100)  # a second press would ask again
    [route] = held
    held.clear()
    return route


def counted(server: Server) -> int:
    """The requests of all keys that the usage has, refused ones too."""
    headers = {"Authorization": f"Bearer {KEY}"}
    rows = httpx.get(f"{server.url}/v1/usage", headers=headers).json()["data"]
    return sum(each["requests"] + each["refused"] for each in rows)


def ask(server: Server, key: str) -> int:
    body = {"messages": [{"role": "user", "content": "안녕하세요"}], "max_tokens": 4}
    with httpx.Client(base_url=server.url, timeout=120) as client:
        headers = {"Authorization": f"Bearer {key}"}
        return client.post("/v1/chat/completions", json=body, headers=headers).status_code
