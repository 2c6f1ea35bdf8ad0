"""Behind a key: the sign-in leads on, the pages work by the cookie, and signing out ends that."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, expect

from tests.e2e.server import Server
from tests.ui.browser import needs_browser, window
from tests.ui.conftest import KEY

pytestmark = needs_browser


def test_a_person_signs_in_works_and_signs_out(chromium: Browser, keyed: Server) -> None:
    with window(chromium, keyed.url) as shown:
        page = shown.page
        page.goto(f"{keyed.url}/ui/models/demo?x=1")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.get_by_label("Key").fill("a guess")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("not the server's key")
        page.get_by_label("Key").fill(KEY)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile(r"/ui/models/demo\?x=1$"))
        expect(page.get_by_role("table", name="Versions")).to_be_visible()
        page.get_by_role("link", name="demo:1").first.click()
        page.get_by_role("button", name="Verify files").click()
        expect(page.get_by_role("status")).to_contain_text("files are as published")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
        page.goto(f"{keyed.url}/ui/models")
        expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
