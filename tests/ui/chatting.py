"""The shared parts of tests of chats: a message and its answer, and how input methods tell the browser of typing."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from playwright.sync_api import CDPSession, Locator, Page, Request, expect

from tests.ui.browser import Window

SECONDS = 60_000


def say(page: Page, text: str) -> Locator:
    """Sends one message. Returns its answer's article when the answer is whole."""
    log = page.get_by_role("log", name="Conversation")
    before = log.get_by_role("article").count()
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("button", name="Send").click()
    expect(log.get_by_role("article")).to_have_count(before + 2)
    settled(page)
    return log.get_by_role("article").last


def settled(page: Page) -> None:
    """Waits until no answer is on its way."""
    expect(page.get_by_role("button", name="Stop")).to_be_disabled(timeout=SECONDS)


def session_of(page: Page) -> str:
    found = re.search(r"session=(s_[\w-]+)", page.evaluate("location.search"))
    assert found, page.evaluate("location.href")
    return found[1]


def stored(shown: Window, session: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = httpx.get(f"{shown.base}/v1/sessions/{session}/messages").json()["data"]
    return messages


def table(page: Page, name: str) -> list[list[str]]:
    """The cells of a table, row by row."""
    rows = page.get_by_role("table", name=name, exact=True).locator("tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


class Typing:
    """Types as an input method does. `sent` are the messages that the page has sent."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.box = page.get_by_role("textbox", name="Message")
        self.sent: list[str] = []
        self._devtools: CDPSession = page.context.new_cdp_session(page)
        page.on("request", self._note)
        self.box.focus()

    def _note(self, request: Request) -> None:
        if request.url.endswith("/generate_stream"):
            self.sent += [each["content"] for each in json.loads(request.post_data or "")["messages"]]

    def compose(self, text: str) -> None:
        place = {"selectionStart": len(text), "selectionEnd": len(text)}
        self._devtools.send("Input.imeSetComposition", {"text": text, **place})

    def commit(self, text: str) -> None:
        self._devtools.send("Input.insertText", {"text": text})

    def enter_while_composing(self, key: str = "Process") -> None:
        """The key that the input method takes for itself."""
        self._devtools.send(
            "Input.dispatchKeyEvent",
            {"type": "rawKeyDown", "windowsVirtualKeyCode": 229, "key": key, "code": "Enter"},
        )

    def plain_enter(self) -> None:
        told = {"windowsVirtualKeyCode": 13, "key": "Enter", "code": "Enter"}
        self._devtools.send("Input.dispatchKeyEvent", {"type": "keyDown", "text": "\r", **told})

    def leave_enter(self) -> None:
        told = {"windowsVirtualKeyCode": 13, "key": "Enter", "code": "Enter"}
        self._devtools.send("Input.dispatchKeyEvent", {"type": "keyUp", **told})

    def safari(self, before: str, text: str) -> None:
        """What Safari tells: the composition ends, and only then comes the keydown, of no composition."""
        self.box.evaluate(
            """(box, [before, text]) => {
                box.value = before;
                box.dispatchEvent(new CompositionEvent('compositionstart', {data: '', bubbles: true}));
                box.dispatchEvent(new CompositionEvent('compositionupdate', {data: text, bubbles: true}));
                box.value = before + text;
                const put = {data: text, inputType: 'insertFromComposition', bubbles: true};
                box.dispatchEvent(new InputEvent('input', put));
                box.dispatchEvent(new CompositionEvent('compositionend', {data: text, bubbles: true}));
                const told = {key: 'Enter', code: 'Enter', keyCode: 229, bubbles: true, cancelable: true};
                box.dispatchEvent(new KeyboardEvent('keydown', told));
                box.dispatchEvent(new KeyboardEvent('keyup', {...told, keyCode: 13}));
            }""",
            [before, text],
        )
