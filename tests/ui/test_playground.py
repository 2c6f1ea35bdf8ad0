"""The playground in a real browser: a chat that stays, and the inspector of what the model received."""

from __future__ import annotations

import json
import math
import re
import select
import shlex
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from playwright.sync_api import Route, expect

from tests.ui.browser import Window, needs_browser
from tests.ui.chatting import say, session_of, settled, stored, table

pytestmark = needs_browser
TALK = ("My name is Mina.", "I like green tea and small lunch boxes.", "What is my name?", "안녕하세요! 무엇이 있나요?")


def _counts(rows: list[list[str]]) -> dict[str, int]:
    return {name: int(tokens.replace(",", "")) for name, tokens in rows}


def _parts(receipt: dict[str, object]) -> dict[str, object]:
    parts = receipt["parts"]
    assert isinstance(parts, dict)
    rest = {"free": receipt["free"], "reserved": receipt["reserved_output"], "cached": receipt["cached_tokens"]}
    return {**parts, **rest}


@pytest.mark.nightly
def test_a_chat_past_its_window_shows_what_the_receipts_hold_and_stays(shown: Window) -> None:
    page = shown.open("playground")
    context = page.get_by_role("region", name="Context")
    context.get_by_role("spinbutton", name="Input budget").fill("60")
    page.get_by_role("spinbutton", name="Most new tokens").fill("12")
    seen = []
    for text in TALK:
        answer = say(page, text)
        expect(answer).to_have_attribute("aria-label", "demo:2")
        messages = stored(shown, session_of(page))
        receipt = messages[-1]["context"]
        expect(context.get_by_role("img", name=f"Window: {receipt['used']} of 2,048")).to_be_visible()
        assert _counts(table(page, "Parts")) == _parts(receipt)
        rows = table(page, "Messages")
        roles = {message["id"]: message["role"] for message in messages}
        assert [row[0] for row in rows] == [message["id"] for message in messages[:-1]]
        assert [row[1] for row in rows] == [roles[row[0]] for row in rows]
        assert {state: [row[0] for row in rows if row[3] == state] for state in ("kept", "dropped")} == {
            "kept": receipt["kept"],
            "dropped": receipt["dropped"],
        }
        assert all(row[4] for row in rows)
        inside = sum(int(row[2]) for row in rows if row[3] == "kept")
        assert inside == receipt["used"] - receipt["parts"]["template"]
        seen.append(receipt)
    assert seen[-1]["dropped"] and not seen[0]["dropped"]
    rendered = context.get_by_role("group", name="Rendered text")
    assert rendered.locator(".token").count() == seen[-1]["used"]
    text = rendered.text_content() or ""
    assert TALK[-1] in text and TALK[0] not in text
    articles = page.get_by_role("article").locator(".text").all_inner_texts()
    page.get_by_role("button", name="Show context").first.click()
    assert _counts(table(page, "Parts")) == _parts(seen[0])

    page.reload()
    shown.settle()
    assert page.get_by_role("article").locator(".text").all_inner_texts() == articles
    assert _counts(table(page, "Parts")) == _parts(seen[-1])
    rows = table(page, "Messages")
    assert [row[0] for row in rows if row[3] == "dropped"] == seen[-1]["dropped"]
    expect(page.get_by_role("combobox", name="Policy")).to_have_value("window")


def test_the_preview_follows_the_typing_and_the_budget(shown: Window) -> None:
    page = shown.open("playground")
    context = page.get_by_role("region", name="Context")
    expect(context.get_by_role("img", name=re.compile("^Window: 4 of 2,048$"))).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("The lunch box is green.")
    expect(context.get_by_role("group", name="Rendered text")).to_contain_text("The lunch box is green.")
    used = _counts(table(page, "Parts"))
    assert used["current"] == int(table(page, "Messages")[0][2]) > 4
    expect(page.get_by_role("status")).not_to_contain_text("session:")
    page.get_by_role("spinbutton", name="Input budget").fill("3")
    page.get_by_role("combobox", name="Policy").select_option("refuse")
    expect(context).to_contain_text("context.max_input_tokens lets 3 in")
    expect(context.get_by_role("table")).to_have_count(0)
    page.get_by_role("spinbutton", name="Input budget").fill("")
    expect(context.get_by_role("table", name="Messages")).to_be_visible()


def test_a_refused_message_stays_in_the_box_and_leaves_no_session(shown: Window) -> None:
    page = shown.open("playground")
    page.get_by_role("spinbutton", name="Temperature").fill("-1")
    page.get_by_role("textbox", name="Message").fill("Hello there")
    before = httpx.get(f"{shown.base}/v1/sessions").json()["data"]
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("`parameters.temperature` must be at least 0")
    expect(page.get_by_role("alert")).to_contain_text("request")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("Hello there")
    expect(page.get_by_role("article")).to_have_count(0)
    expect(page).not_to_have_url(re.compile("session="))
    assert httpx.get(f"{shown.base}/v1/sessions").json()["data"] == before
    assert all("422" in told for told in shown.complaints)
    shown.complaints.clear()
    page.get_by_role("spinbutton", name="Temperature").fill("")
    page.get_by_role("textbox", name="Message").press("Enter")
    expect(page.get_by_role("article")).to_have_count(2)
    settled(page)
    expect(page.get_by_role("alert")).to_be_empty()


