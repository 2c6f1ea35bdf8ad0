"""Jobs in a real browser: one is followed to its outcome, one is cancelled, one fails."""

from __future__ import annotations

import re
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


def test_no_job_is_no_table_and_names_the_next_step(shown: Window) -> None:
    shown.page.route("**/v1/jobs", lambda route: route.fulfill(json={"data": []}))
    shown.page.goto(f"{shown.base}/ui/jobs")
    expect(shown.page.get_by_role("status")).to_contain_text("Import a model")
    expect(shown.page.get_by_role("table")).to_have_count(0)


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


def test_a_job_that_is_not_there_is_the_apis_sentence(shown: Window) -> None:
    shown.page.goto(f"{shown.base}/ui/jobs?job=job-nobody")
    expect(shown.page.get_by_role("alert")).to_contain_text(re.compile("job-nobody.*404", re.DOTALL))
    shown.complaints.clear()


@pytest.mark.nightly
def test_4_bits_are_asked_for_with_their_group(shown: Window, api: httpx.Client) -> None:
    """The demo model's layers have no groups of 128: the job says what to choose instead."""
    page = shown.page
    page.goto(f"{shown.base}/ui/models/demo/versions/1")
    page.get_by_role("button", name="Quantize").click()
    dialog = page.get_by_role("dialog")
    group = dialog.get_by_label("Weights that share a scale")
    expect(group).to_have_count(0)
    dialog.get_by_label("Precision").select_option("int4")
    group.select_option("128")
    dialog.get_by_role("button", name="Quantize").click()
    page.wait_for_url("**/ui/jobs?job=*")
    expect(page.get_by_role("status")).to_contain_text("choose another group_size", timeout=PATIENCE)
    job = api.get(f"/v1/jobs/{page.url.partition('job=')[2]}").json()
    assert job["state"] == "failed"
    assert (job["arguments"]["precision"], job["arguments"]["group_size"]) == ("int4", 128)
