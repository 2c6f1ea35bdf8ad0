"""A version's life by mouse and keys: import, evaluate, compare, rollout, promote, roll back."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, expect

from models.imports.starter import WEIGHTS
from tests.ui.browser import Window, cells, needs_browser

pytestmark = needs_browser
MINUTES = 240_000
"""A job has at most four minutes, in milliseconds."""


@pytest.mark.nightly
def test_from_import_to_rollback(shown: Window, client: httpx.Client) -> None:
    page = shown.open("models")
    _import(page, "bento", "bf16")
    _finished(page, "bento:1")
    for button, made in (("Quantize", "bento:2"), ("Evaluate", "bento:1")):
        shown.open("models/bento/versions/1")
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").get_by_role("button", name=button).click()
        _finished(page, made)
    shown.open("models/bento/versions/2")
    quality = page.get_by_role("table", name="Quality")
    expect(quality.get_by_role("row", name=re.compile("Top-1 agreement where clear"))).to_contain_text("passes")

    shown.open("models/bento")
    page.get_by_role("checkbox", name="Compare bento:1").check()
    page.get_by_role("checkbox", name="Compare bento:2").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare bento:1 and bento:2")
    expect(page.get_by_role("table", name="Facts").get_by_role("row", name=re.compile("Precision"))).to_contain_text(
        "int8"
    )

    shown.open("models/bento/aliases/canary")
    page.get_by_role("combobox", name="Version").select_option("1")
    page.get_by_role("textbox", name="Reason").fill("the first")
    page.get_by_role("button", name="Promote").click()
    expect(page.get_by_role("table", name="History").get_by_role("row")).to_have_count(2)

    page.get_by_role("link", name="Rollout").first.click()
    page.get_by_role("combobox", name="Candidate").select_option("2")
    page.get_by_role("slider", name="Weight").fill("50")
    page.get_by_role("button", name="Start").click()
    observed = page.get_by_role("table", name="Observed")
    expect(observed.get_by_role("row")).to_have_count(3)  # the rollout runs: it counts every request from here on
    for turn in range(6):
        body = {"inputs": f"{turn}", "model": "bento@canary", "parameters": {"max_new_tokens": 2}}
        client.post("/generate", json=body, timeout=120).raise_for_status()
    _until(page, lambda: sum(int(row[1]) for row in cells(observed)) == 6)
    page.get_by_role("button", name="Promote bento:2").click()
    expect(page.get_by_role("table", name="Earlier rollouts")).to_contain_text("bento:2")

    shown.open("models/bento/aliases/canary")
    expect(page.get_by_role("combobox", name="Version")).to_be_visible()
    page.get_by_role("button", name="Roll back to bento:1").click()
    expect(page.get_by_role("status")).to_contain_text("bento:1")
    assert client.get("/v1/repository/models/bento/aliases/canary").json()["version"] == "1"
    shown.complaints[:] = [
        told for told in shown.complaints if "404" not in told
    ]  # an alias and a rollout that were not yet


def _until(page: Page, condition: Callable[[], bool]) -> None:
    """Waits for what the page shows after one of its next refreshes; `page` goes on meanwhile."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(200)


def _import(page: Page, name: str, precision: str) -> None:
    page.get_by_role("button", name="Import").click()
    dialog = page.get_by_role("dialog", name="Import")
    dialog.get_by_label("Model name").fill(name)
    dialog.get_by_label("Source").fill(str(WEIGHTS))
    dialog.get_by_label("Precision").select_option(precision)
    dialog.get_by_label("Evaluate").select_option("none")
    dialog.get_by_role("button", name="Import").click()


def _finished(page: Page, version: str) -> None:
    """The page of jobs has told the end of the job, with a link to what it made."""
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    expect(page.get_by_role("status").get_by_role("link", name=version)).to_be_visible(timeout=MINUTES)
