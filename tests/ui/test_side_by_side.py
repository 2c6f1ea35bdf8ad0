"""Two versions side by side in a real browser: both answer, and a vote is stored before their names are shown."""

from __future__ import annotations

import json
from typing import Any

import httpx
from playwright.sync_api import Page, Route, expect

from tests.ui.browser import Window, needs_browser
from tests.ui.chatting import settled, stored

pytestmark = needs_browser
BOTH = "side-by-side?a=demo%3A1&b=demo%3A2"
NAMES = {"demo:1", "demo:2"}


def _ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Ask both").click()
    for name in ("Answer A", "Answer B"):
        expect(page.get_by_role("region", name=name).get_by_role("article", name="You").last).to_contain_text(text)
    settled(page)


def _newest(shown: Window) -> list[dict[str, Any]]:
    sessions: list[dict[str, Any]] = httpx.get(f"{shown.base}/v1/sessions", params={"limit": 2}).json()["data"]
    return sessions


def test_a_blind_vote_is_stored_and_then_the_names_are_shown(shown: Window) -> None:
    page = shown.open(BOTH)
    expect(page.get_by_role("combobox", name="Version A")).to_have_value("demo:1")
    expect(page.get_by_role("combobox", name="Version B")).to_have_value("demo:2")
    expect(page.get_by_role("checkbox", name="Blind")).to_be_checked()
    expect(page.get_by_role("button", name="A is better")).to_be_disabled()
    for text in ("My name is Mina.", "What is my name?"):
        _ask(page, text)
        assert not [name for name in ("demo", "tokens/s") if name in page.content()]
    page.get_by_role("button", name="A is better").click()
    expect(page.get_by_role("status")).to_contain_text("is preferred over")
    shown_names = {
        name: page.get_by_role("region", name=name).get_by_role("link").inner_text()
        for name in ("Answer A", "Answer B")
    }
    assert set(shown_names.values()) == NAMES
    vote = httpx.get(f"{shown.base}/v1/feedback").json()["data"][0]
    assert (vote["model"], vote["rating"]) == (shown_names["Answer A"], 1)
    answers = {stored(shown, each["id"])[-1]["answer_id"]: each["model"] for each in _newest(shown)}
    assert (answers[vote["id"]], answers[vote["preferred_over"]]) == tuple(shown_names.values())
    expect(page.get_by_role("status")).to_have_text(
        f"Stored: {shown_names['Answer A']} is preferred over {shown_names['Answer B']}."
    )
    expect(page.get_by_role("region", name="Answer A")).to_contain_text("tokens/s")
    expect(page.get_by_role("combobox", name="Version A")).to_have_value(shown_names["Answer A"])
    page.get_by_role("button", name="B is better").click()
    expect(page.get_by_role("button", name="B is better")).to_have_attribute("aria-pressed", "true")
    votes = httpx.get(f"{shown.base}/v1/feedback").json()["data"]
    assert votes[0]["id"] == vote["preferred_over"] and votes[0]["preferred_over"] == vote["id"]
    assert vote["id"] not in [each["id"] for each in votes]


def test_with_names_both_chats_go_on_in_sessions_of_their_own(shown: Window) -> None:
    page = shown.open(BOTH)
    page.get_by_role("checkbox", name="Blind").uncheck()
    for text in ("My name is Mina.", "What is my name?"):
        _ask(page, text)
    for name, version in (("Answer A", "demo:1"), ("Answer B", "demo:2")):
        region = page.get_by_role("region", name=name)
        expect(region.get_by_role("article", name=version)).to_have_count(2)
        expect(region.get_by_role("article", name=version).last).to_contain_text("TTFT")
    sessions = _newest(shown)
    assert {each["model"] for each in sessions} == NAMES
    for each in sessions:
        messages = stored(shown, each["id"])
        assert [message["content"] for message in messages[::2]] == ["My name is Mina.", "What is my name?"]
        assert {message["model"] for message in messages[1::2]} == {each["model"]}


def test_who_is_refused_stays_the_version_that_it_was(shown: Window) -> None:
    """B refuses the first message and both refuse the second; B then answered as the server's default."""
    page = shown.open(BOTH)
    page.get_by_role("checkbox", name="Blind").uncheck()
    refused, asked = [{"demo:2"}, NAMES, set[str]()], list[str]()

    def answer(route: Route) -> None:
        model = json.loads(route.request.post_data or "{}").get("model", "")
        asked.append(model)
        if model in refused[0]:
            route.fulfill(status=503, json={"error": "It loads", "error_type": "unavailable"})
        else:
            route.continue_()

    page.route("**/generate_stream", answer)
    for text in ("one", "two", "three"):
        page.get_by_role("textbox", name="Message").fill(text)
        page.get_by_role("button", name="Ask both").click()
        settled(page)
        if refused[0]:
            expect(page.get_by_role("alert")).to_contain_text("It loads")
        assert set(asked) == NAMES, text
        asked.clear()
        refused.pop(0)
    shown.complaints.clear()
