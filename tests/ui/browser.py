"""A headless Chromium for the tests of the UI: Debian's, driven by Playwright from pip."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, Request, expect, sync_playwright

expect.set_options(timeout=30_000)

API_DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"

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

    def asked(self, request: Request) -> None:
        """Notes a request of the page to the API that the API's document does not have."""
        path = urlsplit(request.url).path.removeprefix(urlsplit(self.base).path)
        if not path.startswith("/ui/") and not is_documented(request.method, path):
            self.complaints.append(f"docs/api.md has no {request.method} {path}")

    def failed(self, error: Error) -> None:
        """Notes an error of a script. A transition that the browser itself aborted is none: on a page that is just
        being left or entered no script of ours can take its rejection (`lib/frame.js` does elsewhere)."""
        if not str(error).startswith("Transition was "):
            self.complaints.append(f"error: {error}")

    def open(self, path: str) -> Page:
        """Opens an address under `/ui/` and waits until its data is there."""
        self.page.goto(f"{self.base}/ui/{path}")
        if not path.startswith("live"):  # its stream of figures has no end
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


@cache
def _documented() -> list[tuple[str, re.Pattern[str]]]:
    text = API_DOCUMENT.read_text(encoding="utf-8")
    found = re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`? ]*)", text)
    return [(method, re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))) for method, path in found]


def is_documented(method: str, path: str) -> bool:
    """Whether docs/api.md has a route of the method and path."""
    return any(method == known and form.fullmatch(path) for known, form in _documented())


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
    page.on("request", shown.asked)
    page.on("pageerror", shown.failed)
    page.on("console", lambda told: shown.complaints.extend([told.text] if told.type == "error" else []))
    try:
        yield shown
    finally:
        context.close()
