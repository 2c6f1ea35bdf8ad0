"""The composition of a chat: its messages in Unicode's composed form, checked, and the order in which they are sent,
with what the server adds. It counts no tokens and decides nothing about what is left out.

    [system] [summary] [the newest turns] [old turns that match] [the last turn] [passages that match] [the question]

What depends on the question stands near the question. All before it then begins as the last call did, and the prefix
cache has it. The turn that the question may refer to stays beside the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from unicodedata import is_normalized, normalize

from service.context.policies import SYSTEM_ROLES
from service.errors import InvalidRequest
from service.text.arguments import mapped, parsed, written
from service.text.messages import Document, Message, ToolCall
from service.text.passages import titled
from service.text.tokenizer import Tokenizer

NFC_NOTE = "input normalised to NFC"


def current(messages: Sequence[Message]) -> str:
    """Returns the texts of a chat's last turn."""
    first = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
    return "\n".join(message.content for message in messages[first:])


def compose(
    messages: Iterable[Message], documents: Iterable[Document]
) -> tuple[tuple[Message, ...], tuple[Document, ...], tuple[str, ...]]:
    """Returns messages and documents in NFC, and the notes about it for the receipt."""
    notes: set[str] = set()

    def maybe(text: str | None) -> str | None:
        return None if text is None else _collect(text, notes)

    def call(original: ToolCall) -> ToolCall:
        arguments = mapped(parsed(original.arguments), lambda text: _collect(text, notes))
        return ToolCall(original.id, _collect(original.name, notes), written(arguments))

    def composed_of(m: Message) -> Message:
        content = _collect(m.content, notes)
        if content is m.content and m.name is None and not m.tool_calls:
            return m
        return replace(m, content=content, name=maybe(m.name), tool_calls=tuple(map(call, m.tool_calls)))

    composed = tuple(map(composed_of, messages))
    texts = tuple(Document(_collect(d.text, notes), maybe(d.title), d.id) for d in documents)
    return composed, texts, tuple(sorted(notes))


def _collect(text: str, notes: set[str]) -> str:
    composed, news = nfc(text)
    notes.update(news)
    return composed


def nfc(text: str) -> tuple[str, tuple[str, ...]]:
    return (text, ()) if is_normalized("NFC", text) else (normalize("NFC", text), (NFC_NOTE,))


def with_composed(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the texts, and behind them the NFC of those that are not in it: models write NFC."""
    return (*texts, *(normalize("NFC", text) for text in texts if not is_normalized("NFC", text)))


def leading_systems(messages: Sequence[Message]) -> int:
    """Returns how many system messages stand before all others."""
    return next((at for at, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def require_systems(tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
    """Requires that the template writes system messages after others, where there are some."""
    leading = leading_systems(messages)
    later = next((at for at, message in enumerate(messages) if at > leading and message.role in SYSTEM_ROLES), None)
    if later is not None and not tokenizer.probes.has_systems_between:
        where = f"messages[{later}].role"
        raise InvalidRequest(
            f"{where}: this version's chat template takes no system message after others; send it first, or as a "
            "user's message",
            param=where,
        )


def require_calls(messages: Sequence[Message]) -> None:
    """Requires that a tool's result comes after its call and in the same turn, so that no cut parts them."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        called = set() if message.role == "user" else called | {call.id for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id not in called:
            where = f"messages[{index}].tool_call_id"
            raise InvalidRequest(
                f"{where} names no call since the user's last message before it; send the assistant's message with "
                "that call in its tool_calls first.",
                param=where,
            )


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
    if tokenizer.probes.has_later_systems:
        return [SentMessage(Message("system", text), source)]
    return [SentMessage(Message("user", text), source), SentMessage(Message("assistant", NOTED), source)]
