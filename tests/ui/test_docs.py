"""A person reads `/docs` and tries a call; nothing comes from another server, and the key stays in the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.ui.audit import violations
from tests.ui.browser import Window, needs_browser

pytestmark = needs_browser


@pytest.mark.nightly
def test_a_call_is_tried_and_streamed(shown: Window) -> None:
    page = shown.page
    page.goto(f"{shown.base}/docs")
    entry = page.locator('details[data-method="post"][data-path="/generate"]')
    entry.locator("summary").click()
    body = entry.get_by_label("Body")
    assert "안녕하세요" in body.input_value()
    body.fill('{"inputs": "Rice", "stream": true, "parameters": {"max_new_tokens": 3}}')
    expect(entry.get_by_label("curl")).to_contain_text("max_new_tokens")
    assert violations(page) == []
    entry.get_by_role("button", name="Send").click()
    answer = entry.get_by_role("log")
    expect(answer).to_contain_text("200")
    expect(answer).to_contain_text("data: ")
    expect(answer).to_contain_text('"finish_reason"')
    assert page.evaluate("localStorage.length + sessionStorage.length") == 0
