"""Placing puts a chat into the order in which it is sent: its messages, and between them what the server adds. It knows
the template's limits; it decides nothing about what is left out.

    [system] [summary] [the newest turns] [old turns that match] [the last turn] [passages that match] [the question]

What depends on the question stands near the question. All before it then begins as the last call did, and the prefix
cache has it. The turn that the question may refer to stays beside the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from service.text.messages import Document, Message
from service.text.passages import titled
from service.text.tokenizer import Tokenizer

SUMMARY: Final = -1
KNOWLEDGE: Final = -2
SUMMARY_TITLE: Final = "[Summary of the earlier conversation, made by the model]"
SUMMARY_REQUEST: Final = (
    "Summarise our conversation so far, in its language and as short as you can. Keep every name, number, date, wish, "
    "decision and open question; leave out greetings. Write the summary and nothing else."
)
NOTED: Final = "OK."
_PARAGRAPH: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message that is sent. `source` is its position in the chat, or SUMMARY or KNOWLEDGE: the part it counts
    for."""

    message: Message
    source: int


def of_chat(messages: Sequence[Message], places: Sequence[int]) -> list[SentMessage]:
    return [SentMessage(messages[at], at) for at in places]


def summary_messages(tokenizer: Tokenizer, text: str) -> list[SentMessage]:
    """Returns the summary as a system message; as an exchange where the template takes only one system message."""
    return _added(tokenizer, f"{SUMMARY_TITLE}\n{text}", SUMMARY)


def knowledge_messages(tokenizer: Tokenizer, passages: Sequence[Document]) -> list[SentMessage]:
    """Returns the passages in the same form as a summary."""
    texts = [titled(passage.title, passage.text) for passage in passages]
    return _added(tokenizer, _PARAGRAPH.join(texts), KNOWLEDGE) if texts else []


def _added(tokenizer: Tokenizer, text: str, source: int) -> list[SentMessage]:
    if tokenizer.has_later_systems:
        return [SentMessage(Message("system", text), source)]
    return [SentMessage(Message("user", text), source), SentMessage(Message("assistant", NOTED), source)]
