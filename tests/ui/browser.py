"""A headless Chromium for the tests of the UI: Debian's, driven by Playwright from pip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PROGRAM = os.environ.get("DOSIRAK_TEST_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium here: apt-get install chromium-headless-shell fonts-nanum"
)


@dataclass
class Window:
    """One page of a browser, and all that went wrong on it: errors of scripts and of the policy, failed requests."""

    page: Page
    base: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Opens an address under `/ui/` and waits until its data is there."""
        self.page.goto(f"{self.base}/ui/{path}")
        self.settle()
        return self.page

    def settle(self) -> None:
        self.page.wait_for_load_state("networkidle")

    def told(self) -> str:
        """The text of the alert and the status, for a test that waits in vain."""
        return self.page.locator("#alert").inner_text() + " | " + self.page.locator("#status").inner_text()

    def forget(self, status: str) -> None:
        """Drops what the browser's console told of refusals that a test asked for; anything else stays a complaint."""
        assert self.complaints and all(status in told for told in self.complaints), self.complaints
        self.complaints.clear()


def cells(table: Locator) -> list[list[str]]:
    """The texts of a table's rows, without its head."""
    return [row.get_by_role("cell").all_inner_texts() for row in table.get_by_role("row").all()[1:]]


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


@contextmanager
def window(started: Browser, base: str, **options: Any) -> Iterator[Window]:
    """A page of its own, with no cookie; complaints about refused requests count only where a test asks for them."""
    context = started.new_context(**{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options})
    context.set_default_timeout(30_000)
    page = context.new_page()
    shown = Window(page, base)
    page.on("pageerror", lambda error: shown.complaints.append(f"error: {error}"))
    page.on("console", lambda told: told.type == "error" and shown.complaints.append(told.text))
    try:
        yield shown
    finally:
        context.close()