LONG = {"max_new_tokens": 1900, "min_new_tokens": 1900}


def _long(route: Route) -> None:
    """Asks for an answer that no early end token ends."""
    body = json.loads(route.request.post_data or "")
    body["parameters"] |= LONG
    route.continue_(post_data=json.dumps(body))


# A person's click, without the half second until a test has seen that there is something to stop.
STOPS_AT_ONCE = """new MutationObserver((_, watching) => {
  const text = [...document.querySelectorAll('article .text')].at(-1)?.textContent ?? '';
  const stop = [...document.querySelectorAll('button')].find(button => button.textContent === 'Stop');
  if (document.querySelectorAll('article').length < 4 || !text || text.includes('Waiting') || stop.disabled) return;
  watching.disconnect();
  stop.click();
}).observe(document.body, {subtree: true, childList: true, characterData: true})"""


@contextmanager
def _crowd(base: str, answers: int = 32) -> Iterator[None]:
    """Long answers beside it, which end with their connections. Alone, 1,900 tokens of the demo model are there within
    a second, before a busy browser has shown the first one."""
    host, port = base.removeprefix("http://").split(":")
    body = json.dumps({"inputs": "Hello", "parameters": LONG})
    head = f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(answers):
            connection = stack.enter_context(socket.create_connection((host, int(port))))
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        yield
        assert not select.select([connection], [], [], 0)[0], "the crowd was gone before the answer was stopped"


def test_stop_ends_an_answer_and_the_session_keeps_nothing_of_it(shown: Window) -> None:
    page = shown.open("playground")
    say(page, "My name is Mina.")
    page.route("**/generate_stream", _long)
    page.evaluate(STOPS_AT_ONCE)
    page.get_by_role("textbox", name="Message").fill("Tell me everything.")
    with _crowd(shown.base):
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("article")).to_have_count(4)
        answer = page.get_by_role("article").last
        expect(answer).to_contain_text("stopped", timeout=60_000)
    assert len(answer.locator(".text").inner_text()) > 1
    expect(page.get_by_role("status")).to_contain_text("keeps nothing of a stopped answer")
    assert [message["role"] for message in stored(shown, session_of(page))] == ["user", "assistant"]
    page.unroute("**/generate_stream")
    answer.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("status")).to_contain_text("kept in the session: 4", timeout=60_000)
    expect(page.get_by_role("article")).to_have_count(4)


def test_regenerate_replaces_the_last_answer_and_branches_off_an_earlier_one(shown: Window) -> None:
    page = shown.open("playground")
    say(page, "My name is Mina.")
    say(page, "What is my name?")
    session, before = session_of(page), stored(shown, session_of(page))
    page.get_by_role("combobox", name="Version").select_option("demo:1")
    page.get_by_role("article").last.get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("article").last).to_have_attribute("aria-label", "demo:1", timeout=60_000)
    settled(page)
    after = stored(shown, session)
    assert after[-1]["model"] == "demo:1" and after[-1]["id"] != before[-1]["id"]
    assert [message["id"] for message in after[:3]] == [message["id"] for message in before[:3]]

    page.get_by_role("article", name="demo:2").get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("article")).to_have_count(2)
    settled(page)
    assert session_of(page) != session and len(stored(shown, session_of(page))) == 2
    assert stored(shown, session) == after


def test_tokens_of_the_answer_and_what_else_could_have_come(shown: Window) -> None:
    page = shown.open("playground")
    say(page, "My name is Mina.")
    body = {"messages": [{"role": "user", "content": "My name is Mina."}], "model": "demo:2"}
    asked = {**body, "parameters": {"details": True, "top_n_tokens": 5}}
    details = httpx.post(f"{shown.base}/generate", json=asked, timeout=60).json()["details"]
    box = page.get_by_role("listbox", name="Tokens of the answer")
    expect(box.get_by_role("option")).to_have_count(details["generated_tokens"])
    box.focus()
    page.keyboard.press("ArrowRight")
    for at in (1, 2):
        expect(box.get_by_role("option", selected=True)).to_have_text(details["tokens"][at]["text"])
        rows = table(page, "Alternatives")
        assert [row[1] for row in rows] == [f"{math.exp(e['logprob']):.2%}" for e in details["top_tokens"][at]]
        tenth = min(9, math.floor(math.exp(details["tokens"][at]["logprob"]) * 10))
        expect(box.get_by_role("option").nth(at)).to_have_class(re.compile(rf"\bp{tenth}\b"))
        page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    expect(box.get_by_role("option").last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Home")
    expect(box.get_by_role("option").first).to_have_attribute("aria-selected", "true")


def test_copy_as_curl_is_the_request_that_made_the_answer(shown: Window) -> None:
    page = shown.open("playground")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("spinbutton", name="Seed").fill("7")
    page.get_by_role("spinbutton", name="Temperature").fill("0.5")
    said = say(page, "It's Mina's \"box\"")
    said.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_role("status")).to_have_text("Copied.")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert words[0] == "curl" and f"{shown.base}/generate_stream" in words
    body = json.loads(words[words.index("-d") + 1])
    assert body["session_id"] == session_of(page)
    assert body["messages"] == [{"role": "user", "content": "It's Mina's \"box\""}]
    assert (body["parameters"]["seed"], body["parameters"]["temperature"]) == (7, 0.5)
    assert body["context"]["inspect"] is True
