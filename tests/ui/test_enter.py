"""Enter in the message box where an input method composes: the orders of events that browsers tell."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.ui.browser import Window, needs_browser
from tests.ui.chatting import Typing, settled

pytestmark = needs_browser
SENTENCE = "안녕하세요"


ENTER, TAKEN = {"type": "keydown", "code": "Enter"}, {"keyCode": 229}
PLAIN, AFTER = {**ENTER, "key": "Enter", "keyCode": 13}, {**ENTER, "key": "Enter", **TAKEN}
COMPOSING = {**ENTER, "key": "Process", **TAKEN, "isComposing": True}
LEFT, LINE = {"type": "keyup", "key": "Enter"}, {"type": "beforeinput", "inputType": "insertLineBreak"}
BEGUN = {"type": "compositionstart", "data": ""}
REPLAY = """async events => {
    const {Enter} = await import(new URL('../lib/enter.js', document.querySelector('script[src]').src));
    const enter = new Enter();
    return events.map(event => enter.on(event));
}"""


def _ended(text: str) -> dict[str, str]:
    return {"type": "compositionend", "data": text}


@pytest.mark.parametrize(
    ("events", "meant"),
    [
        ([BEGUN, COMPOSING, _ended("요")], "||send-after"),
        ([BEGUN, COMPOSING, _ended("요"), PLAIN], "||send-after|swallow"),
        ([BEGUN, COMPOSING, _ended("요"), LINE], "||send-after|swallow"),
        ([BEGUN, COMPOSING, _ended("요"), LEFT, PLAIN], "||send-after||send"),
        ([BEGUN, {**PLAIN, "isComposing": True}, _ended("요")], "|swallow|send-after"),
        ([BEGUN, _ended("요"), AFTER, LEFT], "||send|"),
        ([BEGUN, _ended("日本"), AFTER, LEFT, PLAIN], "||||send"),
        ([BEGUN, COMPOSING, _ended("日本"), LEFT, PLAIN], "||||send"),
        ([BEGUN, COMPOSING, _ended("")], "||"),
        ([BEGUN, COMPOSING, {"type": "keydown", "key": "a"}, _ended("요")], "|||"),
        ([BEGUN, {**COMPOSING, "shiftKey": True}, _ended("요"), {**PLAIN, "shiftKey": True}], "|||"),
        ([PLAIN, {**PLAIN, "repeat": True}], "send|swallow"),
    ],
)
def test_what_enter_means(shown: Window, events: list[dict[str, object]], meant: str) -> None:
    page = shown.open("playground")
    assert "|".join(page.evaluate(REPLAY, events)) == meant


@pytest.fixture
def typing(shown: Window) -> Typing:
    return Typing(shown.open("playground"))


def _sent_once(typing: Typing, text: str = SENTENCE) -> None:
    expect(typing.page.get_by_role("article", name="You")).to_have_count(1)
    settled(typing.page)
    typing.page.wait_for_timeout(300)
    assert typing.sent == [text]
    expect(typing.page.get_by_role("article", name="You")).to_have_count(1)
    expect(typing.box).to_have_value("")


@pytest.mark.parametrize("key", ["Process", "Enter"])
def test_windows_where_enter_only_ends_the_composition(typing: Typing, key: str) -> None:
    typing.commit("안녕하세")
    typing.compose("요")
    typing.enter_while_composing(key)
    typing.commit("요")
    _sent_once(typing)
    typing.commit("다시")
    typing.plain_enter()
    expect(typing.page.get_by_role("article", name="You")).to_have_count(2)
    settled(typing.page)
    assert typing.sent == [SENTENCE, "다시"]


def test_safari_where_enter_comes_after_the_composition(typing: Typing) -> None:
    typing.safari("안녕하세", "요")
    _sent_once(typing)


def test_a_candidate_of_kana_or_pinyin_is_taken_and_nothing_is_sent(typing: Typing) -> None:
    for composed, taken in (("にほん", "日本"), ("か", "か"), ("nihao", "你好"), ("nihao", "nihao"), ("한", "韓")):
        typing.box.fill("")
        typing.compose(composed)
        typing.enter_while_composing("Enter")
        typing.commit(taken)
        typing.leave_enter()
        typing.page.wait_for_timeout(100)
        expect(typing.box).to_have_value(taken)
    typing.safari("", "日本")
    typing.page.wait_for_timeout(200)
    assert typing.sent == []
    typing.plain_enter()
    _sent_once(typing, "日本")
