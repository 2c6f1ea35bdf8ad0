"""Stored sessions in a real browser: found, read, edited without overwriting, forked, exported, deleted and erased."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.e2e.server import Server
from tests.ui.browser import Window, needs_browser

pytestmark = needs_browser


@pytest.fixture
def api(served: Server) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def chat(api: httpx.Client, *texts: str, **fields: Any) -> str:
    """The id of a new session with a turn for each text."""
    id: str = api.post("/v1/sessions", json=fields).raise_for_status().json()["id"]
    for text in texts:
        turn = {"session_id": id, "messages": [{"role": "user", "content": text}], "parameters": {"max_new_tokens": 8}}
        api.post("/generate", json=turn).raise_for_status()
    return id


def messages(api: httpx.Client, id: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/v1/sessions/{id}/messages").json()["data"]
    return found


def mine(page: Page) -> Locator:
    return page.get_by_role("article", name="You").first


def test_sessions_are_found_by_their_words_and_come_by_pages(shown: Window, api: httpx.Client) -> None:
    for number in range(52):
        api.post("/v1/sessions", json={"title": f"paged {number}", "policy": "middle"}).raise_for_status()
    page = shown.open("sessions?query=paged")
    table = page.get_by_role("table", name="Sessions")
    expect(table.get_by_role("columnheader")).to_have_text(["Title", "Model", "Policy", "Changed"])
    expect(table.get_by_role("row")).to_have_count(51)
    pages = list[str]()
    page.on("response", lambda response: pages.append(response.url) if "cursor=" in response.url else None)
    page.get_by_role("button", name="More").evaluate("more => { more.click(); more.click(); }")  # a double click
    while len(pages) < 2:
        page.wait_for_timeout(10)
    page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    expect(table.get_by_role("row")).to_have_count(53)
    assert len(set(pages)) == 1, "one page was asked for twice"
    expect(page.get_by_role("button", name="More")).to_have_count(0)
    page.get_by_role("searchbox", name="Search sessions").fill("paged 17")
    expect(table.get_by_role("row")).to_have_count(2)
    assert "query=paged+17" in page.evaluate("location.search")
    table.get_by_role("link", name="paged 17").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("paged 17")
    expect(page.get_by_role("status")).to_contain_text("no message yet")


def test_a_session_shows_who_said_what_and_what_the_model_received(shown: Window, api: httpx.Client) -> None:
    id = chat(api, "My name is Mina.", system="You sell lunch boxes.", policy="retrieve")
    page = shown.open(f"sessions/{id}")
    receipt = messages(api, id)[1]["context"]
    names = page.get_by_role("article").get_by_role("heading")
    expect(names).to_have_text(["System prompt", "You", "demo:2"])
    expect(mine(page)).to_contain_text("My name is Mina.")
    answer = page.get_by_role("article", name="demo:2")
    for told in ("policy retrieve", f"{receipt['used']} of 2,048 tokens", "kept 2", "dropped 0"):
        expect(answer).to_contain_text(told)
    expect(page.get_by_role("link", name="Open in playground")).to_have_attribute(
        "href", re.compile(rf"/ui/playground\?session={id}$")
    )


def test_an_edit_is_stored_and_an_old_page_overwrites_nothing(shown: Window, api: httpx.Client) -> None:
    id = chat(api, "first words", title="edited")
    page = shown.open(f"sessions/{id}")
    for text in ("second words", "third words"):  # the second edit has the revision that the first one made
        mine(page).get_by_role("button", name="Edit").click()
        expect(page.get_by_role("textbox", name="Text")).to_be_focused()
        page.get_by_role("textbox", name="Text").fill(text)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("status")).to_have_text("Saved.")
        expect(mine(page).get_by_role("button", name="Edit")).to_be_focused()
        assert messages(api, id)[0]["content"] == text
    api.patch(f"/v1/sessions/{id}/messages/{messages(api, id)[0]['id']}", json={"content": "another page's"})
    mine(page).get_by_role("button", name="Edit").click()
    page.get_by_role("textbox", name="Text").fill("an old page's")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("412")
    expect(page.get_by_role("status")).to_be_empty()
    assert messages(api, id)[0]["content"] == "another page's"
    expect(page.get_by_role("textbox", name="Text")).to_have_value("an old page's")
    page.get_by_role("button", name="Load the newest").click()
    expect(mine(page)).to_contain_text("another page's")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_have_text("Saved.")
    assert messages(api, id)[0]["content"] == "an old page's"
    assert all("412" in told for told in shown.complaints)
    shown.complaints.clear()


def test_calls_and_their_results_are_read(shown: Window, api: httpx.Client) -> None:
    given = '{"city": "서울", "note": "<b>&"}'
    items = [
        {"role": "user", "content": "날씨?"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": given},
        {"type": "function_call_output", "call_id": "c1", "output": "맑음, 21도"},
        {"role": "assistant", "content": "맑아요."},
    ]
    made = api.post("/v1/conversations", json={"items": items}).raise_for_status().json()["id"]
    id = made.replace("conv_", "s_")
    page = shown.open(f"sessions/{id}")
    calls = page.get_by_role("list", name="Calls of functions")
    expect(calls.get_by_role("listitem")).to_have_text([f"weather {given}"])
    expect(page.get_by_role("article", name="Result of a call")).to_contain_text("weather")
    expect(page.get_by_role("article", name="Result of a call")).to_contain_text("맑음, 21도")
    page = shown.open(f"playground?session={id}")
    expect(page.get_by_role("list", name="Calls of functions").get_by_role("listitem")).to_have_text(
        [f"weather {given}"]
    )
    expect(page.get_by_role("article", name="Result of a call · weather")).to_contain_text("맑음, 21도")


def test_messages_are_pinned_and_a_fork_is_a_session_of_its_own(shown: Window, api: httpx.Client) -> None:
    id = chat(api, "one", "two", title="forked")
    page = shown.open(f"sessions/{id}")
    mine(page).get_by_role("button", name="Pin").click()
    expect(mine(page).get_by_role("button", name="Unpin")).to_be_visible()
    assert messages(api, id)[0]["pinned"] is True
    mine(page).get_by_role("button", name="Unpin").click()
    expect(page.get_by_role("status")).to_have_text("No longer pinned.")
    assert messages(api, id)[0]["pinned"] is False
    page.get_by_role("article", name="demo:2").first.get_by_role("button", name="Fork from here").click()
    expect(page.get_by_role("article")).to_have_count(2)
    other = page.evaluate("location.pathname").rpartition("/")[2]
    assert other != id and len(messages(api, other)) == 2 and len(messages(api, id)) == 4


def test_export_downloads_json_lines(shown: Window, api: httpx.Client) -> None:
    id = chat(api, "for the file")
    page = shown.open(f"sessions/{id}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == f"{id}.jsonl"
    lines = [json.loads(line) for line in Path(download.value.path()).read_text(encoding="utf-8").splitlines()]
    assert [line["type"] for line in lines] == ["session", "message", "message"]


@pytest.mark.parametrize(("button", "sent"), [("Delete session", ""), ("Erase session", "?erase=true")])
def test_a_session_goes_only_after_a_dialog(shown: Window, api: httpx.Client, button: str, sent: str) -> None:
    id = chat(api, "gone", title=f"to go {sent}")
    page = shown.open(f"sessions/{id}")
    page.get_by_role("button", name=button).click()
    page.get_by_role("dialog", name=button).get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert api.get(f"/v1/sessions/{id}").status_code == 200
    page.get_by_role("button", name=button).click()
    with page.expect_request(lambda request: request.method == "DELETE") as request:
        page.get_by_role("dialog", name=button).get_by_role("button", name=button).click()
    assert request.value.url.endswith(f"/v1/sessions/{id}{sent}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Sessions")
    assert api.get(f"/v1/sessions/{id}").status_code == 404
