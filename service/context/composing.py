"""Composing prepares a client's messages for counting: Unicode's composed form, and what receipts and cuts rely
on. It counts no tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from unicodedata import is_normalized, normalize

from service.context.policies import SYSTEM_ROLES
from service.errors import InvalidRequest
from service.text.arguments import mapped, parsed, written
from service.text.messages import Document, Message, ToolCall
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

    def call(given: ToolCall) -> ToolCall:
        arguments = mapped(parsed(given.arguments), lambda text: _collect(text, notes))
        return ToolCall(given.id, _collect(given.name, notes), written(arguments))

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


def leading_systems(messages: Sequence[Message]) -> int:
    """Returns how many system messages stand before all others."""
    return next((at for at, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def require_systems(tokenizer: Tokenizer, messages: Sequence[Message]) -> None:
    """Requires that the template writes system messages after others, where there are some."""
    leading = leading_systems(messages)
    later = next((at for at, message in enumerate(messages) if at > leading and message.role in SYSTEM_ROLES), None)
    if later is not None and not tokenizer.has_systems_between:
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
