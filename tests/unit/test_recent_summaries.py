"""Summaries of chats without a session: found by the same chat, forgotten with an edit and after a while."""

from __future__ import annotations

import pytest

from service.generation import recent_summaries
from service.generation.recent_summaries import RecentSummaries
from service.generation.summaries import _keys
from service.text.messages import Message

CHAT = tuple(Message(("user", "assistant")[at % 2], f"said {at}") for at in range(8))


class Kept:
    """Of CHAT, for its first six messages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.summaries = RecentSummaries(lambda: self.now)
        self.summaries.keep("chat", _keys("", CHAT)[6], CHAT[:6], "a summary")

    def of(self, messages: tuple[Message, ...]) -> list[str]:
        return list(self.summaries.of("chat", _keys("", messages), messages).values())


@pytest.mark.parametrize("at", range(1, 6))
def test_an_edit_or_a_deletion_has_it_forgotten(at: int) -> None:
    edited = (*CHAT[:at], Message(CHAT[at].role, "other words"), *CHAT[at + 1 :])
    for changed in (edited, (*CHAT[:at], *CHAT[at + 1 :])):
        kept = Kept()
        assert kept.of(changed) == [] and len(kept.summaries) == 0
        assert kept.of(CHAT) == []


def test_the_same_chat_has_it_and_one_that_begins_alike_does_not_take_it() -> None:
    kept = Kept()
    other = (*CHAT[:2], *(Message(each.role, f"else {each.content}") for each in CHAT[2:]))
    assert kept.of(other) == []
    assert kept.of(CHAT) == ["a summary"] == kept.of((*CHAT, Message("user", "more")))


def test_it_is_kept_while_it_is_of_use() -> None:
    kept = Kept()
    for _ in range(3):
        kept.now += recent_summaries.SECONDS * 0.9
        assert kept.of(CHAT) == ["a summary"]
    kept.now += recent_summaries.SECONDS * 1.1
    assert kept.of(CHAT) == [] and len(kept.summaries) == 0


def test_there_is_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_summaries, "MOST", 3)
    kept = Kept()
    for number in range(5):
        kept.summaries.keep(f"chat {number}", f"key {number}", CHAT, "text")
    assert len(kept.summaries) == 3 and set(kept.summaries._chats) == {"chat 2", "chat 3", "chat 4"}
