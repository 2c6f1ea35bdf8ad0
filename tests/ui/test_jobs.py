"""Jobs in a real browser: one is followed to its outcome, one is cancelled, one fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.server import Server
from tests.ui.browser import Window, needs_browser

pytestmark = needs_browser
DEMO = "/v1/repository/models/demo/versions"
PATIENCE = 120_000


@pytest.fixture
def api(served: Server) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def begun(api: httpx.Client, path: str, **body: Any) -> str:
    id: str = api.post(path, json=body).raise_for_status().json()["id"]
    return id


def row_of(page: Page, id: str) -> Locator:
    return page.get_by_role("table", name="Jobs").get_by_role("row").filter(has=page.locator(f"#{id}"))


def test_a_job_is_followed_to_the_version_that_it_makes(shown: Window, api: httpx.Client) -> None:
    id = begun(api, f"{DEMO}/1/quantize", precision="int8-weight", evaluate="none")
    page = shown.page
    page.goto(f"{shown.base}/ui/jobs?job={id}")
    table, row = page.get_by_role("table", name="Jobs"), row_of(page, id)
    expect(table.get_by_role("columnheader")).to_have_text(["Job", "Kind", "Of", "State", "Progress"])
    expect(row).to_have_attribute("aria-current", "true")
    expect(row.get_by_role("progressbar", name="Progress of demo:1")).to_be_visible()
    expect(row).to_contain_text("succeeded", timeout=PATIENCE)
    expect(row.get_by_role("button")).to_have_count(0)
    result = api.get(f"/v1/jobs/{id}").json()["result"]
    try:
        expect(page.get_by_role("status")).to_contain_text("Job quantize of demo:1 has succeeded")
        made = page.get_by_role("status").get_by_role("link", name=f"demo:{result['version']}")
        expect(made).to_have_attribute("href", f"/ui/models/demo/versions/{result['version']}")
    finally:
        api.delete(f"{DEMO}/{result['version']}").raise_for_status()


def test_jobs_that_wait_or_run_are_cancelled_newest_first(shown: Window, api: httpx.Client) -> None:
    running, waiting = (begun(api, f"{DEMO}/2/evaluate", effort="full") for _ in range(2))
    page = shown.page
    page.goto(f"{shown.base}/ui/jobs?job={running}")
    links = page.get_by_role("table", name="Jobs").locator("tbody td:first-child a")
    expect(links.first).to_have_attribute("id", waiting)
    for id in (waiting, running):
        row = row_of(page, id)
        row.get_by_role("button", name="Cancel").click()
        expect(row).to_contain_text("cancelled")
        expect(page.locator(f"#{id}")).to_be_focused()
        assert api.get(f"/v1/jobs/{id}").json()["state"] == "cancelled"
    expect(page.get_by_role("status")).to_contain_text("ancelled")


def test_a_failed_job_says_why(shown: Window, api: httpx.Client) -> None:
    id = begun(api, "/v1/repository/models/ui-nothing/versions", source="/nowhere", evaluate="none")
    page = shown.page
    page.goto(f"{shown.base}/ui/jobs")
    row_of(page, id).get_by_role("link").click()
    status = page.get_by_role("status")
    expect(status).to_contain_text("Job import of ui-nothing has failed", timeout=PATIENCE)
    reason = api.get(f"/v1/jobs/{id}").json()["error"]
    expect(status).to_contain_text(reason)
    expect(row_of(page, id)).to_contain_text(reason)
